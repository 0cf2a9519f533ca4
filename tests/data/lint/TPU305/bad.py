import torch
import torch_xla


def place(model, batch):
    torch.cuda.set_device(0)  # here
    return model.cuda(), batch.to("cuda:0")
