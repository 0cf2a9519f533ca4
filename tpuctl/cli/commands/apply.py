"""`apply`, `diff`: the fleet file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.fleet_changes import (
    File,
    LoadedFleet,
    change_row,
    collect_problems,
    load_fleet,
    offer_slice,
    plan_changes,
    raise_problems,
    runs_to_repeat,
    show_changes,
    with_file,
)
from tpuctl.cli.options import DryRun, Json, Quiet, Timeout, Yes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.config.schema import Problem
    from tpuctl.fleet.plan import FleetChange, WantedRun, WantedSlice
    from tpuctl.model.records import SliceSpec


def apply(
    ctx: typer.Context,
    file: File = None,
    replace_: Annotated[
        bool, typer.Option("--replace", help="Take down and ask anew for what is there in another form.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove what came from this file and is no longer in it.")
    ] = False,
    again: Annotated[
        list[str] | None,
        typer.Option("--again", metavar="RUN", help="Repeat this run though it has ended; repeatable."),
    ] = None,
    all_users: Annotated[
        bool, typer.Option("--all-users", help="Also change, --replace and --prune other users' slices.")
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Ask for everything and return at once.")] = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Create and change what the fleet file describes.

    Requests slices, submits runs, and waits until they are there. The same file again changes nothing. What
    is there in another form is a conflict, and then nothing is applied. A run that has ended is not repeated.
    """
    from tpuctl.fleet.plan import How

    with open_context(ctx) as context:
        loaded = load_fleet(context, file)
        how = How(replace=replace_, prune=prune, all_users=all_users, again=runs_to_repeat(loaded, again))
        planned, costs = plan_changes(context, loaded, how)
        changes = with_file(planned, file)
        if dry_run:
            show_changes(context, changes, costs)
            return
        _carry_out(context, loaded, changes, yes=yes, wait=not no_wait, timeout=timeout)


def _check_quotas(context: AppContext, loaded: LoadedFleet, changes: Sequence[FleetChange]) -> None:
    """Compares all new slices of a zone with the side quotas before any is asked for. Raises QuotaError."""
    from tpuctl.fleet.plan import Change, Kind
    from tpuctl.money.quota_report import check_side_quotas

    new = {c.name for c in changes if c.kind is Kind.SLICE and c.change is Change.CREATE}
    together: dict[tuple[str, bool], SliceSpec] = {}
    for item in loaded.wanted.slices:
        place = (item.spec.zone, item.spec.external_ips)
        if item.name in new and place in together:
            sum_ = together[place]
            hosts, slices = sum_.hosts + item.spec.hosts, sum_.slices + item.spec.slices
            together[place] = replace(sum_, hosts=hosts, slices=slices)
        elif item.name in new:
            together[place] = item.spec
    for (zone, _), spec in together.items():
        check_side_quotas(context, f"what is new in {zone}", [spec])


def _carry_out(
    context: AppContext,
    loaded: LoadedFleet,
    changes: Sequence[FleetChange],
    *,
    yes: bool,
    wait: bool,
    timeout: float | None,
) -> None:
    from tpuctl.cli.following import warn_if_unwatched
    from tpuctl.cli.run_code import frozen_code
    from tpuctl.fleet.apply import Order, apply_fleet, refuse_conflicts
    from tpuctl.fleet.plan import DESTRUCTIVE, Change

    def permit(item: WantedSlice) -> None:
        offer = offer_slice(context, item)
        offer.check()
        offer.accept()

    refuse_conflicts(changes)
    _check_runs(context, loaded, changes)
    _check_quotas(context, loaded, changes)
    _ = context.credentials
    for change in changes:
        if change.change is not Change.NONE or change.hint:
            context.console.say(f"{change.subject}: {change.change} ({change.why})")
    destroyed = [f"{c.change} {c.subject}" for c in changes if c.change in DESTRUCTIVE]
    if destroyed:
        confirm(context, f"{', '.join(destroyed)}, and lose everything on the hosts?", yes=yes)
    context.shared.if_interrupted = (
        "what was asked for stands and may cost money: `tpuctl apply` goes on, `tpuctl ls` shows it"
    )
    order = Order(loaded.wanted, {name: frozen_code(code) for name, code in loaded.code.items()}, permit)
    deadline = None if timeout is None else context.clock.now() + timeout
    context.emit.show_only(())  # what runs wrote is for `tpuctl logs`
    apply_fleet(context, order, changes, wait=wait, deadline=deadline)
    context.emit.close()
    if loaded.wanted.slices or loaded.wanted.runs:
        warn_if_unwatched(context, f"fleet {loaded.wanted.name}", detached=True)
    _conclude(context, loaded, changes, wait=wait)


def _check_runs(context: AppContext, loaded: LoadedFleet, changes: Sequence[FleetChange]) -> None:
    """What a new run needs outside of the file: secrets, and the bucket for its checkpoints."""
    from tpuctl.fleet.plan import Change, Kind
    from tpuctl.runs.submit import check_request

    new = {c.name for c in changes if c.kind is Kind.RUN and c.change in {Change.CREATE, Change.REPLACE}}
    problems: list[Problem] = []
    zones = {each.name: each.zones or (each.spec.zone,) for each in loaded.wanted.slices}
    for run in loaded.wanted.runs:
        if run.name in new:

            def check(run: WantedRun = run) -> None:
                check_request(context, run.request, zones.get(run.request.slice_name, ()))

            collect_problems(loaded.file, problems, ("runs", run.name), check)
    raise_problems(loaded.file.path, problems)


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
