"""The end of an attempt: how its workers ended, and which budget of its run that is charged to.

Two budgets are kept apart: failures (the user's bug: few) and preemptions (the cloud's: many).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import HostEvent, WorkerStatus
from tpuctl.lib.text import counted
from tpuctl.model import timeouts
from tpuctl.model.attempts import Attempt, Cause, Fault, ProcessEnd, WorkerEnd
from tpuctl.model.records import RunRecord, RunState
from tpuctl.runs.failure import describe_failure


def worker_ends(workers: Sequence[WorkerStatus]) -> tuple[WorkerEnd, ...]:
    """How each worker ended, for the record."""
    return tuple(
        WorkerEnd(
            w.worker,
            w.exit_status,
            w.signal,
            _note(w),
            w.ran_s,
            w.survivors,
            w.process,
            tuple(ProcessEnd(each.process, each.exit_status, each.signal) for each in w.processes),
            w.stop_asked and w.state is WorkerState.EXITED,
        )
        for w in workers
    )


def _note(worker: WorkerStatus) -> str:
    """What is to be known of an end beside its exit status."""
    if worker.event is not HostEvent.NONE:
        return f"host {worker.event}"
    words = ["" if worker.state is WorkerState.EXITED else str(worker.state)]
    words += ["stopped"] if worker.stop_asked and worker.state is WorkerState.EXITED else []
    words += [worker.why] if worker.why and worker.state is WorkerState.EXITED else []
    words += [f"outlived by {worker.survivors_said}"] if worker.survivors else []
    return "; ".join(word for word in words if word)


def charge(run: RunRecord, attempt: Attempt, now: float) -> RunRecord:
    """The run after `attempt` ended: one budget charged, and either final or waiting for the next attempt."""
    ended = replace(run, attempt=attempt)
    cause = attempt.cause
    policy = run.spec.policy
    if cause is Cause.SUCCEEDED:
        return _final(ended, RunState.SUCCEEDED, "every worker exited with 0", now)
    if cause is Cause.STOPPED:
        return _final(ended, RunState.STOPPED, "stopped", now)
    if cause in {Cause.DRIFTED, Cause.NOT_SET_UP}:
        return _final(ended, RunState.FAILED, attempt.suspect_why, now)
    failure = attempt.failure
    how = _quick_failure(attempt) if cause is Cause.FAILED else ""
    if cause is Cause.NOT_JOINED:
        how, cause = str(cause), Cause.FAILED
    if cause in {Cause.STALLED, Cause.NOT_FINITE, Cause.BAD_DATA}:
        cause = Cause.FAILED
    if cause is Cause.FAILED and failure is not None and failure.whose is Fault.CLOUD:
        how, cause = "", Cause.HOST_LOST
    ended = replace(ended, quick_failure=how)
    if failure is not None and not failure.retry:
        ended = replace(ended, failures=run.failures + 1)
        return _final(ended, RunState.FAILED, f"{_why(attempt)}; it would come again", now)
    if cause is Cause.FAILED:
        ended = replace(ended, failures=run.failures + 1)
        if ended.failures > policy.max_failures:
            return _final(ended, RunState.FAILED, _why(attempt), now)
        if how and how == run.quick_failure:
            soon = f" within {timeouts.QUICK_FAILURE_S:.0f} s of its start" if how != Cause.NOT_JOINED else ""
            why = f"{_why(attempt)}, for the second time{soon}"
            return _final(ended, RunState.FAILED, why, now)
    elif cause is Cause.RESTART_ASKED:
        ended = replace(ended, restarts=run.restarts + 1)
        if ended.restarts > policy.max_restarts:
            return _final(
                ended, RunState.GAVE_UP, f"asked for a restart {counted(ended.restarts, 'time')}", now
            )
    else:
        ended = replace(ended, preemptions=run.preemptions + 1)
        if ended.preemptions > policy.max_preemptions:
            return _final(ended, RunState.GAVE_UP, f"lost its hosts {counted(ended.preemptions, 'time')}", now)
    if run.stop_asked:
        return _final(ended, RunState.STOPPED, "stopped", now)
    why = f": {describe_failure(failure)}" if failure is not None else ""
    return replace(
        ended,
        state=RunState.WAITING,
        reason=f"attempt {attempt.number}: {attempt.cause}{why}; it is tried again",
    )


def _why(attempt: Attempt) -> str:
    """Why an attempt failed: what the workers did, and what that means."""
    failure = attempt.failure
    return f"{attempt.suspect_why}; {describe_failure(failure)}" if failure is not None else attempt.suspect_why


def _quick_failure(attempt: Attempt) -> str:
    """With which statuses and signals workers failed, if each that did failed soon after its start."""
    failed = [end for end in attempt.ends if end.exit_status != 0 and not end.stopped]
    if not failed or any(end.ran_s is None or end.ran_s > timeouts.QUICK_FAILURE_S for end in failed):
        return ""
    return " ".join(sorted({f"{end.exit_status}/{end.signal}" for end in failed}))


def _final(run: RunRecord, state: RunState, reason: str, now: float) -> RunRecord:
    return replace(run, state=state, reason=reason, ended_at=now)
