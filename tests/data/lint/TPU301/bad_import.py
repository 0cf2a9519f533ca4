import torch_xla
from torch.utils.checkpoint import checkpoint_sequential  # here
