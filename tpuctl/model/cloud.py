"""The nouns of tpuctl as plain frozen data.

`…Info` is what was seen in the cloud just now, `…Record` (in `records.py`) what the store keeps. Cloud states
are parsed into our own enums; a value we do not know becomes UNKNOWN, it never raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from tpuctl.model.disks import DataDisk
from tpuctl.model.hosts import Api as Api
from tpuctl.model.hosts import Endpoint as Endpoint
from tpuctl.model.hosts import FailureKind as FailureKind
from tpuctl.model.hosts import HostTarget as HostTarget
from tpuctl.model.hosts import RemoteResult as RemoteResult
from tpuctl.model.hosts import Tier as Tier
from tpuctl.model.resources import BESIDE_TPUS as BESIDE_TPUS
from tpuctl.model.resources import INCARNATION_LABEL as INCARNATION_LABEL
from tpuctl.model.resources import OWNER_LABEL as OWNER_LABEL
from tpuctl.model.resources import STORE_LABEL as STORE_LABEL
from tpuctl.model.resources import USER_LABEL as USER_LABEL
from tpuctl.model.resources import CloudResource as CloudResource
from tpuctl.model.resources import ResourceKind as ResourceKind
from tpuctl.model.slice_spec import SliceOptions


class NodeState(StrEnum):
    """`tpu.v2.Node.State`, as published in google-cloud-tpu 1.28, and one of our own."""

    CREATING = "CREATING"
    READY = "READY"
    RESTARTING = "RESTARTING"
    REIMAGING = "REIMAGING"
    DELETING = "DELETING"
    REPAIRING = "REPAIRING"
    STOPPED = "STOPPED"
    STOPPING = "STOPPING"
    STARTING = "STARTING"
    PREEMPTED = "PREEMPTED"
    TERMINATED = "TERMINATED"
    HIDING = "HIDING"
    HIDDEN = "HIDDEN"
    UNHIDING = "UNHIDING"
    UNKNOWN = "UNKNOWN"
    HALF_MADE = "HALF_MADE"
    """Ours: of the objects of a slice of Compute Engine some are there, but not the group of its hosts."""

    @classmethod
    def parse(cls, value: str) -> NodeState:
        return cls(value) if value in cls.__members__ and value != cls.HALF_MADE else cls.UNKNOWN


class QueuedState(StrEnum):
    """`tpu.v2.QueuedResourceState.State`, as published in google-cloud-tpu 1.28."""

    CREATING = "CREATING"
    ACCEPTED = "ACCEPTED"
    WAITING_FOR_RESOURCES = "WAITING_FOR_RESOURCES"
    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    FAILED = "FAILED"
    DELETING = "DELETING"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    UNKNOWN = "UNKNOWN"

    @classmethod
    def parse(cls, value: str) -> QueuedState:
        return cls(value) if value in cls.__members__ else cls.UNKNOWN


class CloudErrorInfo(Struct, frozen=True):
    """An error reported inside an operation or a queued resource (google.rpc.Status); `details` as JSON."""

    code: int
    message: str
    details: tuple[Mapping[str, Any], ...] = ()


class GroupHosts(Struct, frozen=True):
    """The instances that are the hosts of a slice of Compute Engine. They end one by one: `running` are those
    `there` that run or may run, both by name and in order; `wanted` is how many there are to be."""

    wanted: int
    there: tuple[str, ...] = ()
    running: tuple[str, ...] = ()


DEAD_NODES = frozenset({NodeState.PREEMPTED, NodeState.TERMINATED})
"""States in which a node never gives its chips again."""


class NodeInfo(Struct, frozen=True):
    """A node as the TPU API shows it, or what stands for one in Compute Engine: the group of its hosts, or its
    one instance. `uid` is the server's numeric id, new for every incarnation."""

    name: str
    zone: str
    uid: str
    state: NodeState
    accelerator_type: str
    runtime_version: str
    tier: Tier
    health: str = ""
    health_description: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    create_time: str = ""
    queued_resource: str | None = None
    data_disks: tuple[DataDisk, ...] = ()
    options: SliceOptions = SliceOptions()
    """With what it was asked for, as far as nodes show it; nothing for what a request gets by default."""
    tags: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    """Fields of the API in which it is what no `SliceSpec` can ask for."""
    parts: tuple[NodeInfo, ...] = ()
    """The nodes of a multislice that this one stands for, in order; empty for a plain node."""
    kind: ResourceKind = ResourceKind.NODE
    """In Compute Engine a slice is a group or one instance; while it is half made, what is deleted next."""
    api: Api = Api.TPU
    machine_type: str = ""
    holds: tuple[str, ...] = ()
    """The ids of the template and the policy that tpuctl made for a group: they go with it."""
    stays: tuple[CloudResource, ...] = ()
    """The template and the policy of a group that somebody else made: they stay where it goes."""
    error: CloudErrorInfo | None = None
    """Why hosts of a group could not be made when that was tried last."""
    hosts: GroupHosts | None = None
    """None for nodes of the TPU API, all hosts of which end together; of what is half made, there are none."""
    ends_at: float | None = None
    """When Compute Engine ends the first of its hosts, whoever lives then."""

    @property
    def runs_in_part(self) -> bool:
        """Whether some of its hosts run, although its state is that of those that ended."""
        ended = self.state in DEAD_NODES or self.state is NodeState.STOPPED
        return ended and self.hosts is not None and bool(self.hosts.running)

    @property
    def is_dead(self) -> bool:
        """Whether none of its hosts runs, and none ever will."""
        return self.state in DEAD_NODES and not self.runs_in_part

    @property
    def resource(self) -> CloudResource:
        return _tpu(self.kind, self, self.uid)


class QueuedInfo(Struct, frozen=True):
    """A queued resource as the API shows it; `labels` are those of its first node spec."""

    name: str
    zone: str
    state: QueuedState
    initiator: str
    node_ids: tuple[str, ...]
    accelerator_type: str
    tier: Tier
    labels: Mapping[str, str] = field(default_factory=dict)
    error: CloudErrorInfo | None = None
    create_time: str = ""
    reservation: str | None = None

    @property
    def resource(self) -> CloudResource:
        return _tpu(ResourceKind.QUEUED, self, self.create_time)


def _tpu(kind: ResourceKind, info: NodeInfo | QueuedInfo, uid: str) -> CloudResource:
    return CloudResource(
        kind,
        info.name,
        info.zone,
        info.accelerator_type,
        str(info.state),
        uid,
        info.tier,
        info.labels,
        info.create_time,
    )


class OperationInfo(Struct, frozen=True):
    """A cloud long-running operation; `name` is its full resource name."""

    name: str
    done: bool
    error: CloudErrorInfo | None = None
    target: str = ""


class OfferInfo(Struct, frozen=True):
    """An accelerator type that the API lists for a zone. `config_type` and `topology` describe it."""

    name: str
    config_type: str
    topology: str


class GuestHostKey(Struct, frozen=True):
    """What a worker's guest attributes say about it. `public_key` is `ssh-ed25519 AAAA…`."""

    worker: int
    public_key: str
    hostname: str = ""


T = TypeVar("T")


class Listing(Struct, Generic[T], frozen=True):
    """A list answer. Zones in `unreachable` were not read: absence there proves nothing."""

    items: tuple[T, ...]
    unreachable: frozenset[str] = frozenset()

    def find(self, location: str, name: str) -> T | None:
        """What is listed there under that name. None means that it is gone only if it is `absent`."""
        return next((each for each in self.items if _place(each) == (location, name)), None)

    def absent(self, location: str, name: str) -> bool:
        """Whether the list proves that there is no such thing: its place was read, and it is not there."""
        return location not in self.unreachable and self.find(location, name) is None


def _place(item: Any) -> tuple[str, str]:
    where = getattr(item, "zone", None)
    return (where if where is not None else item.location), item.name


class ObjectInfo(Struct, frozen=True):
    """One object of a bucket. `generation` is the server's version of its content; `crc32c` is big-endian in
    base64 (https://cloud.google.com/storage/docs/json_api/v1/objects#resource)."""

    name: str
    generation: int
    size: int
    updated: str = ""
    crc32c: str = ""
    metadata: Mapping[str, str] = {}
    """What its writer noted on it (`ObjectHeaders`)."""


class ObjectHeaders(Struct, frozen=True):
    """How an object is to be served, and notes on it, which listings show."""

    content_type: str
    cache_control: str = ""
    metadata: Mapping[str, str] = {}
