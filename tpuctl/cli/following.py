"""Following a run from the command line: its output, Ctrl-C, and how it ended.

A viewer never acts on what it shows: Ctrl-C in `run`, `attach` and `logs --follow` leaves, the run goes on, and
only `stop` ends it.
"""

from __future__ import annotations

from tpuctl.cli.context import AppContext
from tpuctl.cli.invocation import Invocation
from tpuctl.model.records import RunRecord


def follow_or_leave(
    context: AppContext, shared: Invocation, record: RunRecord, *, detach: bool, timeout: float | None
) -> None:
    """Follows the run to its end, or with `detach` only until every worker runs it."""
    from tpuctl.runs.follow import start_run
    from tpuctl.runs.reconcile import run_error

    shared.if_interrupted = goes_on(record.id)
    if not detach:
        if record.spec.policy.restarts and not record.state.final and _is_first_there(context, record):
            warn_if_unwatched(context, f"run {record.id}", detached=False)
        follow(context, record.id, timeout=timeout)
        return
    deadline = None if timeout is None else context.clock.now() + timeout
    started = start_run(context, record.id, deadline=deadline)
    context.emit.close()
    error = run_error(started, f"tpuctl logs {record.id}") if started.state.final else None
    if error is not None:
        raise error
    print_run(context, record.id)
    context.console.say(f"`tpuctl attach {record.id}` follows it")
    warn_if_unwatched(context, f"run {record.id}", detached=True)


def _is_first_there(context: AppContext, record: RunRecord) -> bool:
    """Whether this user has had no earlier run on its slice: what is said of each is then said once."""
    from tpuctl.state.repository import readable_runs

    before = [each for each in readable_runs(context)[0] if each.created_at < record.created_at]
    return not any((run.slice_name, run.owner) == (record.slice_name, record.owner) for run in before)


def goes_on(run_id: str) -> str:
    """What Ctrl-C says of a run that was being followed."""
    return f"run {run_id} goes on: `tpuctl attach {run_id}` follows it, `tpuctl stop {run_id}` ends it"


def warn_if_unwatched(context: AppContext, what: str, *, detached: bool) -> None:
    """Says aloud when `what` would not come back after a preemption, because nobody makes passes or they are
    paused."""
    from tpuctl.watch.cycle import watchdog_health
    from tpuctl.watch.heartbeat import INSTALL_HINT
    from tpuctl.watch.pause import paused_why

    health, paused = watchdog_health(context), paused_why(context)
    when = "after a preemption" if detached else "once this terminal is closed"
    if not health.good:
        context.console.alarm(f"nobody brings {what} back {when}: {health.why}", INSTALL_HINT)
    elif paused:
        context.console.alarm(f"nobody brings {what} back {when}: the fleet is {paused}", "tpuctl resume")


def follow(context: AppContext, run_id: str, *, timeout: float | None) -> None:
    """Streams a run until it is over. Raises what it amounts to when it did not succeed."""
    from tpuctl.runs.follow import follow_run
    from tpuctl.runs.reconcile import run_error

    deadline = None if timeout is None else context.clock.now() + timeout
    record = follow_run(context, run_id, deadline=deadline)
    context.emit.close()
    error = run_error(record, f"tpuctl logs {run_id}")
    if error is not None:
        raise error
    print_run(context, run_id)


def print_run(context: AppContext, run_id: str) -> None:
    """One line, or one object, about how a run stands."""
    from tpuctl.views.slices import run_rows

    row = next(row for row in run_rows(context) if row["id"] == run_id)
    if context.console.json_mode:
        context.console.data(row)
    else:
        reason = f": {row['reason']}" if row["reason"] not in ("", row["state"]) else ""
        context.console.say(f"run {run_id} {row['state']}{reason} (attempts: {row['attempts']})")


def stop_run(context: AppContext, run_id: str, grace: float | None, timeout: float | None) -> RunRecord:
    """Asks for the end of a run and waits for it."""
    from tpuctl.runs.follow import follow_run
    from tpuctl.runs.reconcile import request_stop

    request_stop(context, run_id, grace_s=grace)
    deadline = None if timeout is None else context.clock.now() + timeout
    return follow_run(context, run_id, deadline=deadline)
