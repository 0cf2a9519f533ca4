import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader


def train(dataset, model, optimizer):
    loader = pl.MpDeviceLoader(DataLoader(dataset), torch_xla.device())
    for batch in loader:
        model(batch).backward()
        xm.optimizer_step(optimizer)
