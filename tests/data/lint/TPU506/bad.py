import torch_xla.runtime as xr

xr.initialize_cache("/tmp/cache", readonly=False)  # here
