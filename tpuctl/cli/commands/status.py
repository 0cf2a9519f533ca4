"""`tpuctl status`: one slice in full."""

from __future__ import annotations

import typer

from tpuctl.cli.console import Column
from tpuctl.cli.context import open_context
from tpuctl.cli.options import Json, OwnSlice
from tpuctl.cli.slice_status import status_lines


def status(ctx: typer.Context, name: OwnSlice = None, json: Json = False) -> None:  # noqa: ARG001 - acts through its callback
    """Show one slice in full."""
    from tpuctl.money.slice_costs import slice_cost
    from tpuctl.slices.choose import resolve_slice
    from tpuctl.views.slices import slice_status

    with open_context(ctx) as context:
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
