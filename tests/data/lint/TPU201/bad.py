import torch_xla
from losses import scale


def train(loader, model, optimizer):
    total = 0.0
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        total += loss.item()  # here
        report(loss)
        torch_xla.sync()


def report(loss):
    return loss.max().item()  # here
