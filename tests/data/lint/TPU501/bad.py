import os

import torch_xla

os.environ["XLA_USE_BF16"] = "1"  # here
os.environ.setdefault("XLA_DOWNCAST_BF16", "1")  # here
environ = {"XLA_USE_32BIT_LONG": "1"}  # here
