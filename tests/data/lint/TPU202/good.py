import numpy as np
import torch_xla


def train(loader, model, optimizer):
    history = []
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
        shape = np.array(batch.shape).tolist()
        torch_xla.sync()
    return [each.cpu() for each in history], shape
