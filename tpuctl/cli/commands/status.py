"""`tpuctl status`: one slice or one run in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import SliceOrRun
from tpuctl.cli.run_status import show_run
from tpuctl.cli.slice_status import status_lines
from tpuctl.errors import NotFoundError
from tpuctl.lib.text import suggest

if TYPE_CHECKING:
    from tpuctl.model.records import RunRecord


def status(context: AppContext, name: SliceOrRun = None) -> None:
    """Show one slice or run in full.

    Of a run, and of `last`, the newest one: its state with the reason, the attempts, how each worker is, the
    last step, the cost, and what to type next. Where a slice and a run have the same name, this is the slice,
    and `tpuctl runs NAME` the run.
    """
    from tpuctl.money.slice_costs import slice_cost
    from tpuctl.slices.choose import resolve_slice
    from tpuctl.views.slices import slice_status

    run = None if name is None else _run_called(context, name)
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


def _run_called(context: AppContext, name: str) -> RunRecord | None:
    """The run that `name` means; None where it is a slice. Raises NotFoundError where it is neither."""
    from tpuctl.model.records import SliceState
    from tpuctl.state.repository import (
        find_run,
        find_slice,
        get_run,
        known_names,
        readable_runs,
        readable_slices,
    )

    slice_ = find_slice(context, name)
    if slice_ is not None and slice_.record.state is not SliceState.GONE:
        return None
    found = get_run(context, name) if name == "last" else find_run(context, name)
    if found is None and slice_ is None:
        records = readable_slices(context)[0]
        near = suggest(name, [each.name for each in records] + [run.id for run in readable_runs(context)[0]])
        hint = f"did you mean {near}? " if near else ""
        raise NotFoundError(
            f"no slice or run called {name} (known: {known_names(records)})",
            hint=f"{hint}`tpuctl ls` and `tpuctl runs` list them",
        )
    return None if found is None else found.record
