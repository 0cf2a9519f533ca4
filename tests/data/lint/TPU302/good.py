import torch.nn.functional as F
from torch_xla.experimental.custom_kernel import flash_attention


def attend(q, k, v):
    if q.device.type == "xla":
        return flash_attention(q, k, v)
    return F.scaled_dot_product_attention(q, k, v) if q.is_cuda else F.softmax(q @ k.mT, -1) @ v
