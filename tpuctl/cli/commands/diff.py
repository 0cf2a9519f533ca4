"""`tpuctl diff`: what `apply` would change, and why."""

from __future__ import annotations

from tpuctl.cli.context import AppContext
from tpuctl.cli.fleet_changes import read_file, show_changes
from tpuctl.model.requests import ApplyRequest, FleetPath


def diff(context: AppContext, file: FleetPath = None) -> None:
    """Show what `apply` would change, and why.

    Exits with 10 if there is something, with 0 if not.
    """
    from tpuctl.fleet.load import plan_changes

    planned, costs = plan_changes(context, read_file(context, file), ApplyRequest(file))
    show_changes(context, planned, costs)
