import torch_xla


def train(loader, model, optimizer):
    history = []
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        history.append(loss.detach().cpu())  # here
        torch_xla.sync()
    return history
