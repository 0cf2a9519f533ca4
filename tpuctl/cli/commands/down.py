"""`tpuctl down`: take slices down until nothing is left in the cloud."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tpuctl.cli.completion import slice_names
from tpuctl.cli.confirm import confirm, confirm_all_users
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import AllUsers, Confirm, DryRun, Force, Timeout, Yes
from tpuctl.lib.options import Flag, Option, argument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.model.records import SliceRecord


def down(
    context: AppContext,
    names: Annotated[
        list[str] | None, argument("NAME...", "Names of the slices.", complete=slice_names)
    ] = None,
    every: Annotated[
        bool, Option("All slices of yours, but for those that were adopted.", flags=(Flag("--all"),))
    ] = False,
    no_wait: Annotated[bool, Option("Request the deletion and return.")] = False,
    timeout: Timeout = None,
    all_users: AllUsers = False,
    confirm_project: Confirm = None,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Delete slices, and wait until nothing is left in the cloud.

    Stops their runs and fetches the logs first. What programs wrote on disks and mounts is saved, or the slice
    stays.
    """
    from tpuctl.slices.desired import check_owner
    from tpuctl.state.repository import get_slice

    _check_chosen(names or [], every=every, all_users=all_users)
    names = _all_of_ours(context) if every else list(names or [])
    if not names:
        context.console.answer([], "you have no slice")
        return
    records = [get_slice(context, name).record for name in names]
    check_owner(context, records, all_users=all_users)
    if all_users and not dry_run:
        confirm_all_users(context, confirm_project)
    if dry_run:
        _show_what_goes(context, records)
        return
    if not yes:
        confirm(context, _what_goes(context, names), yes=False)
    again = f"tpuctl down {' '.join(names)} --yes"
    with context.interruptible(f"what is being deleted goes on: `{again}` waits for it and does the rest"):
        context.emit.show_only(())  # what runs wrote is for `tpuctl logs`
        deadline = context.deadline(timeout)
        _delete(context, names, wait_for_end=not no_wait, deadline=deadline, all_users=all_users, force=force)


def _delete(
    context: AppContext,
    names: Sequence[str],
    *,
    wait_for_end: bool,
    deadline: float | None,
    all_users: bool,
    force: bool,
) -> None:
    """Asks for all deletions before it waits for one. Raises what refused one, when the others are done."""
    from tpuctl.errors import ConflictError, UnreachableError
    from tpuctl.model.verdict import render_wait
    from tpuctl.runs.take_down import take_down
    from tpuctl.slices.reconcile import request_deletion, wait_until_gone

    left, refused = {}, {}
    for name in names:
        try:
            take_down(context, name, wait=False, deadline=deadline, all_users=all_users, may_lose=force)
            left[name] = request_deletion(context, name, deadline=deadline)
        except (ConflictError, UnreachableError) as error:
            refused[name] = error
    if refused and not left:
        raise next(iter(refused.values()))
    results = []
    for name, wait in left.items():
        if wait_for_end:
            wait_until_gone(context, name, deadline=deadline)
        if wait_for_end or wait is None:
            said, gone = "gone", True
        else:
            said, gone = render_wait(wait.why, coming=wait.coming), False
        context.console.say(f"{name}: {said}")
        results.append({"name": name, "gone": gone})
    if refused:
        raise next(iter(refused.values()))
    if context.console.json_mode:
        context.console.data(results[0] if len(results) == 1 else results)


def _check_chosen(names: Sequence[str], *, every: bool, all_users: bool) -> None:
    """Raises UsageError for names beside --all, and for neither."""
    from tpuctl.errors import UsageError

    if every and (names or all_users):
        other = "--all-users" if all_users else "names"
        raise UsageError(f"--all means all slices of yours: {other} exclude it", hint="tpuctl down --all")
    if not names and not every:
        raise UsageError(
            "missing argument: which slices?", hint="`tpuctl down --help`; --all means all of yours"
        )


def _all_of_ours(context: AppContext) -> list[str]:
    """The slices of this user that tpuctl made; those that were adopted are named and stay."""
    from tpuctl.model.records import SliceState
    from tpuctl.state.repository import list_slices

    live = [
        record
        for record in list_slices(context)
        if record.owner == context.user and record.state is not SliceState.GONE
    ]
    by_hand = [record.name for record in live if record.by_hand]
    if by_hand:
        context.console.warn(f"{', '.join(by_hand)}: made by hand and adopted; `tpuctl down NAME` deletes it")
    return [record.name for record in live if not record.by_hand]


def _live_runs(context: AppContext, names: Sequence[str]) -> dict[str, list[str]]:
    """The runs that are not over, by slice."""
    from tpuctl.state.repository import readable_runs

    found: dict[str, list[str]] = {name: [] for name in names}
    for run in readable_runs(context)[0]:
        if run.slice_name in found and not run.state.final:
            found[run.slice_name].append(run.id)
    return found


def _what_goes(context: AppContext, names: Sequence[str]) -> str:
    """The question before slices are taken down, with the runs that would be lost."""
    whose = "its" if len(names) == 1 else "their"
    runs = [run for each in _live_runs(context, names).values() for run in each]
    stopped = f", and stop run{'s' if len(runs) > 1 else ''} {', '.join(runs)}" if runs else ""
    return f"delete {', '.join(names)} and everything on {whose} hosts{stopped}?"


def _show_what_goes(context: AppContext, records: list[SliceRecord]) -> None:
    runs = _live_runs(context, [record.name for record in records])
    rows = [
        {
            "name": record.name,
            "node": record.incarnation.cloud_name if record.incarnation else "",
            "zone": record.spec.zone,
            "state": str(record.state),
            "stops": ", ".join(runs[record.name]),
        }
        for record in records
    ]
    columns = (
        Column("name", "WOULD DELETE"),
        Column("node", "NODE"),
        Column("zone", "ZONE", whole=True),
        Column("state", "STATE"),
        Column("stops", "STOPS RUN", give=1),
    )
    context.console.table(rows, columns)
