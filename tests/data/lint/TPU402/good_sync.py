import torch_xla
from torch.utils.data import DataLoader


def train(dataset, model, optimizer):
    for batch in DataLoader(dataset):
        model(batch).backward()
        optimizer.step()
        torch_xla.sync()
