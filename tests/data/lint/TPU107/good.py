import torch_xla
from torch.utils.data import DataLoader


def train(dataset, model, optimizer, options):
    loader = DataLoader(dataset, batch_size=32, drop_last=True)
    for batch in loader:
        model(batch).backward()
        optimizer.step()
        torch_xla.sync()
    for batch in DataLoader(dataset, batch_size=32):  # no step is made here
        print(batch.shape)
    for batch in DataLoader(dataset, **options):
        model(batch).backward()
