"""The life of a slice as data: which of our states follows which event, and what is to be done there.

`classify_slice` of `classify.py` turns one observation of the cloud into one event; `TRANSITIONS` says where it
leads. Every (state, event) pair stands either there or in `IGNORED`; a test walks the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from tpuctl.model.records import DENIED, WITH_HOSTS, SliceState


class SliceEvent(StrEnum):
    """What the cloud shows about the current incarnation of a slice."""

    ABSENT = "absent"
    QUEUED = "queued"
    CREATING = "creating"
    NODE_READY = "node-ready"
    PREEMPTED = "preempted"
    TIME_OVER = "time-over"
    """The cloud ended its hosts when the time for which they were asked for was over."""
    CREATE_FAILED = "create-failed"
    CREATE_REFUSED = "create-refused"
    ENDED_BY_PERSON = "ended-by-person"
    """A person ended the request: suspended it, or deleted it while it waited."""
    STOPPED = "stopped"
    DELETING = "deleting"
    FOREIGN = "foreign"
    NODE_MISSING = "node-missing"
    """The request was fulfilled, but its hosts are not there."""
    HALF_MADE = "half-made"
    """Some of its objects are there, but none that has hosts: a create or a deletion did not end."""
    UNCLEAR = "unclear"
    """It exists, in a state that we do not know."""
    UNKNOWN = "unknown"
    """It could not be read."""


class Effect(StrEnum):
    """What a transition asks the workflow to do."""

    CREATE = "create"
    PROBE_HOSTS = "probe-hosts"
    INITIALIZE_HOSTS = "initialize-hosts"
    DOUBT = "doubt"
    """Write down since when something is wrong."""
    TRUST = "trust"
    """Forget the doubt: the cloud is at work on it."""
    MARK_UNCLEAR = "mark-unclear"
    """Write down since when its state is one that we do not know, or that it is known again."""
    RECORD_LOSS = "record-loss"
    DELETE = "delete"
    RENEW = "renew"


class To(Struct, frozen=True):
    """Where a transition leads and what is done on the way."""

    state: SliceState
    effect: Effect | None = None


_S, _E = SliceState, SliceEvent

TRANSITIONS: Mapping[tuple[SliceState, SliceEvent], To] = {
    (_S.REQUESTED, _E.ABSENT): To(_S.REQUESTED, Effect.CREATE),
    (_S.REQUESTED, _E.QUEUED): To(_S.PROVISIONING),
    (_S.REQUESTED, _E.CREATING): To(_S.PROVISIONING),
    (_S.REQUESTED, _E.NODE_READY): To(_S.BOOTING),
    (_S.REQUESTED, _E.PREEMPTED): To(_S.LOST, Effect.RECORD_LOSS),
    (_S.REQUESTED, _E.CREATE_FAILED): To(_S.LOST, Effect.RECORD_LOSS),
    (_S.REQUESTED, _E.CREATE_REFUSED): To(_S.REFUSED, Effect.RECORD_LOSS),
    (_S.REQUESTED, _E.ENDED_BY_PERSON): To(_S.REMOVED),
    (_S.REQUESTED, _E.FOREIGN): To(_S.LOST, Effect.RECORD_LOSS),
    (_S.REQUESTED, _E.HALF_MADE): To(_S.REQUESTED, Effect.CREATE),
    (_S.PROVISIONING, _E.ABSENT): To(_S.LOST, Effect.RECORD_LOSS),
    (_S.PROVISIONING, _E.NODE_READY): To(_S.BOOTING),
    (_S.PROVISIONING, _E.PREEMPTED): To(_S.LOST, Effect.RECORD_LOSS),
    (_S.PROVISIONING, _E.CREATE_FAILED): To(_S.LOST, Effect.RECORD_LOSS),
    (_S.PROVISIONING, _E.CREATE_REFUSED): To(_S.REFUSED, Effect.RECORD_LOSS),
    (_S.PROVISIONING, _E.ENDED_BY_PERSON): To(_S.REMOVED),
    # ACTIVE means that all nodes were created: one that nobody saw is gone again.
    (_S.PROVISIONING, _E.NODE_MISSING): To(_S.PROVISIONING, Effect.DOUBT),
    (_S.PROVISIONING, _E.HALF_MADE): To(_S.REQUESTED),
    (_S.BOOTING, _E.NODE_READY): To(_S.BOOTING, Effect.PROBE_HOSTS),
    (_S.BOOTING, _E.PREEMPTED): To(_S.LOST, Effect.RECORD_LOSS),
    (_S.BOOTING, _E.ABSENT): To(_S.REMOVED),
    (_S.BOOTING, _E.ENDED_BY_PERSON): To(_S.REMOVED),
    (_S.BOOTING, _E.CREATE_FAILED): To(_S.LOST, Effect.RECORD_LOSS),
    (_S.BOOTING, _E.NODE_MISSING): To(_S.BOOTING, Effect.DOUBT),
    (_S.BOOTING, _E.CREATING): To(_S.BOOTING, Effect.TRUST),
    # What is left has no hosts: somebody deleted these.
    (_S.BOOTING, _E.HALF_MADE): To(_S.REMOVED),
    (_S.INITIALIZING, _E.NODE_READY): To(_S.INITIALIZING, Effect.INITIALIZE_HOSTS),
    **{
        (state, event): to
        for state in (_S.INITIALIZING, _S.READY)
        for event, to in (
            (_E.NODE_MISSING, To(_S.BOOTING, Effect.DOUBT)),
            (_E.PREEMPTED, To(_S.LOST, Effect.RECORD_LOSS)),
            (_E.ABSENT, To(_S.REMOVED)),
            (_E.ENDED_BY_PERSON, To(_S.REMOVED)),
            (_E.CREATE_FAILED, To(_S.LOST, Effect.RECORD_LOSS)),
            (_E.CREATING, To(_S.BOOTING)),
            (_E.HALF_MADE, To(_S.REMOVED)),
        )
    },
    (_S.LOST, _E.ABSENT): To(_S.REQUESTED, Effect.RENEW),
    (_S.LOST, _E.FOREIGN): To(_S.REQUESTED, Effect.RENEW),
    **{
        (_S.LOST, event): To(_S.LOST, Effect.DELETE)
        for event in _E
        if event not in {_E.ABSENT, _E.FOREIGN, _E.UNKNOWN, _E.UNCLEAR, _E.DELETING, _E.NODE_READY}
    },
    # It is there and has its id: it was not removed, or somebody brought it back. It must not cost unseen.
    (_S.REMOVED, _E.NODE_READY): To(_S.BOOTING),
    # A create that was given up on and came up late is taken, not deleted.
    (_S.LOST, _E.NODE_READY): To(_S.BOOTING),
    **{
        (_S.REFUSED, event): To(_S.REFUSED, Effect.DELETE)
        for event in (_E.CREATE_FAILED, _E.CREATE_REFUSED, _E.PREEMPTED, _E.TIME_OVER, _E.HALF_MADE)
    },
    # A refusal that was no refusal: an earlier call, whose answer was lost, had gone through.
    (_S.REFUSED, _E.NODE_READY): To(_S.BOOTING),
    (_S.REFUSED, _E.QUEUED): To(_S.PROVISIONING),
    (_S.REFUSED, _E.CREATING): To(_S.PROVISIONING),
    **{
        (_S.DELETING, event): To(_S.DELETING, Effect.DELETE)
        for event in _E
        if event not in {_E.ABSENT, _E.FOREIGN, _E.UNKNOWN, _E.DELETING}
    },
    **{
        (state, _E.TIME_OVER): To(_S.LOST, Effect.RECORD_LOSS)
        for state in (_S.REQUESTED, _S.PROVISIONING, *WITH_HOSTS)
    },
    (_S.DELETING, _E.ABSENT): To(_S.GONE),
    (_S.DELETING, _E.FOREIGN): To(_S.GONE),
}
"""What follows what. DELETING is entered by `down`, not by an event."""

IGNORED: frozenset[tuple[SliceState, SliceEvent]] = frozenset(
    [
        *((state, _E.UNKNOWN) for state in _S),  # what could not be read proves nothing
        *((state, _E.DELETING) for state in _S),  # wait until the API says not-found
        *((_S.GONE, event) for event in _E),
        *((_S.REMOVED, event) for event in _E if event is not _E.NODE_READY),  # waits for `up`
        *((state, _E.STOPPED) for state in (_S.REQUESTED, _S.PROVISIONING, *WITH_HOSTS)),
        (_S.PROVISIONING, _E.QUEUED),
        (_S.PROVISIONING, _E.CREATING),
        (_S.PROVISIONING, _E.FOREIGN),
        *((state, event) for state in WITH_HOSTS for event in (_E.QUEUED, _E.CREATE_REFUSED, _E.FOREIGN)),
        (_S.READY, _E.NODE_READY),
        # Nothing is deleted by itself in a state that we do not know; `down` does it.
        *((state, _E.UNCLEAR) for state in _S if state is not _S.DELETING),
        *((state, _E.NODE_MISSING) for state in (_S.REQUESTED, _S.REFUSED)),
        *((_S.REFUSED, e) for e in (_E.ABSENT, _E.FOREIGN, _E.STOPPED)),
        (_S.REFUSED, _E.ENDED_BY_PERSON),
    ]
)
"""Pairs that change nothing, on purpose."""

STATE_NOTES: Mapping[SliceState, tuple[str, str]] = {
    _S.REQUESTED: ("up, recovery", "the intent is written; the create is called or about to be"),
    _S.PROVISIONING: ("cloud", "the cloud has the request: queued or creating"),
    _S.BOOTING: ("cloud", "the node is READY; not every host has answered over SSH yet"),
    _S.INITIALIZING: ("tpuctl", "every host answered with its pinned key; not every one is as asked yet"),
    _S.READY: ("tpuctl", "every host answered and is as asked"),
    _S.LOST: ("cloud", "preempted or failed to come up; what is left is deleted, then asked for again"),
    _S.REFUSED: ("cloud", "the request can never succeed as it is; waits for another `up`"),
    _S.REMOVED: ("a person", "deleted or suspended outside tpuctl; stays so until `up`"),
    _S.DELETING: ("down", "being deleted until the cloud says not-found"),
    _S.GONE: ("tpuctl", "nothing is left in the cloud"),
}
"""Who sets each state and what it means, for the documents."""

FINAL_STATES = frozenset({_S.REFUSED, _S.REMOVED, _S.GONE})
"""States in which a slice waits for a person; only what the cloud still shows of it is of interest."""


class LossKind(StrEnum):
    """How an incarnation ended that the loop goes on from, in the journal and as `Loss.kind`."""

    PREEMPTED = "preempted"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    """Its hardware fails."""
    TIME_OVER = "time-over"
    """Compute Engine ended it when its time was over."""
    CREATE_FAILED = "create-failed"
    ABSENT = "absent"
    """It was on its way and is not there any more."""
    ZONE_REFUSED = "zone-refused"
    """That zone will never serve the request, and others are left."""
    DENIED = DENIED


class ObservedEvent(Struct, frozen=True):
    """The event that a `SliceInfo` amounts to, and the reason in words."""

    event: SliceEvent
    why: str
    pending: bool = False
    """Only an operation that has not ended speaks for it: there is nothing to show."""
    left: str = ""
    """Of what is half made, the kind of the object that was made last and is deleted next."""
