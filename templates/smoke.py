"""What `tpuctl smoke` runs on every worker: a matrix product on each device, one collective over all processes.

Prints a line behind STEP_MARK for each step that it comes to, and one behind MARK: what this process found.
Needs jax, from the environment or from the host.
"""

import json
import os
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


def come_to(step):
    print(STEP_MARK + step, flush=True)


def main():
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
    come_to("collective")
    seen = multihost_utils.process_allgather(jnp.array([rank]))
    collective_s = timed(lambda: multihost_utils.process_allgather(jnp.array([rank])))
    found = {
        "backend": jax.default_backend(),
        "devices": len(jax.local_devices()),
        "processes": int(seen.size),
        "matmul_s": max(matmul_s),
        "collective_s": collective_s,
    }
    print(MARK + json.dumps(found), flush=True)


main()
