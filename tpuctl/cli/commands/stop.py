"""`tpuctl stop`: end a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext
from tpuctl.cli.following import print_run
from tpuctl.cli.options import DryRun, RunId, Timeout, Yes
from tpuctl.errors import UsageError
from tpuctl.lib.options import Option

if TYPE_CHECKING:
    from tpuctl.model.records import RunRecord


def stop(
    context: AppContext,
    run_id: RunId = "last",
    group: Annotated[
        str | None, Option("A sweep: no more of its rows, and the end of all its runs.", metavar="NAME")
    ] = None,
    grace: Annotated[
        float | None, Option("Seconds between SIGTERM and SIGKILL.", metavar="SECONDS", minimum=0)
    ] = None,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Stop a run.

    Every process of the run gets SIGTERM, and SIGKILL after the grace period. The JobSet of a run on a
    cluster is deleted, and it waits until its pods are gone.
    """
    if group is not None:
        _stop_group(context, group, timeout=timeout, dry_run=dry_run, yes=yes)
        return
    from tpuctl.runs.follow import stop_run
    from tpuctl.runs.stops import confirm_stop, stop_error
    from tpuctl.state.repository import get_run, list_runs

    record = get_run(context, run_id).record
    if run_id == "last" and record.state.final:
        going = [each.id for each in list_runs(context) if not each.state.final]
        if going:
            raise UsageError(
                f"the newest run, {record.id}, is over; running: {', '.join(going)}",
                hint=f"tpuctl stop {going[0]}",
            )
    if dry_run:
        _show_stop(context, record)
        return
    if record.cluster is not None and grace is not None:
        raise UsageError("--grace is for runs on slices: pods have that of their JobSet", hint="leave it out")
    if not record.state.final:
        confirm(context, f"stop run {record.id}?", yes=yes)
    with context.interruptible(f"the stop goes on: `tpuctl attach {record.id}` waits for the end"):
        context.emit.show_only(())  # what it wrote is for `tpuctl logs`
        deadline = context.deadline(timeout)
        if record.cluster is not None:
            from tpuctl.kube.reconcile import stop_cluster_run

            stop_cluster_run(context, record, deadline=deadline)
            context.emit.close()
            print_run(context, record.id)
            return
        stopped = stop_run(context, record.id, grace_s=grace, deadline=deadline)
        if record.state.final:
            stopped = confirm_stop(context, record.id)
        context.emit.close()
        error = stop_error(context, stopped)
        if error is not None:
            raise error
        print_run(context, record.id)


def _stop_group(context: AppContext, group: str, *, timeout: float | None, dry_run: bool, yes: bool) -> None:
    from tpuctl.cli.sweeping import print_sweep
    from tpuctl.runs.sweep import follow_sweep, get_sweep, progress_of, stop_sweep

    progress = progress_of(context, get_sweep(context, group))
    said = progress.said
    if dry_run:
        rows = {
            "under_way": len(progress.active),
            "to_come": len(progress.pending),
            "over": len(progress.ended),
        }
        facts = {"dry_run": True, "group": group, **rows}
        context.console.sentence(f"would stop sweep {group}: {said}", facts)
        return
    confirm(context, f"stop sweep {group} ({said})?", yes=yes)
    with context.interruptible(f"the stop goes on: `tpuctl stop --group {group}` waits for the end"):
        context.emit.show_only(())
        stop_sweep(context, group)
        follow_sweep(context, group, deadline=context.deadline(timeout))
        context.emit.close()
    print_sweep(context, group)


def _show_stop(context: AppContext, record: RunRecord) -> None:
    over = record.state.final
    told = f"run {record.id} is over: it {record.state}" if over else f"would stop run {record.id}"
    facts = {"dry_run": True, "id": record.id, "state": record.state, "would_stop": not over}
    context.console.sentence(f"{told}{'' if over else f' ({record.state})'}", facts)
