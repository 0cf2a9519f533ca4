import torch_xla
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader


def train(dataset, model, optimizer):
    loader = DataLoader(dataset, drop_last=True)
    for x, y in pl.MpDeviceLoader(loader, torch_xla.device()):
        model(x, y).backward()
        optimizer.step()


def check(loader, model, device):
    for x in loader:
        print(model(x.to(device)).shape)
