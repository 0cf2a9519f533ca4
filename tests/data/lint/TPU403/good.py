import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP


def train(model, optimizer, loader):
    model = FSDP(model)
    for batch in loader:
        model(batch).backward()
        optimizer.step()
        torch_xla.sync()


def train_whole(model, optimizer, loader):
    for batch in loader:
        model(batch).backward()
        xm.optimizer_step(optimizer)
