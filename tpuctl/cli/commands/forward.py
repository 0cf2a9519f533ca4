"""`forward`: a port of a worker on this machine, for TensorBoard and profilers."""

from __future__ import annotations

import time
from typing import Annotated

from tpuctl.cli.completion import slice_names
from tpuctl.cli.context import AppContext
from tpuctl.lib.options import Option, argument


def forward(
    context: AppContext,
    name: Annotated[str, argument("NAME", "Name of the slice.", complete=slice_names)],
    port: Annotated[str, argument("PORT", "The worker's port, or LOCAL:REMOTE; LOCAL 0 means any.")],
    worker: Annotated[int, Option("Which worker.", metavar="N", minimum=0)] = 0,
) -> None:
    """Forward a local port to a worker, until Ctrl-C.

    It follows the slice: after a preemption the next connection goes to the new worker.
    """
    from tpuctl.workers.forward import forward_port, parse_ports

    local, remote = parse_ports(port)
    with context.interruptible("the port is closed; the slice is as it was"):
        forwarding = forward_port(context, name, worker, remote, local_port=local)
        try:
            where = f"http://localhost:{forwarding.local_port}"
            if context.console.json_mode:
                context.console.data({"url": where, "local_port": forwarding.local_port, "remote_port": remote})
            else:
                context.console.line(where)
            context.console.say(f"leads to port {remote} of {name}-{worker}; Ctrl-C ends it")
            while True:
                time.sleep(1.0)  # a signal that comes just before is noticed after it
        finally:
            forwarding.close()
