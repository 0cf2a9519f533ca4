import torch
import torch_xla


class Model(torch.nn.Module):
    def forward(self, x):
        if x.abs().max().item() > 1:  # here
            x = x / 2
        return self.scale(x)

    def scale(self, x):
        return x * x.mean().item()  # here
