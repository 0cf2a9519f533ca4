"""`config`: what is set, and by what."""

from __future__ import annotations

import typer

from tpuctl.cli.app import new_group
from tpuctl.cli.console import Column
from tpuctl.cli.context import open_context
from tpuctl.cli.options import Json

app = new_group("Show settings and where each came from.")


@app.callback()
def config() -> None:
    """Show settings and where each came from."""


@app.command("show")
def show(ctx: typer.Context, json: Json = False) -> None:  # noqa: ARG001 - acts through its callback
    """Print every setting with its value and the place that set it."""
    from tpuctl.core.settings import BY_NAME
    from tpuctl.core.settings import show as settings_of

    with open_context(ctx) as context:
        rows = [
            {"name": name, "value": value, "origin": origin, "env": BY_NAME[name].env}
            for name, value, origin in settings_of(context.config)
        ]
        columns = (
            Column("name", "SETTING"),
            Column("value", "VALUE", give=1),
            Column("origin", "FROM", give=2),
        )
        context.console.table(rows, columns)
