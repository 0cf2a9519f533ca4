import os

os.environ["PT_XLA_DEBUG_LEVEL"] = "2"  # here
import torch_xla
