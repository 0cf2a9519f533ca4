"""Following a run from the command line: its output, Ctrl-C, and how it ended.

A viewer never acts on what it shows: Ctrl-C in `run`, `attach` and `logs --follow` leaves, the run goes on, and
only `stop` ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.cli.context import AppContext
from tpuctl.errors import DeniedError, TpuctlError
from tpuctl.model.records import RunRecord

if TYPE_CHECKING:
    from tpuctl.model.requests import LaunchRequest, RerunRequest
    from tpuctl.runs.submit import Submission

FIRST_PASS_S = 150.0
"""After so long a watchdog that was installed has made its first pass, or something is in its way."""


def submit_and_follow(
    context: AppContext,
    submission: Submission,
    run_id: str,
    asked: LaunchRequest | RerunRequest,
    *,
    since: float,
    timeout: float | None,
) -> None:
    """Writes the run down and follows it, or leaves it if that is asked. `since`: when it was asked for."""
    from tpuctl.runs.chips import describe_chips
    from tpuctl.runs.submit import refused_run, submit_run

    context.emit.show_only(())  # nothing of an earlier run that ended while nobody looked
    try:
        record = submit_run(context, submission, run_id, named=asked.name is not None)
    finally:
        context.emit.show_only(None)
    again = f", a rerun of {submission.rerun_of}" if submission.rerun_of else ""
    chips = describe_chips(record.chips)
    context.console.say(f"run {record.id} on {f'{chips} of ' if chips else ''}{record.slice_name}{again}")
    try:
        follow_or_leave(context, record, detach=asked.detach, timeout=timeout)
    except DeniedError as error:
        raise refused_run(context, record, error, since=since) from error


def follow_or_leave(context: AppContext, record: RunRecord, *, detach: bool, timeout: float | None) -> None:
    """Follows the run to its end, or with `detach` only until every worker runs it."""
    from tpuctl.runs.follow import is_first_to_restart, start_run
    from tpuctl.runs.reconcile import run_error

    with context.interruptible(goes_on(record.id)):
        make_room_for_logs(context)
        if record.cluster is not None:
            _follow_on_cluster(context, record, detach=detach, timeout=timeout)
            return
        if not detach:
            if is_first_to_restart(context, record):
                warn_if_unwatched(context, f"run {record.id}", detached=False)
            follow(context, record.id, timeout=timeout)
            return
        deadline = context.deadline(timeout)
        started = start_run(context, record.id, deadline=deadline)
        context.emit.close()
        error = run_error(started, f"tpuctl logs {record.id}") if started.state.final else None
        if error is not None:
            raise error
        print_run(context, record.id)
        context.console.say(f"`tpuctl attach {record.id}` follows it")
        warn_if_unwatched(context, f"run {record.id}", detached=True)


def _follow_on_cluster(context: AppContext, record: RunRecord, *, detach: bool, timeout: float | None) -> None:
    """The same for a run that JobSet keeps up, and no watchdog: with `detach` until its JobSet is there."""
    from tpuctl.kube.reconcile import start_cluster_run

    if not detach:
        follow(context, record.id, timeout=timeout)
        return
    start_cluster_run(context, record, deadline=context.deadline(timeout))
    context.emit.close()
    print_run(context, record.id)
    context.console.say(f"`tpuctl attach {record.id}` follows it")


def make_room_for_logs(context: AppContext) -> None:
    """Removes logs beyond the limit of this machine, and says so. Trouble with that ends nothing."""
    from tpuctl.runs.log_limit import find_excess, remove_logs

    limit = context.config.logs_limit_mib
    try:
        removed = remove_logs(context, find_excess(context, limit))
    except (TpuctlError, OSError) as error:
        context.console.warn(f"no room was made for logs: {error}")
        return
    if removed:
        context.console.say(
            f"removed {removed}: logs_limit_mib is {limit}; `tpuctl keep RUN` keeps those of a run"
        )


def goes_on(run_id: str) -> str:
    """What Ctrl-C says of a run that was being followed."""
    return f"run {run_id} goes on: `tpuctl attach {run_id}` follows it, `tpuctl stop {run_id}` ends it"


def warn_if_unwatched(context: AppContext, what: str, *, detached: bool) -> None:
    """Says aloud when `what` would not come back after a preemption."""
    from tpuctl.watch.cycle import why_unwatched
    from tpuctl.watch.heartbeat import INSTALL_HINT

    unwatched = why_unwatched(context)
    if unwatched is not None:
        why, hint = unwatched
        age = _installed_for(context) if hint == INSTALL_HINT else None
        if age is not None and age < FIRST_PASS_S:
            context.console.say(
                f"{what}: the watchdog is installed; `tpuctl watch status` shows its first pass"
            )
            return
        if age is not None:
            hint = "tpuctl watch status"
        when = "after a preemption" if detached else "once this terminal is closed"
        context.console.alarm(f"{what} will not be restored {when}: {why}", hint)


def _installed_for(context: AppContext) -> float | None:
    """For how many seconds a watchdog has been installed on this machine; None where none is."""
    from tpuctl.watch.install.installer import installed_at

    at = installed_at(context.config)
    return None if at is None else context.clock.now() - at


def follow(context: AppContext, run_id: str, *, timeout: float | None) -> None:
    """Streams a run until it is over. Raises what it amounts to when it did not succeed."""
    from tpuctl.runs.follow import follow_run
    from tpuctl.runs.reconcile import run_error
    from tpuctl.state.repository import get_run

    deadline = context.deadline(timeout)
    record = get_run(context, run_id).record
    if record.cluster is not None:
        from tpuctl.kube.reconcile import follow_cluster_run

        record = follow_cluster_run(context, record, deadline=deadline)
    else:
        record = follow_run(context, run_id, deadline=deadline)
    context.emit.close()
    error = run_error(record, f"tpuctl logs {run_id}")
    if error is not None:
        raise error
    print_run(context, run_id)


def print_run(context: AppContext, run_id: str) -> None:
    """One line, or one object, about how a run stands."""
    from tpuctl.state.repository import get_run
    from tpuctl.views.runs import run_row

    row = run_row(context, get_run(context, run_id).record)
    if context.console.json_mode:
        context.console.data(row)
    else:
        reason = f": {row['reason']}" if row["reason"] not in ("", row["state"]) else ""
        context.console.say(f"run {run_id} {row['state']}{reason} (attempts: {row['attempts']})")
