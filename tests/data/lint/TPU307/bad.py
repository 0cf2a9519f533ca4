import torch
import torch_xla


@torch.compile  # here
def step(x):
    return x * 2


@torch.compile(fullgraph=True)  # here
def other(x):
    return x * 3


model = torch.compile(step)  # here
