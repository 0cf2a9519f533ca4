import torch
import torch_xla.core.xla_model as xm


class Layer(torch.nn.Module):
    def forward(self, x):
        return x

    def save(self, path):
        xm.rendezvous("save")
        xm.save(self.state_dict(), path)
