"""`watch`: one stateless pass over everything that is wanted."""

from __future__ import annotations

import typer

from tpuctl.cli.app import new_group
from tpuctl.cli.console import Column
from tpuctl.cli.context import open_context
from tpuctl.cli.options import Json, Quiet

app = new_group("Keep slices and runs as they are wanted.")

COLUMNS = (Column("subject", "SUBJECT"), Column("result", "RESULT"), Column("why", "WHY", give=1))


@app.callback()
def watch() -> None:
    """Keep slices and runs as they are wanted."""


@app.command("once")
def once(
    ctx: typer.Context,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Look at every slice and run once, do what is ready to be done, and return."""
    from tpuctl.core.codec import to_data
    from tpuctl.errors import PartialError
    from tpuctl.workflows.fleet import run_pass

    with open_context(ctx) as context:
        lines = run_pass(context)
        failed = [line for line in lines if line.result == "failed"]
        if failed and context.console.json_mode:
            raise PartialError(f"{len(failed)} of {len(lines)} failed", details={"lines": to_data(lines)})
        context.console.table([to_data(line) for line in lines], COLUMNS, empty="nothing to do")
        if failed:
            raise PartialError(f"{failed[0].subject}: {failed[0].why}", hint=f"tpuctl why {failed[0].subject}")
