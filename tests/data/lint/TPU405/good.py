import torch_xla
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, DistributedSampler


def work(index):
    data = read()
    share = DistributedSampler(data, num_replicas=xr.world_size(), rank=xr.global_ordinal())
    loader = DataLoader(data, batch_size=8, sampler=share, drop_last=True)
    for batch in pl.MpDeviceLoader(loader, torch_xla.device()):
        step(batch)


torch_xla.launch(work)
