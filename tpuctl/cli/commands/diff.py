"""`tpuctl diff`: what `apply` would change, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tpuctl.cli.context import open_context
from tpuctl.cli.fleet_changes import File, load_fleet, plan_changes, show_changes, with_file
from tpuctl.cli.options import Json

if TYPE_CHECKING:
    pass


def diff(
    ctx: typer.Context,
    file: File = None,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Show what `apply` would change, and why.

    Exits with 10 if there is something, with 0 if not.
    """
    from tpuctl.fleet.plan import How

    with open_context(ctx) as context:
        planned, costs = plan_changes(context, load_fleet(context, file), How())
        show_changes(context, with_file(planned, file), costs)
