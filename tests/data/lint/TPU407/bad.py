import torch
import torch_xla.core.xla_model as xm


class Layer(torch.nn.Module):
    def forward(self, x):
        xm.rendezvous("layer")  # here
        return x
