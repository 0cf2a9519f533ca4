import torch_xla
from torch.utils.data import DataLoader


def train(dataset, model, optimizer):
    loader = DataLoader(dataset, batch_size=8, drop_last=True)
    for batch in loader:  # here
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
