"""The life of a run on a cluster as data: which phase follows which event, and what is done on the way.

JobSet and Kueue act; here it is applied, looked at and deleted. `classify` of `plan.py` makes one event of what
was seen. Every (phase, event) pair stands in `TRANSITIONS` or in `IGNORED`, with the reason; a test walks the
product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from tpuctl.model.attempts import AttemptPhase
from tpuctl.model.records import RunRecord


class ClusterPhase(StrEnum):
    """Where a run is, by its record."""

    ASKED = "asked"
    """Written down; whether anything of it is on the cluster is not known yet."""
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"


class ClusterEvent(StrEnum):
    """What a look at the cluster shows."""

    OVER = "over"
    TO_BE_DELETED = "to-be-deleted"
    """Its end was asked for, or is certain, and its JobSet is there."""
    LEAVING = "leaving"
    """Its JobSet is being deleted."""
    GONE = "gone"
    """It has none, and its end was asked for."""
    TAKEN = "taken"
    """The JobSet of its name belongs to another run."""
    ABSENT = "absent"
    """It has no JobSet, and none was seen yet."""
    REMOVED = "removed"
    """Somebody removed its JobSet."""
    COMPLETED = "completed"
    FAILED = "failed"
    RESTARTED = "restarted"
    EVICTED = "evicted"
    """It had been admitted, and is suspended again."""
    WAITS = "waits"
    HOPELESS = "hopeless"
    """A pod of it can never begin."""
    STARTS = "starts"
    RUNS = "runs"


class ClusterEffect(StrEnum):
    """What a transition asks for."""

    APPLY = "apply"
    DELETE = "delete"
    GIVE_UP = "give-up"
    """Write down why it cannot be, then delete it."""
    NOTE = "note"
    """Write down what it waits for, if that is new."""
    BEGIN_ATTEMPT = "begin-attempt"
    MARK_RUNNING = "mark-running"
    NEXT_ATTEMPT = "next-attempt"
    END_ATTEMPT = "end-attempt"
    FINISH = "finish"


class To(Struct, frozen=True):
    """Where a transition leads, and what is done on the way; without an effect it is waited."""

    phase: ClusterPhase
    effect: ClusterEffect | None = None


_P, _E, _F = ClusterPhase, ClusterEvent, ClusterEffect
_APPLIED = (_P.QUEUED, _P.STARTING, _P.RUNNING)
_OPEN = (_P.ASKED, *_APPLIED)
_WITH_ATTEMPT = (_P.STARTING, _P.RUNNING)

TRANSITIONS: Mapping[tuple[ClusterPhase, ClusterEvent], To] = {
    (_P.OVER, _E.OVER): To(_P.OVER),
    **{(phase, _E.TO_BE_DELETED): To(_P.ENDING, _F.DELETE) for phase in (*_OPEN, _P.ENDING)},
    **{(phase, _E.GONE): To(_P.OVER, _F.FINISH) for phase in (*_OPEN, _P.ENDING)},
    **{(phase, _E.LEAVING): To(phase) for phase in (*_OPEN, _P.ENDING)},
    **{(phase, _E.TAKEN): To(_P.OVER, _F.FINISH) for phase in _OPEN},
    (_P.ASKED, _E.ABSENT): To(_P.QUEUED, _F.APPLY),
    # A crash came between what was applied and the word of it: the same again changes nothing there.
    **{
        (_P.ASKED, event): To(_P.QUEUED, _F.APPLY)
        for event in (
            _E.WAITS, _E.STARTS, _E.RUNS, _E.HOPELESS, _E.RESTARTED, _E.COMPLETED, _E.FAILED,
        )
    },
    **{(phase, _E.REMOVED): To(_P.OVER, _F.FINISH) for phase in _APPLIED},
    (_P.QUEUED, _E.WAITS): To(_P.QUEUED, _F.NOTE),
    **{
        (_P.QUEUED, event): To(_P.STARTING, _F.BEGIN_ATTEMPT)
        for event in (_E.STARTS, _E.RUNS, _E.HOPELESS, _E.RESTARTED, _E.COMPLETED, _E.FAILED)
    },
    (_P.STARTING, _E.STARTS): To(_P.STARTING, _F.NOTE),
    (_P.STARTING, _E.RUNS): To(_P.RUNNING, _F.MARK_RUNNING),
    (_P.STARTING, _E.HOPELESS): To(_P.ENDING, _F.GIVE_UP),
    # Pods that have ended are told while they are there: with a restart they go.
    (_P.RUNNING, _E.RUNS): To(_P.RUNNING, _F.NOTE),
    (_P.RUNNING, _E.STARTS): To(_P.RUNNING, _F.NOTE),
    **{
        (phase, event): to
        for phase in _WITH_ATTEMPT
        for event, to in (
            (_E.COMPLETED, To(_P.OVER, _F.FINISH)),
            (_E.FAILED, To(_P.OVER, _F.FINISH)),
            (_E.RESTARTED, To(_P.STARTING, _F.NEXT_ATTEMPT)),
            (_E.EVICTED, To(_P.QUEUED, _F.END_ATTEMPT)),
        )
    },
}  # fmt: skip
"""What follows what."""

_OF_LIFE = tuple(
    event
    for event in _E
    if event not in {_E.OVER, _E.TO_BE_DELETED, _E.LEAVING, _E.GONE}
)  # fmt: skip
REASONS: Sequence[tuple[tuple[ClusterPhase, ...], tuple[ClusterEvent, ...], str]] = (
    ((_P.OVER,), tuple(event for event in _E if event is not _E.OVER), "nothing is done for what is over"),
    ((*_OPEN, _P.ENDING), (_E.OVER,), "its record says that it goes on"),
    ((_P.ENDING,), _OF_LIFE, "its end is written down: its JobSet is deleted whatever it does"),
    (_APPLIED, (_E.ABSENT,), "its JobSet was there: then it was removed"),
    ((_P.ASKED,), (_E.REMOVED,), "its JobSet was never seen"),
    ((_P.ASKED, _P.QUEUED), (_E.EVICTED,), "it has no attempt yet, so it only waits"),
    (_WITH_ATTEMPT, (_E.WAITS,), "it had been admitted: then it was evicted"),
    ((_P.RUNNING,), (_E.HOPELESS,), "all its pods have begun: JobSet restarts it, and then it cannot begin"),
)
"""Phases, events, and why they change nothing."""
IGNORED: Mapping[tuple[ClusterPhase, ClusterEvent], str] = {
    (phase, event): why for phases, events, why in REASONS for phase in phases for event in events
}


def phase_of(run: RunRecord) -> ClusterPhase:
    """Where a run is, by its record."""
    attempt, cluster = run.attempt, run.cluster
    if run.state.final:
        return ClusterPhase.OVER
    if run.stop_asked or (attempt is not None and attempt.state is AttemptPhase.ENDING):
        return ClusterPhase.ENDING
    if cluster is None or not cluster.uid:
        return ClusterPhase.ASKED
    if attempt is None or attempt.state is AttemptPhase.ENDED:
        return ClusterPhase.QUEUED
    return ClusterPhase.RUNNING if attempt.state is AttemptPhase.RUNNING else ClusterPhase.STARTING
