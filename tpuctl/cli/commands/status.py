"""`tpuctl status`: one slice or one run in full."""

from __future__ import annotations

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import SliceOrRun
from tpuctl.cli.run_status import show_run
from tpuctl.cli.slice_status import status_lines


def status(context: AppContext, name: SliceOrRun = None) -> None:
    """Show one slice or run in full.

    Of a run, and of `last`, the newest one: its state with the reason, the attempts, how each worker is, the
    last step, the cost, and what to type next. Where a slice and a run have the same name, this is the slice,
    and `tpuctl runs NAME` the run.
    """
    from tpuctl.money.slice_costs import slice_cost
    from tpuctl.slices.choose import resolve_slice, run_called
    from tpuctl.views.slices import slice_status

    run = None if name is None else run_called(context, name)
    if run is not None:
        show_run(context, run)
        return
    record = resolve_slice(context, name)
    facts = {**slice_status(context, record.name), **slice_cost(context, record)}
    if context.console.json_mode:
        context.console.data(facts)
        return
    workers = facts["workers"]
    context.console.fields(status_lines(facts, context.clock.now()))
    columns = (
        Column("worker", "WORKER", right=True),
        Column("address", "ADDRESS"),
        Column("hostname", "HOST"),
    )
    if workers:
        context.console.line()
        context.console.table(workers, columns)
    if facts["remark"]:
        context.console.warn(facts["remark"])
