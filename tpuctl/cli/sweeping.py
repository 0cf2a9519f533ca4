"""`tpuctl run --matrix` from the command line: what it takes, the question, and its rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext
from tpuctl.cli.following import make_room_for_logs, warn_if_unwatched
from tpuctl.errors import UsageError
from tpuctl.model.requests import LaunchRequest
from tpuctl.model.run_spec import RunRequest
from tpuctl.model.slice_spec import SliceRequest

if TYPE_CHECKING:
    from tpuctl.runs.sweep_record import SweepRecord
    from tpuctl.runs.sweep_request import PreparedSweep

ASKS_FROM = 200
"""A grid with more rows is rarely meant as it is written."""


def run_sweep(
    context: AppContext,
    request: RunRequest,
    launch: LaunchRequest,
    capacity: SliceRequest,
    *,
    timeout: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Runs each row of a grid, or goes on with that."""
    from tpuctl.runs.sweep import advance_sweep, follow_sweep, request_sweep
    from tpuctl.runs.sweep_record import SweepRecord
    from tpuctl.runs.sweep_request import freeze_sweep, prepare_sweep

    _check_together(request, launch)
    found = prepare_sweep(context, context.config, request, launch, capacity, Path.cwd())
    if dry_run:
        _show(context, found)
        return
    if isinstance(found, SweepRecord):
        sweep = found
        if said := _ended(sweep):
            context.console.say(f"would {said}")
    else:
        if found.submission.wanted is not None:
            context.require_credentials()
        context.console.say(found.price)
        if len(found.rows) > ASKS_FROM:
            confirm(context, f"start {found.price}?", yes=yes)
        sweep = request_sweep(context, freeze_sweep(context, found))
    group = sweep.group
    with context.interruptible(
        f"sweep {group} goes on with passes of the watchdog: the same command follows it, "
        f"`tpuctl stop --group {group}` ends it"
    ):
        make_room_for_logs(context)
        context.emit.show_only(())  # what they write is for `tpuctl logs`
        if launch.detach:
            advance_sweep(context, group)
            warn_if_unwatched(context, f"sweep {group}", detached=True)
        else:
            follow_sweep(context, group, deadline=context.deadline(timeout))
        context.emit.close()
    print_sweep(context, group)


def print_sweep(context: AppContext, group: str) -> None:
    """How its rows stand: in one line, or as `tpuctl runs --group` has them."""
    from tpuctl.runs.sweep import get_sweep, progress_of
    from tpuctl.views.runs import run_rows

    if context.console.json_mode:
        context.console.data(run_rows(context, group))
        return
    said = progress_of(context, get_sweep(context, group)).said
    context.console.say(f"sweep {group}: {said}; `tpuctl runs --group {group}` lists them")


def _check_together(request: RunRequest, launch: LaunchRequest) -> None:
    """Raises UsageError for what one run has and a grid of runs cannot."""
    given = {
        "--name": launch.name,
        "--keep": launch.keep,
        "--smoke": launch.smoke,
        "--worker": launch.worker,
        "--chip": request.chip,
    }
    for flag, value in given.items():
        if value:
            hint = "--chips 1 gives each run a chip" if flag == "--chip" else f"leave out {flag}"
            raise UsageError(f"{flag} is for one run, and --matrix makes several", hint=hint)


def _ended(sweep: SweepRecord) -> str:
    """That a sweep which is there begins nothing more; empty where it does."""
    how = "was stopped" if sweep.stopped else "is over"
    ends = sweep.stopped or sweep.over
    return f"begin nothing: sweep {sweep.group} {how}; --group ANOTHER runs its rows anew" if ends else ""


def _show(context: AppContext, found: PreparedSweep | SweepRecord) -> None:
    """What --dry-run prints."""
    from tpuctl.runs.sweep_record import SweepRecord
    from tpuctl.slices.bring_up import Price

    if isinstance(found, SweepRecord):
        would = (
            {"would": _ended(found)} if found.over or found.stopped else {"would go on with": len(found.rows)}
        )
        context.console.fields({"dry_run": True, "group": found.group, **would})
        return
    wanted = found.submission.wanted
    price = {} if wanted is None else {"each slice": Price(context, wanted).line.replace("\n  ", "; ")}
    rows = [f"{row.run_id}: {', '.join(row.tags)}" for row in found.rows]
    facts = {"would take": found.price, **price, "rows": rows}
    context.console.fields({"dry_run": True, "group": found.group, **facts})
