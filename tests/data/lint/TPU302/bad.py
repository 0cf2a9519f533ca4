import torch.nn.functional as F
import torch_xla


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)  # here
