"""What happens when bad samples run under PyTorch/XLA on the CPU, beside what is advised. `bad_CODE` has what the rule
finds, `good_CODE` has not; the arguments name what is run, and results are printed as JSON."""

import json
import os
import sys

os.environ["PJRT_DEVICE"] = "CPU"

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.utils.checkpoint as xla_checkpoint
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


def made(rows=8):
    """A model, its optimizer and a batch on the device, and counters from zero."""
    device = torch_xla.device()
    model = torch.nn.Linear(rows, rows).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(4, rows, device=device)
    torch_xla.sync()
    met.clear_all()
    return model, optimizer, batch


def executions():
    found = met.metric_data("ExecuteTime")
    return found[0] if found else 0


def bad_TPU201():
    model, optimizer, batch = made()
    for _ in range(4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        loss.item()
        torch_xla.sync()
    return executions()


def good_TPU201():
    model, optimizer, batch = made()
    for step in range(4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            loss.item()
        torch_xla.sync()
    return executions()


def bad_TPU202():
    model, optimizer, batch = made()
    for _ in range(4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        loss.detach().cpu()
        torch_xla.sync()
    return executions()


def good_TPU202():
    model, optimizer, batch = made()
    losses = []
    for _ in range(4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        torch_xla.sync()
    return executions()


def bad_TPU204():
    model, optimizer, batch = made()
    for _ in range(4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        print(loss, file=sys.stderr)
        torch_xla.sync()
    return executions()


def good_TPU204():
    model, optimizer, batch = made()
    for _ in range(4):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        print(loss.shape, file=sys.stderr)
        torch_xla.sync()
    return executions()


def bad_TPU301():
    model, _, batch = made()
    return checkpoint(model, batch, use_reentrant=False).sum().backward()


def good_TPU301():
    model, _, batch = made()
    xla_checkpoint.checkpoint(model, batch.requires_grad_()).sum().backward()
    return "opt-barrier" in torch_xla._XLAC._get_xla_tensors_hlo([model.weight.grad])


def bad_TPU302():
    q = torch.ones(1, 2, 64, 8, device=torch_xla.device())
    program = torch_xla._XLAC._get_xla_tensors_hlo([F.scaled_dot_product_attention(q, q, q)])
    return "64,64]" in program


def bad_TPU305():
    return torch.ones(2).cuda()


def bad_TPU307():
    return torch.compile(lambda x: x * 2 + 1)(torch.ones(4, device=torch_xla.device())).cpu().tolist()


def good_TPU307():
    compiled = torch.compile(lambda x: x * 2 + 1, backend="openxla")
    return compiled(torch.ones(4, device=torch_xla.device())).cpu().tolist()


def bad_TPU402():
    model, optimizer, batch = made()
    lines = []
    for inputs in DataLoader(torch.ones(64, 4, 8)):
        loss = model(inputs[0].to(batch.device)).sum()
        loss.backward()
        optimizer.step()
        lines.append(torch_xla._XLAC._get_xla_tensors_text([loss]).count("\n"))
    return lines[-1] > 10 * lines[0]


def good_TPU402():
    model, optimizer, batch = made()
    lines = []
    for inputs in DataLoader(torch.ones(64, 4, 8)):
        loss = model(inputs[0].to(batch.device)).sum()
        loss.backward()
        optimizer.step()
        lines.append(torch_xla._XLAC._get_xla_tensors_text([loss]).count("\n"))
        torch_xla.sync()
    return lines[-1] > 10 * lines[0]


def bad_TPU107():
    model, optimizer, _ = made(3)
    loader = DataLoader(torch.ones(10, 3), batch_size=4)
    for inputs in loader:
        model(inputs.to(torch_xla.device())).sum().backward()
        optimizer.step()
        torch_xla.sync()
    return met.counter_value("UncachedCompile")


def good_TPU107():
    model, optimizer, _ = made(3)
    loader = DataLoader(torch.ones(10, 3), batch_size=4, drop_last=True)
    for inputs in loader:
        model(inputs.to(torch_xla.device())).sum().backward()
        optimizer.step()
        torch_xla.sync()
    return met.counter_value("UncachedCompile") or 0


def bad_TPU409():
    return xmp.spawn(print, nprocs=8)


def bad_TPU412():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", RANK="0", WORLD_SIZE="1")
    return dist.init_process_group("nccl")


def bad_TPU308():
    return xm.xrt_world_size()


def run(name):
    try:
        return globals()[name]()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    print(json.dumps({name: run(name) for name in sys.argv[1:]}))
