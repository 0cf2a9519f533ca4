import torch_xla
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader


def work(index):
    loader = DataLoader(read(), batch_size=8, drop_last=True)  # here
    for batch in pl.MpDeviceLoader(loader, torch_xla.device()):
        step(batch)


torch_xla.launch(work)
