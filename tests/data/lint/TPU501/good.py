import os

import torch_xla

os.environ["XLA_USE_BF16"] = "0"
print(os.environ.get("XLA_DOWNCAST_BF16"))
TEXT = "XLA_USE_BF16"
