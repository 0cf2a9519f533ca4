"""`tpuctl apply`: what the fleet file describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext
from tpuctl.cli.fleet_changes import change_row, read_file, show_changes
from tpuctl.cli.options import DryRun, Force, Timeout, Yes
from tpuctl.lib.options import Option
from tpuctl.model.requests import ApplyRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.fleet.load import LoadedFleet
    from tpuctl.fleet.plan import FleetChange


def apply(
    context: AppContext,
    request: ApplyRequest,
    no_wait: Annotated[bool, Option("Request everything and return at once.")] = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Create and change what the fleet file describes.

    Requests slices, submits runs, and waits until they are there. The same file again changes nothing. If
    something exists with another specification, nothing is applied. A run that has ended is not repeated.
    """
    from tpuctl.fleet.load import plan_changes

    loaded = read_file(context, request.file)
    changes, costs = plan_changes(context, loaded, request)
    if dry_run:
        show_changes(context, changes, costs)
        return
    _carry_out(context, loaded, changes, yes=yes, wait=not no_wait, timeout=timeout, force=force)


def _carry_out(
    context: AppContext,
    loaded: LoadedFleet,
    changes: Sequence[FleetChange],
    *,
    yes: bool,
    wait: bool,
    timeout: float | None,
    force: bool,
) -> None:
    from tpuctl.cli.following import warn_if_unwatched
    from tpuctl.fleet.apply import apply_fleet, refuse_conflicts
    from tpuctl.fleet.load import check_new
    from tpuctl.fleet.plan import Change

    refuse_conflicts(changes)
    check_new(context, loaded, changes)
    context.require_credentials()
    for change in changes:
        if change.change is not Change.NONE or change.hint:
            context.console.say(f"{change.subject}: {change.change} ({change.why})")
    destroyed = [f"{c.change} {c.subject}" for c in changes if c.destroys]
    if destroyed:
        confirm(context, f"{', '.join(destroyed)}, and lose everything on the hosts?", yes=yes)
    with context.interruptible(
        "what was asked for stands and may cost money: `tpuctl apply` goes on, `tpuctl ls` shows it"
    ):
        deadline = context.deadline(timeout)
        context.emit.show_only(())  # what runs wrote is for `tpuctl logs`
        apply_fleet(context, loaded.wanted, loaded.code, changes, wait=wait, deadline=deadline, may_lose=force)
        context.emit.close()
        if loaded.wanted.slices or loaded.wanted.runs:
            warn_if_unwatched(context, f"fleet {loaded.wanted.name}", detached=True)
        _conclude(context, loaded, changes, wait=wait)


def _conclude(context: AppContext, loaded: LoadedFleet, changes: Sequence[FleetChange], *, wait: bool) -> None:
    if context.console.json_mode:
        context.console.data(
            {"fleet": loaded.wanted.name, "changes": [change_row(change) for change in changes]}
        )
        return
    slices, runs = len(loaded.wanted.slices), len(loaded.wanted.runs)
    counted = f"{slices} slice{'s' * (slices != 1)}, {runs} run{'s' * (runs != 1)}"
    state = "is as the file says" if wait else "is on its way; `tpuctl watch once` keeps it going"
    context.console.say(f"fleet {loaded.wanted.name} {state}: {counted}")
