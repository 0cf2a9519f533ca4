"""What `tpuctl smoke` runs on every worker: a matrix product on each device, one collective over all processes.

Prints one line behind MARK: what this process found. Needs jax, from the environment or from the host.
"""

import json
import os
import time

MARK = "tpuctl-smoke "
SIZE = 1024
rank, world = int(os.environ["TPUCTL_RANK"]), int(os.environ["TPUCTL_WORLD_SIZE"])


def timed(work):
    """Seconds of the second time: the first compiles."""
    work()
    began = time.monotonic()
    work()
    return round(time.monotonic() - began, 6)


def main():
    import jax
    import jax.numpy as jnp

    if world > 1:
        jax.distributed.initialize(os.environ["TPUCTL_COORDINATOR"], world, rank)
    from jax.experimental import multihost_utils

    product = jax.jit(lambda matrix: matrix @ matrix)
    matmul_s = []
    for device in jax.local_devices():
        matrix = jax.device_put(jnp.ones((SIZE, SIZE)), device)
        matmul_s.append(timed(lambda matrix=matrix: product(matrix).block_until_ready()))
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
