import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

try:
    from torch_xla.experimental import pjrt
except ImportError:
    pjrt = None
size = xm.xrt_world_size() if hasattr(xm, "xrt_world_size") else xr.world_size()
xm.mark_step()
