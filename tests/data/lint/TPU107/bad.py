import torch_xla
from torch.utils.data import DataLoader


def train(dataset, model, optimizer):
    loader = DataLoader(dataset, batch_size=32)  # here
    for batch in loader:
        model(batch).backward()
        optimizer.step()
        torch_xla.sync()
