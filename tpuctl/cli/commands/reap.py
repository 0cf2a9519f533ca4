"""`reap`: delete what is ours and unwanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.confirm import confirm, confirm_all_users
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import AllUsers, Confirm, DryRun, Force, Yes
from tpuctl.errors import PartialError, TpuctlError
from tpuctl.lib.options import Option

if TYPE_CHECKING:
    from tpuctl.disks.unused import UnusedDisks
    from tpuctl.inventory.reap import Reaped, TpuSurvey

COLUMNS = (
    Column("fate", "FATE"),
    Column("kind", "WHAT"),
    Column("name", "NAME", give=1),
    Column("zone", "ZONE", whole=True),
    Column("user", "USER", give=2),
    Column("why", "BECAUSE", give=3),
)
DEFAULT_TIMEOUT_S = 1200.0
"""Deleting a large slice takes minutes; an operation that takes longer than this has failed."""


def reap(
    context: AppContext,
    all_users: AllUsers = False,
    confirm_project: Confirm = None,
    timeout: Annotated[
        float, Option("Stop waiting after this long.", metavar="SECONDS", minimum=0)
    ] = DEFAULT_TIMEOUT_S,
    dry_run: DryRun = False,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Delete TPUs of yours that no slice uses any more.

    Looks in all zones, and deletes until the cloud says not-found. Acts on what carries the labels of this
    fleet and of you. What only looks like yours is listed, and so are disks of yours that nobody uses. A TPU
    whose hosts can write a disk is deleted with --force only.
    """
    from tpuctl.inventory.reap import caller_of, survey
    from tpuctl.inventory.reap import reap as reap_them
    from tpuctl.inventory.resources import Fate

    if all_users and not dry_run:
        confirm_all_users(context, confirm_project)
    found = survey(context, all_users=all_users)
    unused = _unused(context)
    doomed = found.of(Fate.DELETE)
    if dry_run or not doomed:
        _show(context, found, unused, [])
    else:
        _show_table(context, found, unused)
        names = ", ".join(each.found.name for each in doomed)
        confirm(context, f"delete {names} and everything on their hosts?", yes=yes)
        with context.interruptible(
            "what is being deleted goes on: `tpuctl reap` looks again and does the rest"
        ):
            deadline = context.clock.now() + timeout
            caller = caller_of(context, all_users=all_users)
            results = reap_them(context, doomed, caller, deadline=deadline, may_lose=force)
            context.emit.close()
            _show(context, found, unused, results)
            _raise_for(context, results)


def _unused(context: AppContext) -> UnusedDisks:
    """Disks do not keep TPUs from being deleted."""
    from tpuctl.disks.unused import UnusedDisks, unused_disks

    try:
        unused = unused_disks(context)
    except TpuctlError as error:
        context.console.caveat(f"not read: disks: {error.message}")
        return UnusedDisks()
    if unused.unread:
        where = ", ".join(unused.unread)
        context.console.caveat(f"not read: disks in {where}; whether they are used is unknown")
    return unused


def _raise_for(context: AppContext, results: list[Reaped]) -> None:
    from tpuctl.inventory.reap import ReapResult

    left = [each for each in results if each.result not in (ReapResult.GONE, ReapResult.KEPT)]
    if left and context.console.json_mode:
        raise typer.Exit(PartialError.exit_code)
    if left:
        unsaved = any(each.result is ReapResult.UNSAVED for each in left)
        said = "; ".join(f"{each.found.name}: {each.result}, {each.why}" for each in left[:4])
        raise PartialError(
            f"{len(left)} of {len(results)} are not gone: {said}",
            hint="tpuctl reap --force deletes them with what may be lost" if unsaved else "tpuctl reap",
            details={"left": [each.found.name for each in left]},
        )


def _show(context: AppContext, found: TpuSurvey, unused: UnusedDisks, results: list[Reaped]) -> None:
    """What was found; with `results`, what became of it."""
    if context.console.json_mode:
        _show_json(context, found, unused, results)
        return
    if not results:
        _show_table(context, found, unused)
        return
    from tpuctl.inventory.reap import ReapResult

    for each in results:
        why = "" if each.result is ReapResult.GONE else f", {each.why}"
        context.console.say(f"{each.found.name}: {each.result}{why}")


def _show_table(context: AppContext, found: TpuSurvey, unused: UnusedDisks) -> None:
    from tpuctl.disks.unused import cost_in_words
    from tpuctl.inventory.resources import Fate

    if context.console.json_mode:
        return
    shown = found.of(*(fate for fate in Fate if fate not in (Fate.WANTED, Fate.UNMANAGED)))
    rows = [_row(each, "") for each in shown]
    context.console.table(rows, COLUMNS, empty="nothing of yours to delete")
    if unused.found:
        names, cost = ", ".join(each.name for each in unused.found), cost_in_words(unused.found)
        commands = "; ".join(dict.fromkeys(each.command for each in unused.found))
        context.console.warn(f"nobody uses {names}, {cost}; left alone: {commands}")
    for each in found.of(Fate.LOOKALIKE):
        command = f"tpuctl adopt {each.found.name} --zone {each.found.location}"
        context.console.say(
            f"{each.found.name} looks like ours, unlabelled: left alone; {command} takes it over"
        )
    if found.unread:
        context.console.caveat(f"not read: {', '.join(found.unread)}; nothing there was touched")


def _show_json(context: AppContext, found: TpuSurvey, unused: UnusedDisks, results: list[Reaped]) -> None:
    from tpuctl.lib.codec import to_data

    became = {each.found.place: each.result for each in results}
    rows = [_row(each, became.get(each.found.place, "")) for each in found.judged]
    disks = [to_data(each) for each in unused.found]
    unread = [*found.unread, *(f"disks in {zone}" for zone in unused.unread)]
    context.console.data({"found": rows, "unused_disks": disks, "not_read": unread})


def _row(judged: Any, result: str) -> dict[str, Any]:
    found = judged.found
    return {
        "fate": str(judged.fate),
        "kind": found.kind,
        "name": found.name,
        "zone": found.location,
        "state": found.state,
        "type": found.type,
        "user": found.user,
        "why": judged.why,
        "result": result or None,
    }
