"""`tpuctl stacks`: what the processes of a run are doing."""

from __future__ import annotations

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import RunId, Workers
from tpuctl.errors import PartialError, UsageError


def stacks(context: AppContext, run_id: RunId = "last", worker: Workers = None) -> None:
    """Show what the processes of a run are doing.

    By py-spy where hosts have it; else Python's own faulthandler; else what the kernel tells.
    """
    from tpuctl.lib.codec import to_data
    from tpuctl.lib.text import parse_workers
    from tpuctl.runs.stacks import dump_stacks, render_stacks
    from tpuctl.state.repository import get_run

    record = get_run(context, run_id).record
    known = record.attempt.workers if record.attempt else ()
    try:
        chosen = None if worker is None else parse_workers(worker, max(known, default=0) + 1)
    except ValueError as error:
        raise UsageError(f"--worker: {error}", hint=f"tpuctl status {record.slice_name}") from error
    found = dump_stacks(context, record.id, chosen)
    if context.console.json_mode:
        context.console.data([to_data(each) for each in found])
    else:
        for each in found:
            for line in render_stacks(each).splitlines():
                context.console.line(f"{record.slice_name}-{each.worker} │ {line}")
    silent = [each for each in found if each.error]
    if silent:
        names = ", ".join(str(each.worker) for each in silent)
        raise PartialError(
            f"worker {names} did not say what runs there: {silent[0].error}",
            hint=f"tpuctl status {record.slice_name}",
            details={"workers": [each.worker for each in silent]},
        )
