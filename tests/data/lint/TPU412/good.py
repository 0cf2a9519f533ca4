import torch.distributed as dist
import torch_xla.distributed.xla_backend


def start(device):
    if device.type == "cuda":
        dist.init_process_group("nccl")
    dist.init_process_group("xla", init_method="xla://")
    dist.init_process_group("gloo", init_method="xla://")
