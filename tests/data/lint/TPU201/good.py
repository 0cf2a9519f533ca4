import math
import numpy as np
import torch_xla


def train(loader, model, optimizer):
    for step, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(loss.item())
        size = np.prod(batch.shape).item()
        torch_xla.sync()
    return loss.item(), math.sqrt(size)


def evaluate(model, batch):
    return model(batch).item()


def train_rarely(loader, model, optimizer, should_log):
    for step, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        if not should_log(step):
            continue
        print(loss.detach().item())
