"""What the store keeps about slices and runs: decisions and intents, not measurements."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.model.attempts import Attempt, CodeState, RunTotals
from tpuctl.model.clusters import ClusterRun
from tpuctl.model.hosts import Endpoint
from tpuctl.model.run_spec import RunSpec
from tpuctl.model.slice_spec import IN_PLACE, SliceSpec

MOVED = "moved"
"""The document that a store which has moved, or is about to, holds: where to, and whether all is there. From
then on nothing else in that store may change."""


class Desired(StrEnum):
    """What the user wants of a slice."""

    UP = "up"
    DOWN = "down"


class SliceState(StrEnum):
    """Our own state of a slice; the cloud's states are another type."""

    REQUESTED = "requested"
    PROVISIONING = "provisioning"
    BOOTING = "booting"
    INITIALIZING = "initializing"
    READY = "ready"
    LOST = "lost"
    REFUSED = "refused"
    REMOVED = "removed"
    DELETING = "deleting"
    GONE = "gone"


WITH_HOSTS = frozenset({SliceState.BOOTING, SliceState.INITIALIZING, SliceState.READY})
"""States in which the cloud says that there are hosts."""
HOSTS_ANSWER = frozenset({SliceState.INITIALIZING, SliceState.READY})
"""Those in which all of them answered."""


class Worker(Struct, frozen=True):
    """How a worker was reachable when it was last pinned."""

    endpoint: Endpoint
    host_key: str
    hostname: str = ""


class Doubt(Struct, frozen=True):
    """Something about a live incarnation is wrong since `since`; only time or another read ends it."""

    since: float
    why: str
    missing: bool = False
    """It is the node that is not there, not its hosts that are silent: the one says nothing about the other."""


class Answer(StrEnum):
    """How the cloud answered a call that changes something."""

    TAKEN = "taken"
    REFUSED = "refused"
    """Not now: another operation holds the resource, or it is in a state that passes."""
    NONE = "none"
    """No answer, or an internal error: it may have taken effect."""


class Retry(Struct, frozen=True):
    """A `create` or `delete` that is repeated until the cloud shows its effect. A call may be refused while
    another operation is in flight, its answer may be lost, or it may be accepted and dropped."""

    call: str
    since: float
    """Since when the answer is the same."""
    at: float
    """When it was made last."""
    answer: Answer
    said: str = ""


class Incarnation(Struct, frozen=True):
    """One life of a slice in the cloud. `cloud_name` is written here before the create and never used again."""

    number: int
    cloud_name: str
    requested_at: float
    create_called_at: float | None = None
    operation: str | None = None
    node_uid: str | None = None
    cloud_ready_at: float | None = None
    ready_at: float | None = None
    workers: tuple[Worker, ...] = ()
    doubt: Doubt | None = None
    adopted_uid: str = ""
    """Of a TPU that was taken over: the node's id, its identity where there are no labels."""
    adopted_request: str = ""
    """When its queued resource was created, which can never be labelled."""
    request_name: str = ""
    """Name of its queued resource where that is not `cloud_name`."""
    keys_sent_at: float | None = None
    """When the keys of machines that were enrolled after its create were sent to it last."""
    keys_sent: str = ""
    """Which they were: a digest of the keys that it should have, and of those that it should not."""
    by_hand: bool = False
    """It was made without tpuctl: only `down` deletes it, and no limit of time or idleness touches it."""
    given_up: bool = False
    """It is to go although the cloud shows it alive: its hosts were proved to be out of reach for good."""
    unseen_since: float | None = None
    """When a create was called that may have made what nobody saw yet; None once it was shown or refused."""
    unclear_since: float | None = None
    """Since when the cloud shows it in a state that this tpuctl does not know."""
    retry: Retry | None = None
    kept: str = ""
    """Why its deletion was refused when that was last written down."""
    leaves_since: float | None = None
    """Since when its hosts are asked to bring what they wrote to where it belongs, for it is to be deleted."""
    may_lose: bool = False
    """A person said that it is deleted even where that cannot be."""
    unsaved: str = ""
    """What its deletion may have lost."""

    @property
    def queued_name(self) -> str:
        return self.request_name or self.cloud_name


DENIED = "denied"
"""The kind of loss of what credentials or permissions refused: that passes, so it is asked for again."""


class Loss(Struct, frozen=True):
    """How the last incarnation ended."""

    at: float
    kind: str
    detail: str


class LifetimeLimits(Struct, frozen=True):
    """The lifetime that was requested: seconds from now, or seconds without use."""

    ttl_s: float | None = None
    idle_s: float | None = None


class Lifetime(Struct, frozen=True):
    """When a slice is deleted without `down`: at a moment (epoch seconds), or after so many seconds without
    use."""

    expires_at: float | None = None
    idle_s: float | None = None
    ttl_s: float | None = None
    """The span that ends at `expires_at`, as it was asked for."""


class Orphan(Struct, frozen=True):
    """A TPU of an earlier life of a slice that passes leave to a person, for its hosts can write a disk: why,
    and since when that is known. It costs as any other."""

    zone: str
    name: str
    since: float
    why: str


class Rival(Struct, frozen=True):
    """Another place in which a slice is asked for at the same time, with all that its record says of that one
    place."""

    spec: SliceSpec
    state: SliceState
    incarnation: Incarnation | None
    failures: int = 0
    not_before: float = 0.0
    loss: Loss | None = None


class SliceRecord(Struct, frozen=True):
    """One slice. `last_incarnation` only grows, also through `down` and a later `up`."""

    name: str
    spec: SliceSpec
    owner: str
    desired: Desired
    state: SliceState
    last_incarnation: int
    created_at: float
    incarnation: Incarnation | None = None
    failures: int = 0
    not_before: float = 0.0
    loss: Loss | None = None
    pay: bool = False
    """The user agreed to pay for what no grant covers."""
    run_id: str | None = None
    """The run this slice belongs to and goes with; None for a slice made by `up`."""
    zones: tuple[str, ...] = ()
    """Where it may be, in order of preference; empty means only in `spec.zone`, where it is now."""
    zone_not_before: Mapping[str, float] = field(default_factory=dict)
    """Until when each of them is left alone after it had no capacity."""
    lifetime: Lifetime | None = None
    fleet: str = ""
    """Name of the fleet file that asked for it; empty for a slice made by hand."""
    sweep: str = ""
    """The sweep that asked for it, by its `mark`: that alone uses it unasked and takes it down."""
    refused_zones: tuple[str, ...] = ()
    """Those of `zones` that will never serve this request, until it is asked for again."""
    any_user: bool = False
    """`down --all-users` was said of it: it goes whoever's label it carries."""
    orphans: tuple[Orphan, ...] = ()
    race_specs: tuple[SliceSpec, ...] = ()
    """Of a race of several types: what is asked for in each place."""
    rivals: tuple[Rival, ...] = ()
    """The other places of a race, until what was asked for there is gone."""
    last_asked_at: float = 0.0
    """When something was last asked for in those that are gone: it may take effect late."""

    @property
    def key(self) -> str:
        return f"slices/{self.name}"

    @property
    def by_hand(self) -> bool:
        """It was created without tpuctl: only `down` deletes it."""
        return self.incarnation is not None and self.incarnation.by_hand

    @property
    def requested_zones(self) -> tuple[str, ...]:
        """The zones that were requested."""
        return self.zones or (self.spec.zone,)

    @property
    def requested_specs(self) -> tuple[SliceSpec, ...]:
        """What was requested, in each place where it may be."""
        if not self.race_specs:
            return tuple(replace(self.spec, zone=zone) for zone in self.requested_zones)
        own = {name: getattr(self.spec, name) for name in IN_PLACE}
        return tuple(replace(spec, **own) for spec in self.race_specs)

    @property
    def candidates(self) -> tuple[str, ...]:
        """The requested zones that have not refused it for good. In a race each place stays where it is."""
        if self.spec.race:
            return (self.spec.zone,)
        return tuple(zone for zone in self.requested_zones if zone not in self.refused_zones) or (
            self.spec.zone,
        )

    @property
    def way_up(self) -> str:
        """What to type where its hosts are wanted. What cannot be had as it was asked for is refused again;
        permissions may come."""
        refused = self.state is SliceState.REFUSED and (self.loss is None or self.loss.kind != DENIED)
        return f"tpuctl {'down' if refused else 'up'} {self.name}"

    def led_by(self, number: int) -> SliceRecord:
        """The same slice seen from its rival of this number, whose place the present one takes: the view of one
        place of a race, and again the record."""
        rival = self.rivals[number]
        own = {name: getattr(self, name) for name in Rival.__struct_fields__}
        seen = {name: getattr(rival, name) for name in Rival.__struct_fields__}
        seen["spec"] = replace(rival.spec, **{name: getattr(self.spec, name) for name in IN_PLACE})
        rivals = (*self.rivals[:number], Rival(**own), *self.rivals[number + 1 :])
        return replace(self, **seen, rivals=rivals)

    @property
    def places(self) -> tuple[SliceRecord, ...]:
        """The slice as it is in each place where it is asked for: one, but for a race."""
        return (self, *(self.led_by(number) for number in range(len(self.rivals))))

    def wants(self, number: int) -> bool:
        """Whether an incarnation of this number may become the slice, or is it. Later ones are unknown. One
        that has no place lost a race, or an older tpuctl wrote the record without it."""
        if self.incarnation is None:
            return number >= self.last_incarnation
        racing = {
            rival.incarnation.number
            for rival in self.rivals
            if rival.incarnation and rival.state is not SliceState.DELETING
        }
        return number in {self.incarnation.number, *racing} or number > self.last_incarnation

    def differs_from(self, specs: Sequence[SliceSpec]) -> tuple[str, ...]:
        """The fields in which it differs from `specs`, which are one for each place in which it may be.

        Where of these it is now does not count; nor do fields that change in place.
        """
        own = {each.accelerator_type: each for each in self.requested_specs}
        wanted = {each.accelerator_type: each for each in specs}
        if own.keys() == wanted.keys():
            pairs = [(own[kind], wanted[kind]) for kind in own]
        else:
            pairs = [(self.requested_specs[0], specs[0])]
        names = [name for name in SliceSpec.__struct_fields__ if name not in {"zone", *IN_PLACE}]
        different = [name for name in names if any(getattr(a, name) != getattr(b, name) for a, b in pairs)]
        if own.keys() != wanted.keys() and "accelerator_type" not in different:
            different.insert(0, "accelerator_type")
        moved = {each.zone for each in self.requested_specs} != {each.zone for each in specs}
        return ("zone", *different) if moved else tuple(different)


class RunState(StrEnum):
    """Where a run stands; the last four are final."""

    WAITING = "waiting"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    GAVE_UP = "gave-up"

    @property
    def final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.GAVE_UP})
RUN_STATE_NOTES: Mapping[RunState, str] = {
    RunState.WAITING: "its slice is on its way, or the next attempt is due",
    RunState.PREPARING: "code and environment go to every worker; each acknowledges",
    RunState.RUNNING: "every worker runs",
    RunState.STOPPING: "a stop was asked for; TERM, then KILL after the grace period",
    RunState.SUCCEEDED: "every worker exited with 0",
    RunState.FAILED: "the budget of failures is used up, it failed at once and twice in the same way, or in "
    "a way that is certain to come again",
    RunState.STOPPED: "ended on request, or its slice was taken down",
    RunState.GAVE_UP: "the budget of preemptions or of restarts is used up",
}
"""What each state means, for the documents."""


class RunRecord(Struct, frozen=True):
    """One run: frozen at its first start, so that every later attempt from any machine is the same."""

    id: str
    spec: RunSpec
    code: CodeState
    owner: str
    created_at: float
    state: RunState
    fingerprint: str = ""
    """Digest of all that was asked for: the same command again means this run while it is not over."""
    stop_asked: bool = False
    attempt: Attempt | None = None
    failures: int = 0
    preemptions: int = 0
    restarts: int = 0
    quick_failure: str = ""
    """How the last attempt failed, if that was soon after its start."""
    fruitless: int = 0
    """Attempts in a row that the cloud ended before a newer checkpoint was written."""
    newest_checkpoint: float = 0.0
    question: str = ""
    """Why a person has to say how it goes on; empty while it goes on by itself."""
    ended_at: float | None = None
    reason: str = ""
    fleet: str = ""
    """Name of the fleet file that asked for it, and `fleet_run` its name there; empty for one made by hand."""
    fleet_run: str = ""
    rerun_of: str = ""
    """The run whose manifest it repeats."""
    chips: tuple[int, ...] = ()
    """Those of its one host that it alone may use until it is over; empty for all of its slice."""

    cluster: ClusterRun | None = None
    """Where it is if not on a slice; then `slice_name` is that place, which no slice can be called."""

    @property
    def key(self) -> str:
        return f"runs/{self.id}"

    totals: RunTotals | None = None
    """What went into it, once it is over; None for runs of earlier versions."""

    @property
    def slice_name(self) -> str:
        return self.spec.slice_name

    @property
    def wandb_id(self) -> str:
        """Its id for Weights & Biases: the same for all attempts, and another one where an id of ours is used
        again, because W&B never takes the id of a deleted run again. At most 64 characters."""
        digest = hashlib.sha256(f"{self.id} {self.created_at!r}".encode()).hexdigest()[:8]
        return f"{self.id[:55].rstrip('-')}-{digest}"

    @property
    def checkpoint_place(self) -> str | None:
        """Its checkpoint directory, as a `gs://` prefix."""
        return self.spec.checkpoint_place(self.id)
