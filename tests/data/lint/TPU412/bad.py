import torch.distributed as dist
import torch_xla

dist.init_process_group("nccl")  # here
dist.init_process_group(backend="nccl", rank=0, world_size=2)  # here
