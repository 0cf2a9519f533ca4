import torch_xla


def train(loader, model, optimizer):
    for step, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        print("shape", loss.shape)
        if step % 50 == 0:
            print("loss", loss.item())
    print(loss)
