import torch_xla


def train(loader, model, optimizer):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        print("loss", loss)  # here
        print(f"loss {loss.item():.3f}")  # here
