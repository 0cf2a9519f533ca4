"""One run: from its record, its slice and one look at the workers to the next step.

Two budgets are kept apart: failures (the user's bug: few) and preemptions (the cloud's: many). A preemption
often shows first as a failing worker, so a failing attempt is *suspect* until the cloud was read twice and the
hosts were probed; only then is one of the budgets charged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.hosts.protocol import HostEvent, WorkerState, WorkerStatus
from tpuctl.lib.text import counted, fold_workers
from tpuctl.lib.time import render_span
from tpuctl.model import timeouts
from tpuctl.model.records import (
    WITH_HOSTS,
    Attempt,
    AttemptPhase,
    Cause,
    Desired,
    Fault,
    MountState,
    RunRecord,
    RunState,
    SliceRecord,
    SliceState,
    WorkerEnd,
)
from tpuctl.model.verdict import Blocked, Done, Verdict, Wait, wait_for
from tpuctl.runs.failure import describe_failure
from tpuctl.runs.hang import describe_progress, judge_pace, judge_stall
from tpuctl.runs.join import JoinVerdict, judge_join
from tpuctl.runs.mounts import mount_news, mounts_now, sick_mounts
from tpuctl.slices.states import ObservedEvent, SliceEvent

READS_THAT_MUST_AGREE = 2
"""One read of the API proves nothing: the preemption may not be visible yet."""


GOING_DOWN = frozenset({HostEvent.SHUT_DOWN, HostEvent.MAINTENANCE, HostEvent.PREEMPTED})
"""Events of a host that is still going down: the cloud may soon say more."""


class RunStep(StrEnum):
    """What the workflow is asked to do for a run."""

    NEW_ATTEMPT = "new-attempt"
    PREPARE = "prepare"
    START = "start"
    MARK_RUNNING = "mark-running"
    SUSPECT = "suspect"
    CLEAR = "clear"
    MARK_JOINED = "mark-joined"
    MARK_MOUNTS = "mark-mounts"
    MEND_MOUNTS = "mend-mounts"
    MARK_STALLED = "mark-stalled"
    MARK_PACE = "mark-pace"
    DECIDE = "decide"
    STOP_WORKERS = "stop-workers"
    END_ATTEMPT = "end-attempt"
    FINISH = "finish"


class RunPlan(Struct, frozen=True):
    """The next step and why; `cause` goes with DECIDE, `state` with FINISH, `mounts` with MARK_MOUNTS,
    `usual_rate` with MARK_PACE.

    `verdict` counts only if `step` is None.
    """

    step: RunStep | None
    why: str
    verdict: Verdict
    cause: Cause | None = None
    state: RunState | None = None
    mounts: tuple[MountState, ...] = ()
    usual_rate: float = 0.0


def _act(step: RunStep, why: str, cause: Cause | None = None, state: RunState | None = None) -> RunPlan:
    return RunPlan(step, why, Wait(why), cause, state)


def plan_run(
    run: RunRecord,
    slice_: SliceRecord | None,
    observed: ObservedEvent | None,
    workers: Sequence[WorkerStatus],
    now: float,
    lost_buckets: Collection[str] = (),
    silence_limit_s: float = timeouts.UNREACHABLE_MAX_S,
) -> RunPlan:
    """The next step of `run`. `observed` is this pass's look at the slice, `workers` one at the attempt. Hosts
    may be silent for `silence_limit_s`."""
    if run.state.final:
        return RunPlan(None, run.reason, Done(run.reason))
    attempt = run.attempt
    if attempt is None or attempt.state is AttemptPhase.ENDED:
        return _plan_next_attempt(run, slice_)
    if attempt.state is AttemptPhase.ENDING:
        return _plan_ending(run, attempt, slice_, workers, now)
    if run.stop_asked:
        return _act(RunStep.DECIDE, "a stop was asked for", Cause.STOPPED)
    join = judge_join(run, slice_, workers) if attempt.state is AttemptPhase.RUNNING else JoinVerdict()
    if join.trouble:
        return _act(RunStep.DECIDE, join.trouble, Cause.NOT_JOINED)
    if attempt.state is AttemptPhase.RUNNING and workers and all(w.succeeded for w in workers):
        return _act(RunStep.DECIDE, "every worker exited with 0", Cause.SUCCEEDED)
    gone = _incarnation_gone(attempt, slice_, observed)
    if gone:
        return _act(RunStep.DECIDE, gone, Cause.PREEMPTED)
    if attempt.state is AttemptPhase.PREPARING:
        return _act(RunStep.PREPARE, "code and environment go to every worker first")
    if attempt.state is AttemptPhase.STARTING:
        return _plan_starting(run, attempt, observed, workers, now, silence_limit_s)
    mounts = mounts_now(attempt, slice_, workers, lost_buckets)
    news = mount_news(attempt.mounts, mounts)
    if news:
        why = "; ".join(each.text for each in news)
        return RunPlan(RunStep.MARK_MOUNTS, why, Wait(why), mounts=mounts)
    if join.joined:
        return _act(RunStep.MARK_JOINED, join.joined)
    stalled = plan_stall(run, attempt, workers, now)
    if stalled is not None:
        return stalled
    pace = judge_pace(attempt, workers)
    if bool(pace.usual) != bool(attempt.usual_rate):
        return RunPlan(RunStep.MARK_PACE, pace.said, Wait(pace.said), usual_rate=pace.usual)
    plan = _plan_running(run, attempt, observed, workers, now, silence_limit_s)
    sick = sick_mounts(mounts)
    if plan.step is not None or not sick:
        return plan
    if any(not (each.well or each.kept) for each in mounts):
        return _act(RunStep.MEND_MOUNTS, sick)
    return RunPlan(None, sick, Wait(f"the run; {sick}"))


def _plan_next_attempt(run: RunRecord, slice_: SliceRecord | None) -> RunPlan:
    if run.stop_asked:
        return _act(RunStep.FINISH, "stopped before the next attempt", state=RunState.STOPPED)
    if slice_ is None or slice_.desired is Desired.DOWN:
        why = f"its slice {run.slice_name} was taken down"
        return _act(RunStep.FINISH, why, state=RunState.STOPPED)
    if run.question:
        return RunPlan(None, run.question, Blocked(run.question, f"tpuctl attach {run.id} --go-on"))
    if slice_.state in {SliceState.REMOVED, SliceState.REFUSED}:
        why = f"slice {slice_.name} is {slice_.state}"
        return RunPlan(None, why, Blocked(why, f"tpuctl up {slice_.name}"))
    if slice_.state is not SliceState.READY:
        return RunPlan(None, f"slice {slice_.name} is {slice_.state}", wait_for(f"slice {slice_.name}"))
    return _act(RunStep.NEW_ATTEMPT, f"slice {slice_.name} is ready")


def _incarnation_gone(attempt: Attempt, slice_: SliceRecord | None, observed: ObservedEvent | None) -> str:
    """Why the attempt's incarnation no longer exists, or an empty string."""
    current = slice_.incarnation if slice_ else None
    if slice_ is None or current is None:
        return "its slice is gone"
    if current.number != attempt.incarnation:
        return f"the slice went on as {current.cloud_name}"
    if slice_.state in {SliceState.LOST, SliceState.REMOVED, SliceState.GONE, SliceState.DELETING}:
        lost = slice_.state is SliceState.LOST and slice_.loss is not None
        return slice_.loss.detail if lost and slice_.loss else f"slice {slice_.name} is {slice_.state}"
    if observed is not None and observed.event in {SliceEvent.PREEMPTED, SliceEvent.SUSPENDED_BY_USER}:
        return observed.why
    return ""


def plan_stall(run: RunRecord, attempt: Attempt, workers: Sequence[WorkerStatus], now: float) -> RunPlan | None:
    """What a stall, or its end, asks for; None where nothing is new of it."""
    stall = judge_stall(run, workers)
    if stall.why and run.spec.on_stall == "restart":
        since = attempt.suspect_since
        if not stall.unanswered:
            return _act(RunStep.DECIDE, stall.why, Cause.STALLED)
        if since is not None and now - since >= run.spec.stall_s:
            return _act(RunStep.DECIDE, stall.why, Cause.HOST_LOST)
    return _act(RunStep.MARK_STALLED, stall.why) if stall.why != attempt.stalled else None


def _plan_starting(
    run: RunRecord,
    attempt: Attempt,
    observed: ObservedEvent | None,
    workers: Sequence[WorkerStatus],
    now: float,
    silence_limit_s: float,
) -> RunPlan:
    waiting = [w.worker for w in workers if w.state is WorkerState.PREPARED]
    if waiting:
        return _act(RunStep.START, "every worker acknowledged the code")
    begun = {WorkerState.RUNNING, WorkerState.EXITED, WorkerState.STARTING}
    if workers and all(w.state in begun for w in workers):
        return _act(RunStep.MARK_RUNNING, "every worker runs")
    # Those that began may wait for one that was cut off before it said that it began, too.
    stalled = plan_stall(run, attempt, workers, now)
    return stalled or _plan_trouble(attempt, observed, workers, now, silence_limit_s)


def _plan_running(
    run: RunRecord,
    attempt: Attempt,
    observed: ObservedEvent | None,
    workers: Sequence[WorkerStatus],
    now: float,
    silence_limit_s: float,
) -> RunPlan:
    if all(w.healthy or w.succeeded for w in workers):
        if attempt.suspect_since is not None:
            return _act(RunStep.CLEAR, "all workers answer again")
        slow = ", which has become slow" if attempt.usual_rate else ""
        waits = f"the run, which stands still ({attempt.stalled})" if attempt.stalled else f"the run{slow}"
        wait = Wait(waits, coming=True, progress=describe_progress(run, workers))
        return RunPlan(None, "running", wait)
    return _plan_trouble(attempt, observed, workers, now, silence_limit_s)


def _plan_trouble(
    attempt: Attempt,
    observed: ObservedEvent | None,
    workers: Sequence[WorkerStatus],
    now: float,
    silence_limit_s: float,
) -> RunPlan:
    """A worker failed, vanished or does not answer: read again, then decide whose fault it is."""
    what = describe_trouble(workers)
    if attempt.suspect_since is None:
        return _act(RunStep.SUSPECT, what)
    failed = [w for w in workers if w.over and not w.succeeded]
    unreachable = [w for w in workers if w.state in {WorkerState.UNREACHABLE, WorkerState.CLOSED}]
    waited = now - attempt.suspect_since
    alive = observed is not None and observed.event is SliceEvent.NODE_READY
    going_down = any(w.event in GOING_DOWN for w in workers)
    if alive and not unreachable and (failed or going_down):
        if attempt.suspect_reads >= READS_THAT_MUST_AGREE and failed and not going_down:
            return _act(RunStep.DECIDE, what, _cause_of(failed, workers))
        gap = timeouts.VERDICT_READ_GAP_S * attempt.suspect_reads
        if attempt.suspect_reads < READS_THAT_MUST_AGREE:
            if waited >= gap:
                return _act(RunStep.SUSPECT, what)
            return RunPlan(None, what, wait_for(f"a second read: {what}", attempt.suspect_since + gap))
    # A worker that only does not answer may be training all the same: sshd dies alone, too.
    limit = timeouts.VERDICT_MAX_S if failed else silence_limit_s
    if waited >= limit and (failed or unreachable):
        cause = _cause_of_hosts(workers) or (Cause.HOST_LOST if unreachable else _cause_of(failed, workers))
        return _act(RunStep.DECIDE, what, cause)
    until = attempt.suspect_since + limit
    given = f"; given up after {render_span(limit)} of silence" if unreachable and not failed else ""
    return RunPlan(None, what, Wait(f"finding out why: {what}{given}", until))


def _cause_of_hosts(workers: Sequence[WorkerStatus]) -> Cause | None:
    """The cloud's doing, where a host says so: it beats the exit statuses of those whose peer went away."""
    events = {w.event for w in workers} - {HostEvent.NONE}
    if HostEvent.PREEMPTED in events:
        return Cause.PREEMPTED
    return Cause.HOST_LOST if events else None


def _cause_of(failed: Sequence[WorkerStatus], workers: Sequence[WorkerStatus]) -> Cause:
    """Whose fault it was, the node being alive: what happened to hosts beats exit statuses, these beat losses,
    and 75 asks for a restart."""
    of_hosts = _cause_of_hosts(workers)
    if of_hosts is not None:
        return of_hosts
    own = [w for w in failed if w.state is WorkerState.EXITED]
    if not own:
        return Cause.HOST_LOST
    if all(w.exit_status == timeouts.EXIT_RESTART for w in own):
        return Cause.RESTART_ASKED
    return Cause.FAILED


def _plan_ending(
    run: RunRecord,
    attempt: Attempt,
    slice_: SliceRecord | None,
    workers: Sequence[WorkerStatus],
    now: float,
) -> RunPlan:
    same = (
        slice_ is not None
        and slice_.incarnation is not None
        and slice_.incarnation.number == attempt.incarnation
        and slice_.state in WITH_HOSTS
    )
    if not same:
        return _act(RunStep.END_ATTEMPT, "its hosts are gone")
    # One that does not answer may still run, if it was not preempted: two attempts must not write the same
    # checkpoints.
    unfinished = {WorkerState.RUNNING, WorkerState.STARTING}
    if attempt.cause is not Cause.PREEMPTED:
        unfinished |= {WorkerState.UNREACHABLE, WorkerState.CLOSED}
    limit_s = run.spec.policy.grace_s + timeouts.STOP_MAX_S
    if attempt.ending_since is not None and now - attempt.ending_since > limit_s:
        return _act(RunStep.END_ATTEMPT, "some workers did not end in time")
    # What outlived a supervisor that could not end it, such as root's, does not end for being told again.
    unwatched = [w for w in workers if w.state is WorkerState.LOST and w.survivors]
    if unwatched or any(w.state in unfinished for w in workers):
        return _act(RunStep.STOP_WORKERS, "the other workers are stopped, not left hanging")
    return _act(RunStep.END_ATTEMPT, "every worker has ended")


def refused_until(run: RunRecord, attempt: Attempt, cause: Cause, now: float, *, lasts: bool) -> float:
    """Until when an attempt whose workers refuse to prepare or start is tried, before it ends with `cause`.

    `lasts`: trying again is in vain. Hosts that came up during the run get time all the same where they differ:
    their clock may not be set yet, nor a startup script be through.
    """
    since = attempt.suspect_since if attempt.suspect_since is not None else now
    fresh = attempt.ready_at is not None and attempt.ready_at > run.created_at
    if lasts and not (fresh and cause is Cause.DRIFTED):
        return since
    return since + (timeouts.VERDICT_MAX_S if cause is Cause.HOST_LOST else timeouts.ACKNOWLEDGE_MAX_S)


def describe_trouble(workers: Sequence[WorkerStatus]) -> str:
    """The workers that are not well, in words; those with the same trouble are named together."""
    groups: dict[str, list[int]] = {}
    for worker in workers:
        if not (worker.healthy or worker.succeeded):
            groups.setdefault(_trouble(worker), []).append(worker.worker)
    ordered = sorted(groups.items(), key=lambda group: group[0] not in _EVENTS.values())
    words = [
        f"worker{'' if len(members) == 1 else 's'} {fold_workers(members)} {_many(what, members)}"
        for what, members in ordered
    ]
    more = f" and {len(words) - 3} more" if len(words) > 3 else ""
    return ", ".join(words[:3]) + more


_EVENTS = {
    HostEvent.SHUT_DOWN: "was shut down with its host",
    HostEvent.REBOOTED: "lost its host to a reboot",
    HostEvent.MAINTENANCE: "lost its host to maintenance",
    HostEvent.PREEMPTED: "was told that its host is preempted",
}


_PLURAL = {"was": "were", "does": "do", "is": "are", "its": "their"}


def _many(what: str, members: Sequence[int]) -> str:
    """`what` a worker does, for as many as do it."""
    return what if len(members) == 1 else " ".join(_PLURAL.get(word, word) for word in what.split(" "))


def _trouble(worker: WorkerStatus) -> str:
    if worker.event is not HostEvent.NONE:
        return _EVENTS[worker.event]
    if worker.state is WorkerState.EXITED:
        if worker.signal is not None:
            return f"was killed by signal {worker.signal}{_aside(worker)}"
        return f"exited with {worker.exit_status}{_aside(worker)}"
    if worker.state is WorkerState.UNREACHABLE:
        return "does not answer"
    if worker.state is WorkerState.CLOSED:
        return f"is closed to this machine ({worker.detail})" if worker.detail else "is closed to this machine"
    if worker.state is WorkerState.PREPARED:
        return "is prepared but not started"
    return "lost its supervisor" if worker.state is WorkerState.LOST else "does not know the attempt"


def _aside(worker: WorkerStatus) -> str:
    return f" ({worker.why})" if worker.why else ""


def worker_ends(workers: Sequence[WorkerStatus]) -> tuple[WorkerEnd, ...]:
    """How each worker ended, for the record."""
    return tuple(WorkerEnd(w.worker, w.exit_status, w.signal, _note(w), w.ran_s, w.survivors) for w in workers)


STOPPED_NOTE = "stopped"
"""It did not end by itself: we stopped it, because another worker failed or somebody asked."""


def _note(worker: WorkerStatus) -> str:
    """What is to be known of an end beside its exit status."""
    if worker.event is not HostEvent.NONE:
        return f"host {worker.event}"
    words = ["" if worker.state is WorkerState.EXITED else str(worker.state)]
    words += [STOPPED_NOTE] if worker.stop_asked and worker.state is WorkerState.EXITED else []
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
    if cause in {Cause.STALLED, Cause.BAD_DATA}:
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
    failed = [end for end in attempt.ends if end.exit_status != 0 and STOPPED_NOTE not in end.note.split("; ")]
    if not failed or any(end.ran_s is None or end.ran_s > timeouts.QUICK_FAILURE_S for end in failed):
        return ""
    return " ".join(sorted({f"{end.exit_status}/{end.signal}" for end in failed}))


def _final(run: RunRecord, state: RunState, reason: str, now: float) -> RunRecord:
    return replace(run, state=state, reason=reason, ended_at=now)
