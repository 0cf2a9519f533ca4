"""`tpuctl diff`: what `apply` would change, and why."""

from __future__ import annotations

from tpuctl.cli.context import AppContext
from tpuctl.cli.fleet_changes import File, read_file, show_changes, with_file


def diff(context: AppContext, file: File = None) -> None:
    """Show what `apply` would change, and why.

    Exits with 10 if there is something, with 0 if not.
    """
    from tpuctl.fleet.load import plan_changes
    from tpuctl.fleet.plan import How

    planned, costs = plan_changes(context, read_file(context, file), How())
    show_changes(context, with_file(planned, file), costs)
