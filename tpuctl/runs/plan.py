"""One run: from its record, its slice and one look at the workers to an event, and by the table to an effect.

A preemption often shows first as a failing worker, so a failing attempt is in doubt until the cloud was read
twice and the hosts were probed; only then is one of the budgets charged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from tpuctl.hosts.protocol import SILENT, WorkerState
from tpuctl.hosts.worker_status import HostEvent, WorkerStatus
from tpuctl.lib.time import render_span
from tpuctl.model import timeouts
from tpuctl.model.attempts import (
    FAST_AGAIN,
    GOES_ON,
    MOUNT_BACK,
    MOUNT_LOST,
    SLOW,
    STALLED,
    Attempt,
    Cause,
    MountState,
)
from tpuctl.model.records import WITH_HOSTS, Desired, RunRecord, SliceRecord, SliceState
from tpuctl.model.verdict import Blind, Blocked, Done, Verdict, Wait, wait_for
from tpuctl.runs.compiles import find_compiles
from tpuctl.runs.hang import describe_progress, judge_pace, judge_stall
from tpuctl.runs.join import judge_join
from tpuctl.runs.metrics import find_not_finite, find_unsearched
from tpuctl.runs.mounts import mount_news, mounts_now, sick_mounts
from tpuctl.runs.states import TRANSITIONS, News, RunEffect, RunEvent, RunFinding, RunPhase, To, phase_of
from tpuctl.runs.trouble import cause_of, cause_of_hosts, describe_trouble
from tpuctl.slices.states import ObservedEvent, SliceEvent

READS_THAT_MUST_AGREE = 2
"""One read of the API proves nothing: the preemption may not be visible yet."""
GOING_DOWN = frozenset({HostEvent.SHUT_DOWN, HostEvent.MAINTENANCE, HostEvent.PREEMPTED})
"""Events of a host that is still going down: the cloud may soon say more."""
_BEGUN = frozenset({WorkerState.RUNNING, WorkerState.EXITED, WorkerState.STARTING})
_E = RunEvent
_UNPREPARED = "code and environment go to every worker first"


class RunObservation(Struct, frozen=True):
    """What one pass has seen of a run: `observed` of its slice in the cloud, `workers` of its attempt."""

    run: RunRecord
    slice: SliceRecord | None
    observed: ObservedEvent | None
    workers: Sequence[WorkerStatus]
    now: float
    lost_buckets: Collection[str] = ()
    silence_limit_s: float = timeouts.UNREACHABLE_MAX_S
    """So long hosts may be silent."""
    unclear: Blind | Blocked | None = None
    """Why what is seen of the workers proves nothing; None where it does."""

    @property
    def attempt(self) -> Attempt:
        """Of a run that has one."""
        if self.run.attempt is None:
            raise AssertionError(f"run {self.run.id} has no attempt")
        return self.run.attempt

    @property
    def mounts(self) -> tuple[MountState, ...]:
        """Those that are not well, or were not since the attempt began."""
        return mounts_now(self.attempt, self.slice, self.workers, self.lost_buckets)


class RunPlan(Struct, frozen=True):
    """The event, and where the table leads from it."""

    found: RunFinding
    to: To

    @property
    def effect(self) -> RunEffect | None:
        return self.to.effect

    @property
    def event(self) -> RunEvent:
        return self.found.event

    @property
    def why(self) -> str:
        return self.found.why

    @property
    def verdict(self) -> Verdict:
        return self.found.verdict or Wait(self.found.why)


def plan_run(seen: RunObservation) -> RunPlan:
    """What is done next for a run."""
    return plan_event(seen.run, classify_run(seen))


def plan_event(run: RunRecord, found: RunFinding) -> RunPlan:
    """What an event leads to that was seen, or that the hosts of the run's attempt reported."""
    return RunPlan(found, TRANSITIONS[phase_of(run), found.event])


def classify_run(seen: RunObservation) -> RunFinding:
    """The event that counts: the first one that is seen of those that the table has for the phase."""
    phase = phase_of(seen.run)
    for events, find in SEEN:
        if any((phase, event) in TRANSITIONS for event in events):
            found = find(seen)
            if found is not None and (phase, found.event) in TRANSITIONS:
                return found
    raise AssertionError(f"nothing is seen of a run that is {phase}")


def _find_stop(seen: RunObservation) -> RunFinding | None:
    if not seen.run.stop_asked:
        return None
    waits = phase_of(seen.run) is RunPhase.WAITING
    return RunFinding(_E.STOP_REQUESTED, "stopped before the next attempt" if waits else "a stop was asked for")


def _find_blind(seen: RunObservation) -> RunFinding | None:
    """A host that does not answer may live; but workers that do answer and stand still show that it takes no
    part any more."""
    if seen.unclear is None:
        return None
    stalled = None
    if isinstance(seen.unclear, Blind) and phase_of(seen.run) is not RunPhase.ENDING:
        stalled = _find_stall(seen)
    if stalled is not None and stalled.event is not _E.GOES_ON:
        return stalled
    return RunFinding(_E.BLIND, seen.unclear.why, seen.unclear)


def _find_slice(seen: RunObservation) -> RunFinding | None:
    run, slice_ = seen.run, seen.slice
    if slice_ is None or slice_.desired is Desired.DOWN:
        return RunFinding(_E.SLICE_DOWN, f"its slice {run.slice_name} was taken down")
    why = f"slice {slice_.name} is {slice_.state}"
    if run.question:
        return RunFinding(_E.QUESTION, run.question, Blocked(run.question, f"tpuctl attach {run.id} --go-on"))
    if slice_.state in {SliceState.REMOVED, SliceState.REFUSED}:
        return RunFinding(_E.SLICE_UNAVAILABLE, why, Blocked(why, slice_.way_up))
    if slice_.state is not SliceState.READY:
        return RunFinding(_E.SLICE_COMING, why, wait_for(f"slice {slice_.name}"))
    return RunFinding(_E.SLICE_READY, why)


def _find_end(seen: RunObservation) -> RunFinding | None:
    attempt, slice_, workers = seen.attempt, seen.slice, seen.workers
    same = (
        slice_ is not None
        and slice_.incarnation is not None
        and slice_.incarnation.number == attempt.incarnation
        and slice_.state in WITH_HOSTS
    )
    if not same:
        return RunFinding(_E.HOSTS_GONE, "its hosts are gone")
    # One that does not answer may still run, if it was not preempted: two attempts must not write the same
    # checkpoints.
    unfinished = {WorkerState.RUNNING, WorkerState.STARTING}
    if attempt.cause is not Cause.PREEMPTED:
        unfinished |= SILENT
    limit_s = seen.run.spec.policy.grace_s + timeouts.STOP_MAX_S
    if attempt.ending_since is not None and seen.now - attempt.ending_since > limit_s:
        return RunFinding(_E.END_OVERDUE, "some workers did not end in time")
    # What outlived a supervisor that could not end it, such as root's, does not end for being told again.
    unwatched = [w for w in workers if w.state is WorkerState.LOST and w.survivors]
    if unwatched or any(w.state in unfinished for w in workers):
        return RunFinding(_E.STILL_RUNS, "the other workers are stopped, not left hanging")
    return RunFinding(_E.ALL_ENDED, "every worker has ended")


def _find_not_joined(seen: RunObservation) -> RunFinding | None:
    trouble = judge_join(seen.run, seen.slice, seen.workers).trouble
    return RunFinding(_E.NOT_JOINED, trouble) if trouble else None


def _find_success(seen: RunObservation) -> RunFinding | None:
    well = bool(seen.workers) and all(w.succeeded for w in seen.workers)
    return RunFinding(_E.SUCCEEDED, "every worker exited with 0") if well else None


def _find_loss(seen: RunObservation) -> RunFinding | None:
    """Whether the incarnation of the attempt no longer exists."""
    slice_, observed = seen.slice, seen.observed
    current = slice_.incarnation if slice_ else None
    if slice_ is None or current is None:
        return RunFinding(_E.PREEMPTED, "its slice is gone")
    if current.number != seen.attempt.incarnation:
        return RunFinding(_E.PREEMPTED, f"the slice went on as {current.cloud_name}")
    if slice_.state in {SliceState.LOST, SliceState.REMOVED, SliceState.GONE, SliceState.DELETING}:
        lost = slice_.loss if slice_.state is SliceState.LOST else None
        return RunFinding(_E.PREEMPTED, lost.detail if lost else f"slice {slice_.name} is {slice_.state}")
    if observed is not None and observed.event in {SliceEvent.PREEMPTED, SliceEvent.ENDED_BY_PERSON}:
        return RunFinding(_E.PREEMPTED, observed.why)
    return None


def _find_start(seen: RunObservation) -> RunFinding | None:
    if any(w.state is WorkerState.PREPARED for w in seen.workers):
        return RunFinding(_E.NOT_STARTED, "every worker acknowledged the code")
    begun = bool(seen.workers) and all(w.state in _BEGUN for w in seen.workers)
    return RunFinding(_E.ALL_STARTED, "every worker runs") if begun else None


def _find_mount_news(seen: RunObservation) -> RunFinding | None:
    news = mount_news(seen.attempt.mounts, seen.mounts)
    if not news:
        return None
    return RunFinding(
        _E.MOUNTS_CHANGED,
        "; ".join(each.text for each in news),
        wait_for("the run"),
        changes={"mounts": seen.mounts},
        news=tuple(
            News(MOUNT_BACK if each.well else MOUNT_LOST, each.text, f"mount {each.text}", not each.well)
            for each in news
        ),
    )


def _find_joined(seen: RunObservation) -> RunFinding | None:
    joined = judge_join(seen.run, seen.slice, seen.workers).joined
    changes, news = {"joined": joined}, (News("joined", joined),)
    return RunFinding(_E.JOINED, joined, wait_for("the run"), changes, news=news) if joined else None


def _find_stall(seen: RunObservation) -> RunFinding | None:
    """A stall, or its end, where it is new. Workers that were started may also wait for one that was cut off
    before it said that it began."""
    run, attempt = seen.run, seen.attempt
    stall = judge_stall(run, seen.workers)
    if stall.nearly and not attempt.stalled:
        return None
    if stall.why and run.spec.on_stall == "restart":
        since = attempt.suspect_since
        if not stall.unanswered:
            return RunFinding(_E.STALLED_FOR_GOOD, stall.why)
        if since is not None and seen.now - since >= run.spec.stall_s:
            return RunFinding(_E.HOST_LOST, stall.why)
    if stall.why == attempt.stalled or (stall.unanswered and attempt.stalled):
        # A worker that does not answer changes nothing about a stall that is told: it is in doubt by itself.
        return None
    if stall.why:
        event, why = _E.STALLED, f"stands still: {stall.why}"
        new = News(STALLED, why, f"{why}; `tpuctl stacks {run.id}` shows where", warns=True)
    else:
        event, why = _E.GOES_ON, f"no longer: {attempt.stalled}"
        new = News(GOES_ON, why)
    changes = {"stalled": stall.why, "stalled_by": ""}
    return RunFinding(event, why, wait_for("the run"), changes, news=(new,))


def _find_pace(seen: RunObservation) -> RunFinding | None:
    """Steps that have become slow, or are not any more."""
    pace = judge_pace(seen.attempt, seen.workers)
    if bool(pace.usual) == bool(seen.attempt.usual_rate):
        return None
    event = SLOW if pace.usual else FAST_AGAIN
    said = f"{event}: {pace.said}".replace("-", " ")
    new = News(event, pace.said, said, warns=bool(pace.usual))
    changes = {"usual_rate": pace.usual}
    return RunFinding(_E.PACE_CHANGED, pace.said, wait_for("the run"), changes, news=(new,))


def _find_trouble(seen: RunObservation) -> RunFinding | None:
    found = _judge_workers(seen)
    return found if found.event not in {_E.UNDECIDED, _E.RUNS} else None


def _find_sick_mounts(seen: RunObservation) -> RunFinding | None:
    sick = sick_mounts(seen.mounts)
    dead = any(not (each.well or each.kept) for each in seen.mounts)
    wait = Wait(f"the run; {sick}")
    return RunFinding(_E.MOUNT_DEAD if dead else _E.MOUNT_SICK, sick, wait) if sick else None


def _judge_workers(seen: RunObservation) -> RunFinding:
    run, attempt, workers = seen.run, seen.attempt, seen.workers
    well = all(w.healthy or w.succeeded for w in workers)
    if not well or phase_of(run) is RunPhase.STARTING:
        return _judge_trouble(seen)
    if attempt.suspect_since is not None:
        changes = {"suspect_since": None, "suspect_reads": 0, "suspect_why": ""}
        why = "all workers answer again"
        return RunFinding(_E.RECOVERED, why, wait_for("the run"), changes, journal="cleared")
    slow = ", which has become slow" if attempt.usual_rate else ""
    slow += f", whose {attempt.not_finite}" if attempt.not_finite else ""
    waits = f"the run, which stands still ({attempt.stall_said})" if attempt.stalled else f"the run{slow}"
    wait = Wait(waits, coming=True, progress=describe_progress(run, workers))
    return RunFinding(_E.RUNS, "running", wait)


def _judge_trouble(seen: RunObservation) -> RunFinding:
    """A worker failed, vanished or does not answer: read again, then decide whose fault it is."""
    attempt, workers, observed = seen.attempt, seen.workers, seen.observed
    what, since, reads = describe_trouble(workers), attempt.suspect_since, attempt.suspect_reads
    trouble = RunFinding(
        _E.TROUBLE,
        what,
        Wait(f"finding out why: {what}"),
        changes={
            "suspect_since": seen.now if since is None else since,
            "suspect_reads": reads + 1,
            "suspect_why": what,
        },
        is_suspicion=since is None,
    )
    if since is None:
        return trouble
    failed = [w for w in workers if w.over and not w.succeeded]
    unreachable = [w for w in workers if w.state in SILENT]
    waited = seen.now - since
    alive = observed is not None and observed.event is SliceEvent.NODE_READY
    going_down = any(w.event in GOING_DOWN for w in workers)
    if alive and not unreachable and (failed or going_down):
        if reads >= READS_THAT_MUST_AGREE and failed and not going_down:
            return RunFinding(_E(cause_of(failed, workers)), what)
        gap = timeouts.VERDICT_READ_GAP_S * reads
        if reads < READS_THAT_MUST_AGREE:
            wait = wait_for(f"a second read: {what}", since + gap)
            return trouble if waited >= gap else RunFinding(_E.UNDECIDED, what, wait)
    # A worker that only does not answer may be training all the same: sshd dies alone, too.
    limit = timeouts.VERDICT_MAX_S if failed else seen.silence_limit_s
    if waited >= limit and (failed or unreachable):
        cause = cause_of_hosts(workers) or (Cause.HOST_LOST if unreachable else cause_of(failed, workers))
        return RunFinding(_E(cause), what)
    given = f"; given up after {render_span(limit)} of silence" if unreachable and not failed else ""
    return RunFinding(_E.UNDECIDED, what, Wait(f"finding out why: {what}{given}", since + limit))


SEEN: Sequence[tuple[Sequence[RunEvent], Callable[[RunObservation], RunFinding | None]]] = (
    ((_E.OVER,), lambda seen: RunFinding(_E.OVER, seen.run.reason, Done(seen.run.reason))),
    ((_E.STOP_REQUESTED,), _find_stop),
    ((_E.BLIND,), _find_blind),
    ((_E.SLICE_DOWN,), _find_slice),
    ((_E.ALL_ENDED,), _find_end),
    ((_E.NOT_JOINED,), _find_not_joined),
    (
        (_E.NOT_FINITE, _E.NOT_FINITE_FOR_GOOD),
        lambda seen: find_not_finite(seen.run, seen.attempt, seen.workers),
    ),
    ((_E.SUCCEEDED,), _find_success),
    ((_E.PREEMPTED,), _find_loss),
    ((_E.NOT_PREPARED,), lambda _: RunFinding(_E.NOT_PREPARED, _UNPREPARED)),
    ((_E.NOT_STARTED, _E.ALL_STARTED), _find_start),
    ((_E.MOUNTS_CHANGED,), _find_mount_news),
    ((_E.JOINED,), _find_joined),
    ((_E.STALLED, _E.GOES_ON), _find_stall),
    ((_E.PACE_CHANGED,), _find_pace),
    ((_E.UNSEARCHED,), lambda seen: find_unsearched(seen.attempt, seen.workers)),
    ((_E.COMPILES,), lambda seen: find_compiles(seen.run, seen.attempt, seen.workers)),
    ((_E.TROUBLE, _E.RECOVERED), _find_trouble),
    ((_E.MOUNT_DEAD, _E.MOUNT_SICK), _find_sick_mounts),
    ((_E.UNDECIDED, _E.RUNS), _judge_workers),
)
"""What is looked for, in this order: where the table has one of these events for the phase of a run."""
