import torch
import torch_xla


@torch.compile(backend="openxla")
def step(x):
    return x * 2


def build(options, device):
    if device.type == "cuda":
        return torch.compile(step)
    return torch.compile(step, **options)


def off(model):
    return torch.compile(model, disable=True)
