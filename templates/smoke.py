"""What `tpuctl smoke` runs on every worker: a matrix product on each device, one collective over all of them.

Its argument is the environment's backend. Prints a line behind STEP_MARK for each step that it comes to, the
last with what its products took, and one behind MARK: what this process found. Needs jax or torch_xla, from the
environment or from the host.
"""

import json
import os
import sys
import time

MARK = "tpuctl-smoke "
STEP_MARK = "tpuctl-smoke-step "
SIZE = 1024
rank, world = int(os.environ["TPUCTL_RANK"]), int(os.environ["TPUCTL_WORLD_SIZE"])


def timed(work):
    """Seconds of the second time: the first compiles."""
    work()
    began = time.monotonic()
    work()
    return round(time.monotonic() - began, 6)


def come_to(*step):
    print(STEP_MARK + " ".join(map(str, step)), flush=True)


def tell(backend, devices, processes, matmul_s, collective_s):
    print(MARK + json.dumps(locals()), flush=True)


def with_jax():
    import jax
    import jax.numpy as jnp

    come_to("join")
    if world > 1:
        jax.distributed.initialize(os.environ["TPUCTL_COORDINATOR"], world, rank)
    from jax.experimental import multihost_utils

    come_to("devices")
    product = jax.jit(lambda matrix: matrix @ matrix)
    matmul_s = []
    for device in jax.local_devices():
        matrix = jax.device_put(jnp.ones((SIZE, SIZE)), device)
        matmul_s.append(timed(lambda matrix=matrix: product(matrix).block_until_ready()))
    come_to("collective", max(matmul_s))
    seen = multihost_utils.process_allgather(jnp.array([rank]))
    collective_s = timed(lambda: multihost_utils.process_allgather(jnp.array([rank])))
    tell(jax.default_backend(), len(jax.local_devices()), int(seen.size), max(matmul_s), collective_s)


def with_torch_xla():
    import numpy
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.spmd as spmd
    import torch_xla.runtime as runtime

    come_to("join")
    count = runtime.global_runtime_device_count()  # answered once all hosts of the slice are there
    come_to("devices")
    devices = xm.get_xla_supported_devices()
    matmul_s = []
    for device in devices:
        matrix = torch.ones(SIZE, SIZE, device=device)
        matmul_s.append(timed(lambda matrix=matrix: (matrix @ matrix)[0, 0].item()))
    come_to("collective", max(matmul_s))
    runtime.use_spmd()
    ones = torch.ones(count).to(torch_xla.device())
    spmd.mark_sharding(ones, spmd.Mesh(numpy.arange(count), (count,), ("x",)), ("x",))

    def collective():
        total = ones.sum().item()
        if total != count:
            raise SystemExit("the sum over %d devices is %s" % (count, total))

    collective_s = timed(collective)
    tell(runtime.device_type().lower(), len(devices), runtime.process_count(), max(matmul_s), collective_s)


if sys.argv[1:] == ["torch_xla"]:
    with_torch_xla()
else:
    with_jax()
