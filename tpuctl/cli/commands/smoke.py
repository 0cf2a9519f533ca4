"""`tpuctl smoke`: a short test of every chip of a slice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tpuctl.cli.context import AppContext
from tpuctl.cli.following import goes_on
from tpuctl.cli.options import DryRun
from tpuctl.lib.options import Option, argument
from tpuctl.model.timeouts import SMOKE_S


def smoke(
    context: AppContext,
    name: Annotated[str | None, argument("[NAME]", "The slice, if you have several.")] = None,
    env: Annotated[str | None, Option("The environment; else that of the slice.", metavar="NAME")] = None,
    limit: Annotated[float, Option("Stop what takes longer.", metavar="SECONDS", minimum=1)] = SMOKE_S,
    dry_run: DryRun = False,
) -> None:
    """Test every chip of a slice.

    A run of JAX or PyTorch/XLA on all workers: a matrix product on each device, and one collective over all
    processes. Names the workers that are missing, slow, short of devices, or on the CPU. It waits for a slice
    that is busy.
    """
    from tpuctl.cli.console import Column
    from tpuctl.lib.names import check_run_id
    from tpuctl.lib.text import counted
    from tpuctl.runs.smoke_run import prepare_smoke, run_smoke
    from tpuctl.slices.choose import resolve_slice

    target = resolve_slice(context, name)
    test = prepare_smoke(context, context.config, target, env, Path.cwd())
    run_id = check_run_id(f"smoke-{context.ids.new_id()}")
    if dry_run:
        workers = counted(target.spec.hosts, "worker")
        facts = {"dry_run": True, "slice": target.name, "workers": target.spec.hosts, "backend": test.backend}
        context.console.sentence(f"would test {workers} of {target.name} on {test.backend}", facts)
        return
    with context.interruptible(goes_on(run_id)):
        context.emit.show_only(())  # reports are for the table
        rows = run_smoke(context, test, run_id, limit)
        context.emit.close()
        columns = (
            Column("worker", "WORKER", right=True),
            Column("backend", "BACKEND"),
            Column("devices", "DEVICES", right=True),
            Column("matmul_s", "MATMUL S", right=True),
            Column("collective_s", "COLLECTIVE S", right=True),
            Column("finding", "FINDING", give=1),
        )
        context.console.table(rows, columns)
