"""`store`: what the fleet's store keeps, and what of it nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.cli.confirm import confirm
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Yes
from tpuctl.lib.options import Option, argument
from tpuctl.lib.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.engine.ports import KeptLogs
    from tpuctl.state.gc import Waste

COLUMNS = (
    Column("kind", "WHAT"),
    Column("name", "NAME", give=1),
    Column("size", "BYTES"),
    Column("why", "BECAUSE", give=2),
)


def prune(
    context: AppContext,
    older_than: Annotated[
        str | None, Option("Minimum age; the setting prune_after_days if left out.", metavar="DURATION")
    ] = None,
    runs_older_than: Annotated[
        str | None,
        Option("Also runs that ended this long ago, with their manifests; 30d or more.", metavar="DURATION"),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Remove content and records that nothing refers to any more.

    That is: old content that no slice, run or manifest refers to, records of slices gone for 90 days, their
    journals, and the journals of runs that ended 180 days ago; and on this machine logs of runs beyond the
    setting logs_limit_mib. Watchdogs do this once a day. A slice that is
    created again under a pruned name continues its numbering. Runs and manifests are kept unless you ask; those
    of live slices and of fleet files are always kept.
    """
    from tpuctl.runs.log_limit import describe_excess, find_excess, remove_logs
    from tpuctl.state.gc import find_waste
    from tpuctl.state.gc import prune as prune_store
    from tpuctl.state.gc_plan import parse_runs_age

    age_s = _age(context, older_than)
    runs_s = None if runs_older_than is None else parse_runs_age(runs_older_than, "--runs-older-than")
    waste = find_waste(context.store, age_s, runs_after_s=runs_s)
    logs = find_excess(context, context.config.logs_limit_mib)
    if dry_run:
        _show(context, waste, logs, removed=False)
        return
    if waste.blobs or waste.old.journals or waste.old.runs or waste.old.sweeps or logs:
        if not context.console.json_mode:
            _show(context, waste, logs, removed=False)
        also = f", and {describe_excess(logs)} from this machine" if logs else ""
        confirm(context, f"remove {waste.words} from the store{also}?", yes=yes)
    removed = prune_store(context.store, age_s, runs_after_s=runs_s)
    also = remove_logs(context, logs)
    if context.console.json_mode:
        _show(context, removed, logs, removed=True)
    context.console.say(f"removed {removed.words}{f', and {also}' if also else ''}")


def _age(context: AppContext, older_than: str | None) -> float:
    from tpuctl.model.timeouts import PRUNE_AFTER_S
    from tpuctl.state.gc_plan import parse_prune_age

    if older_than is not None:
        return parse_prune_age(older_than, "--older-than")
    return context.config.prune_after_days * 86400.0 or PRUNE_AFTER_S


def _show(context: AppContext, waste: Waste, logs: Sequence[KeptLogs], *, removed: bool) -> None:
    from tpuctl.lib.time import render_moment

    blobs: list[dict[str, Any]] = [
        {
            "kind": "blob",
            "name": blob.sha256 if context.console.json_mode else blob.sha256[:12],
            "size": blob.size,
            "why": f"nothing refers to it; stored {render_moment(blob.written_at or 0.0)}",
        }
        for blob in waste.blobs
    ]
    journals = [
        {
            "kind": "journal",
            "name": subject,
            "size": None,
            "why": f"{counted(len(keys), 'entry', 'entries')} of what is long over",
        }
        for subject, keys in waste.old.journals.items()
    ]
    runs = [
        {"kind": "run", "name": run_id, "size": None, "why": "ended before that; manifests go too"}
        for run_id in waste.old.runs
    ]
    runs += [
        {
            "kind": "sweep",
            "name": key.partition("/")[2],
            "size": None,
            "why": "it is over, and none of its runs stays",
        }
        for key in waste.old.sweeps
    ]
    of_runs = [
        {"kind": "logs", "name": each.run_id, "size": each.size, "why": "the oldest beyond logs_limit_mib"}
        for each in logs
    ]
    rows = [*blobs, *journals, *runs, *of_runs]
    if context.console.json_mode:
        context.console.data({"removed": removed, "kept": waste.blobs_kept, "found": rows})
        return
    context.console.table(rows, COLUMNS, empty="nothing to remove: all of it is in use")


def forget(
    context: AppContext,
    key: Annotated[str, argument("KEY", "Of a damaged record, such as slices/big.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Remove one damaged record from the store.

    The TPU of a slice stays: `tpuctl adopt NAME` takes it over, `tpuctl reap` deletes it. A record that can be
    read is refused.
    """
    from tpuctl.doctor.damage import check_damaged, remove_damaged

    generation = check_damaged(context, key)
    if dry_run:
        context.console.sentence(f"would remove the damaged record {key}")
        return
    confirm(context, f"remove the damaged record {key}?", yes=yes)
    remove_damaged(context, key, generation)
    context.console.say(f"removed {key}")


MACHINES = (
    Column("machine", "MACHINE", give=1),
    Column("user", "USER"),
    Column("enrolled", "LOGS IN"),
    Column("this", "THIS ONE"),
)


def machines(
    context: AppContext,
    remove: Annotated[
        str | None, Option("Remove its key from all hosts, now and in future.", metavar="MACHINE")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """List the machines whose keys hosts accept, or shut one out.

    Passes of any machine bring the keys of live hosts up to date. A machine that was removed comes back only
    with its own `up` or `watch install`; close the store to it as well.
    """
    from tpuctl.slices.enrollment import get_machine, list_machines, remove_machine

    out = remove is not None and get_machine(context, remove).record.removed
    if remove is not None and not dry_run:
        if not out:
            confirm(context, f"remove the key of {remove} from all hosts?", yes=yes)
        gone = remove_machine(context, remove)
        context.console.say(
            f"{remove} is removed; the next pass removes its key from live hosts"
            if gone
            else "nothing to change"
        )
    elif remove is not None:
        told = (
            f"the key of {remove} is removed already"
            if out
            else f"would remove the key of {remove} from all hosts"
        )
        context.console.say(told)
    context.console.table(list_machines(context), MACHINES, empty="no machine is enrolled yet")
