import torch_xla.runtime as xr

print(xr.world_size())
