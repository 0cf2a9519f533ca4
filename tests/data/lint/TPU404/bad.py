import torch_xla
from torch.utils.data import DataLoader


def train(dataset, model, optimizer, device):
    loader = DataLoader(dataset, drop_last=True)
    for x, y in loader:  # here
        loss = model(x.to(device), y.to(device))
        loss.backward()
        optimizer.step()
        torch_xla.sync()
