"""The life of a run as data: which phase follows which event, and what is done on the way.

`classify_run` of `plan.py` makes one event of what a pass has seen; hosts on which an attempt is prepared or
started report the others. `TRANSITIONS` says where an event leads. Every (phase, event) pair stands either
there or in `IGNORED`, with the reason; a test walks the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.records import RunRecord
from tpuctl.model.verdict import Verdict


class RunPhase(StrEnum):
    """Where a run is: that of its attempt, or between attempts, or over."""

    WAITING = "waiting"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"


class RunEvent(StrEnum):
    """What a pass sees of a run; then what hosts report on which an attempt is prepared or started."""

    OVER = "over"
    STOP_REQUESTED = "stop-requested"
    BLIND = "blind"
    """What this machine sees of the workers proves nothing."""
    SLICE_DOWN = "slice-down"
    QUESTION = "question"
    """The run waits for an answer of a person."""
    SLICE_UNAVAILABLE = "slice-unavailable"
    SLICE_COMING = "slice-coming"
    SLICE_READY = "slice-ready"
    HOSTS_GONE = "hosts-gone"
    END_OVERDUE = "end-overdue"
    STILL_RUNS = "still-runs"
    ALL_ENDED = "all-ended"
    NOT_JOINED = "not-joined"
    SUCCEEDED = "succeeded"
    PREEMPTED = "preempted"
    NOT_PREPARED = "not-prepared"
    NOT_STARTED = "not-started"
    ALL_STARTED = "all-started"
    MOUNTS_CHANGED = "mounts-changed"
    JOINED = "joined"
    STALLED = "stalled"
    GOES_ON = "goes-on"
    STALLED_FOR_GOOD = "stalled-for-good"
    """It stands still, and is to be restarted then."""
    PACE_CHANGED = "pace-changed"
    NOT_FINITE = "not-finite"
    NOT_FINITE_FOR_GOOD = "not-finite-for-good"
    """A number of its program is infinite or none, and it is to end then."""
    UNSEARCHED = "unsearched"
    """Its expression for steps takes too long on what its program writes."""
    COMPILES = "compiles"
    """Of what its programs compile something is new."""
    RECOVERED = "recovered"
    TROUBLE = "trouble"
    """A worker failed, or does not answer: whose fault that is needs another read."""
    FAILED = "failed"
    RESTART_ASKED = "restart-asked"
    HOST_LOST = "host-lost"
    MOUNT_DEAD = "mount-dead"
    MOUNT_SICK = "mount-sick"
    """A mount is not well, and its keeper mends it."""
    UNDECIDED = "undecided"
    """It is still open whose fault the trouble is."""
    RUNS = "runs"

    PREPARED = "prepared"
    POSTPONED = "postponed"
    """A part of the preparation is done; the time of this pass is not enough for the rest."""
    BUSY = "busy"
    IN_THE_WAY = "in-the-way"
    """A host has something in the way that only a person can remove."""
    BAD_DATA = "bad-data"
    NOT_SET_UP = "not-set-up"
    DRIFTED = "drifted"
    REFUSED = "refused"
    """A host refuses, or does not answer, which may pass."""
    CLOSED = "closed"
    """Hosts do not let this machine in."""
    PROMISE_BROKEN = "promise-broken"
    """A host lost a disk or mount after it was seen."""
    START_SENT = "start-sent"
    """Every worker has the start; not every one has begun."""


class RunEffect(StrEnum):
    """What a transition asks the workflow to do."""

    NEW_ATTEMPT = "new-attempt"
    PREPARE = "prepare"
    MARK_PREPARED = "mark-prepared"
    START = "start"
    MARK_RUNNING = "mark-running"
    RECORD = "record"
    """Write down and say what is new; look again at once."""
    RECORD_STALL = "record-stall"
    """The same, with the stacks of the workers."""
    DOUBT = "doubt"
    """Write down what may pass; wait."""
    MEND_MOUNTS = "mend-mounts"
    BEGIN_END = "begin-end"
    STOP_WORKERS = "stop-workers"
    END_ATTEMPT = "end-attempt"
    FINISH = "finish"


class To(Struct, frozen=True):
    """Where a transition leads and what is done on the way; `cause` goes with BEGIN_END. Without an effect
    there is nothing to do but wait, or it needs a person."""

    phase: RunPhase
    effect: RunEffect | None = None
    cause: Cause | None = None


class News(Struct, frozen=True):
    """An event for the journal and the timeline of an attempt, and what whoever watches is told of it, if
    anything."""

    event: str
    detail: str
    said: str = ""
    warns: bool = False


class RunFinding(Struct, frozen=True):
    """An event, with what is to be written down and said of it."""

    event: RunEvent
    why: str
    verdict: Verdict | None = None
    """Where it leaves the run until the next look; a wait with `why` if left out."""
    changes: Mapping[str, Any] = {}
    """Fields of the attempt."""
    journal: str = ""
    """The action under which the journal has it without `news`, with `reason`, or `why` without one."""
    reason: str = ""
    news: tuple[News, ...] = ()
    is_suspicion: bool = False
    """Whoever watches is told that hosts may be lost."""


_P, _E, _F = RunPhase, RunEvent, RunEffect
_BEFORE_END = (_P.PREPARING, _P.STARTING, _P.RUNNING)
_BEFORE_START = (_P.PREPARING, _P.STARTING)
_STARTED = (_P.STARTING, _P.RUNNING)


def _ends(cause: Cause) -> To:
    return To(_P.ENDING, _F.BEGIN_END, cause)


TRANSITIONS: Mapping[tuple[RunPhase, RunEvent], To] = {
    (_P.OVER, _E.OVER): To(_P.OVER),
    (_P.WAITING, _E.STOP_REQUESTED): To(_P.OVER, _F.FINISH),
    (_P.WAITING, _E.SLICE_DOWN): To(_P.OVER, _F.FINISH),
    (_P.WAITING, _E.QUESTION): To(_P.WAITING),
    (_P.WAITING, _E.SLICE_UNAVAILABLE): To(_P.WAITING),
    (_P.WAITING, _E.SLICE_COMING): To(_P.WAITING),
    (_P.WAITING, _E.SLICE_READY): To(_P.PREPARING, _F.NEW_ATTEMPT),
    **{(phase, _E.STOP_REQUESTED): _ends(Cause.STOPPED) for phase in _BEFORE_END},
    **{(phase, _E.PREEMPTED): _ends(Cause.PREEMPTED) for phase in _BEFORE_END},
    (_P.PREPARING, _E.NOT_PREPARED): To(_P.PREPARING, _F.PREPARE),
    (_P.PREPARING, _E.PREPARED): To(_P.STARTING, _F.MARK_PREPARED),
    (_P.PREPARING, _E.POSTPONED): To(_P.PREPARING, _F.RECORD),
    (_P.PREPARING, _E.BUSY): To(_P.PREPARING),
    (_P.PREPARING, _E.IN_THE_WAY): To(_P.PREPARING, _F.DOUBT),
    (_P.PREPARING, _E.BAD_DATA): _ends(Cause.BAD_DATA),
    (_P.PREPARING, _E.NOT_SET_UP): _ends(Cause.NOT_SET_UP),
    # Nothing runs yet: it is looked for again. Later the attempt is over, at nobody's expense.
    (_P.PREPARING, _E.PROMISE_BROKEN): To(_P.PREPARING, _F.DOUBT),
    (_P.STARTING, _E.PROMISE_BROKEN): _ends(Cause.HOST_LOST),
    **{
        (phase, event): to
        for phase in _BEFORE_START
        for event, to in (
            (_E.REFUSED, To(phase, _F.DOUBT)),
            (_E.CLOSED, To(phase)),
            (_E.DRIFTED, _ends(Cause.DRIFTED)),
            (_E.FAILED, _ends(Cause.FAILED)),
            (_E.HOST_LOST, _ends(Cause.HOST_LOST)),
        )
    },
    (_P.STARTING, _E.NOT_STARTED): To(_P.STARTING, _F.START),
    (_P.STARTING, _E.START_SENT): To(_P.STARTING, _F.RECORD),
    (_P.STARTING, _E.ALL_STARTED): To(_P.RUNNING, _F.MARK_RUNNING),
    **{
        (phase, event): to
        for phase in _STARTED
        for event, to in (
            (_E.BLIND, To(phase)),
            (_E.STALLED, To(phase, _F.RECORD_STALL)),
            (_E.GOES_ON, To(phase, _F.RECORD)),
            (_E.STALLED_FOR_GOOD, _ends(Cause.STALLED)),
            (_E.TROUBLE, To(phase, _F.DOUBT)),
            (_E.UNDECIDED, To(phase)),
            (_E.FAILED, _ends(Cause.FAILED)),
            (_E.RESTART_ASKED, _ends(Cause.RESTART_ASKED)),
            (_E.HOST_LOST, _ends(Cause.HOST_LOST)),
        )
    },
    (_P.RUNNING, _E.NOT_JOINED): _ends(Cause.NOT_JOINED),
    (_P.RUNNING, _E.SUCCEEDED): _ends(Cause.SUCCEEDED),
    (_P.RUNNING, _E.MOUNTS_CHANGED): To(_P.RUNNING, _F.RECORD),
    (_P.RUNNING, _E.JOINED): To(_P.RUNNING, _F.RECORD),
    (_P.RUNNING, _E.PACE_CHANGED): To(_P.RUNNING, _F.RECORD),
    (_P.RUNNING, _E.NOT_FINITE): To(_P.RUNNING, _F.RECORD),
    (_P.RUNNING, _E.NOT_FINITE_FOR_GOOD): _ends(Cause.NOT_FINITE),
    (_P.RUNNING, _E.UNSEARCHED): To(_P.RUNNING, _F.RECORD),
    (_P.RUNNING, _E.COMPILES): To(_P.RUNNING, _F.RECORD),
    (_P.RUNNING, _E.RECOVERED): To(_P.RUNNING, _F.RECORD),
    (_P.RUNNING, _E.MOUNT_DEAD): To(_P.RUNNING, _F.MEND_MOUNTS),
    (_P.RUNNING, _E.MOUNT_SICK): To(_P.RUNNING),
    (_P.RUNNING, _E.RUNS): To(_P.RUNNING),
    (_P.ENDING, _E.BLIND): To(_P.ENDING),
    (_P.ENDING, _E.HOSTS_GONE): To(_P.WAITING, _F.END_ATTEMPT),
    (_P.ENDING, _E.END_OVERDUE): To(_P.WAITING, _F.END_ATTEMPT),
    (_P.ENDING, _E.STILL_RUNS): To(_P.ENDING, _F.STOP_WORKERS),
    (_P.ENDING, _E.ALL_ENDED): To(_P.WAITING, _F.END_ATTEMPT),
}
"""What follows what. END_ATTEMPT leads to OVER instead where `charge` finds a budget used up, or a good end."""

_OF_SLICE = (_E.SLICE_DOWN, _E.QUESTION, _E.SLICE_UNAVAILABLE, _E.SLICE_COMING, _E.SLICE_READY)
_OF_END = (_E.HOSTS_GONE, _E.END_OVERDUE, _E.STILL_RUNS, _E.ALL_ENDED)
_OF_PREPARATION = (
    _E.NOT_PREPARED, _E.PREPARED, _E.POSTPONED, _E.BUSY, _E.IN_THE_WAY, _E.BAD_DATA, _E.NOT_SET_UP,
)  # fmt: skip
_OF_HOSTS = (_E.PROMISE_BROKEN, _E.REFUSED, _E.CLOSED, _E.DRIFTED)
_OF_START = (_E.NOT_STARTED, _E.START_SENT, _E.ALL_STARTED)
_OF_WORKERS = (
    _E.BLIND, _E.STALLED, _E.GOES_ON, _E.STALLED_FOR_GOOD, _E.TROUBLE, _E.UNDECIDED, _E.RESTART_ASKED,
)  # fmt: skip
_OF_PROGRAM = (
    _E.NOT_JOINED, _E.SUCCEEDED, _E.MOUNTS_CHANGED, _E.JOINED, _E.PACE_CHANGED, _E.RECOVERED, _E.MOUNT_DEAD,
    _E.MOUNT_SICK, _E.RUNS, _E.NOT_FINITE, _E.NOT_FINITE_FOR_GOOD, _E.UNSEARCHED, _E.COMPILES,
)  # fmt: skip
_OF_LOSS = (_E.PREEMPTED, _E.FAILED, _E.HOST_LOST)
_OF_ATTEMPT = (*_OF_PREPARATION, *_OF_HOSTS, *_OF_START, *_OF_WORKERS, *_OF_PROGRAM, *_OF_LOSS)

REASONS: Sequence[tuple[tuple[RunPhase, ...], tuple[RunEvent, ...], str]] = (
    ((_P.OVER,), tuple(event for event in _E if event is not _E.OVER), "nothing is done for what is over"),
    (tuple(phase for phase in _P if phase is not _P.OVER), (_E.OVER,), "its record says that it goes on"),
    ((*_BEFORE_END, _P.ENDING), _OF_SLICE, "an attempt has its hosts, and loses them as preempted"),
    ((_P.WAITING, *_BEFORE_END), _OF_END, "no attempt is ending"),
    ((_P.WAITING,), _OF_ATTEMPT, "no attempt has hosts"),
    ((_P.ENDING,), (_E.STOP_REQUESTED,), "it ends already; then the run is over"),
    ((_P.ENDING,), tuple(each for each in _OF_ATTEMPT if each is not _E.BLIND), "its cause is written down"),
    (_STARTED, _OF_PREPARATION, "it is prepared"),
    ((_P.PREPARING,), _OF_START, "it is prepared first"),
    ((_P.PREPARING,), _OF_WORKERS, "nothing of it runs yet: workers are not asked how it stands"),
    (_BEFORE_START, _OF_PROGRAM, "its program is judged once all workers run it"),
    ((_P.RUNNING,), (*_OF_START, *_OF_HOSTS), "every worker has begun: nobody asks for more"),
)
"""Phases, events, and why they change nothing."""
IGNORED: Mapping[tuple[RunPhase, RunEvent], str] = {
    (phase, event): why for phases, events, why in REASONS for phase in phases for event in events
}
"""Pairs that change nothing, with the reason."""


def phase_of(run: RunRecord) -> RunPhase:
    """Where a run is, by its record."""
    if run.state.final:
        return RunPhase.OVER
    attempt = run.attempt
    if attempt is None or attempt.state is AttemptPhase.ENDED:
        return RunPhase.WAITING
    return RunPhase(attempt.state)
