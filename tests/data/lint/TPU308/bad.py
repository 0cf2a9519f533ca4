import torch_xla.core.xla_model as xm
from torch_xla.experimental import pjrt  # here

print(xm.xrt_world_size(), xm.get_ordinal())  # here
