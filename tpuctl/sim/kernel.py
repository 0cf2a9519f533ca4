"""What the parts of the simulated world share: state, lock, time, ids, hosts and options."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tpuctl.errors import UsageError
from tpuctl.sim.catalog import Offer, SimCatalog
from tpuctl.sim.clock import Clock, Schedule, rfc3339
from tpuctl.sim.faults import FaultPlan
from tpuctl.sim.hosts.interface import HostAddress, HostBackend
from tpuctl.sim.ids import Ids
from tpuctl.sim.paths import ResourcePath
from tpuctl.sim.status import ApiError, Code

Json = dict[str, Any]


@dataclass(frozen=True)
class Delays:
    """How long things take, in seconds before the speed is applied. Defaults follow published logs of TRC
    spot capacity (create to READY p50 about 3 minutes, delete about one)."""

    node_create: float = 150.0
    node_delete: float = 60.0
    node_stop: float = 40.0
    node_start: float = 60.0
    node_patch: float = 3.0
    create_failure: float = 130.0
    preempt_visible: float = 10.0
    """From the death of the hosts until the API says so."""
    queued_accept: float = 2.0
    queued_wait: float = 30.0
    queued_assign: float = 10.0
    queued_suspend: float = 30.0
    queued_delete: float = 20.0

    @classmethod
    def instant(cls) -> Delays:
        """Everything is done as soon as the schedule runs."""
        return cls(**{each.name: 0.0 for each in fields(cls)})

    @classmethod
    def parse(cls, spec: str | dict[str, float] | None) -> Delays:
        """`realistic`, `instant`, or a mapping of single delays over the realistic ones."""
        if spec is None or spec == "realistic":
            return cls()
        if spec == "instant":
            return cls.instant()
        if isinstance(spec, dict) and set(spec) <= {each.name for each in fields(cls)}:
            return replace(cls(), **spec)
        raise UsageError(
            f"unknown delays `{spec}`",
            hint=f"`instant`, `realistic` or keys of: {', '.join(each.name for each in fields(cls))}",
        )


@dataclass
class Node:
    """One incarnation of a node: what the API shows (`data`) and what stands behind it."""

    path: ResourcePath
    key: str
    """Names the incarnation towards the host backend."""
    data: Json
    offer: Offer
    tag: str
    """The hex part of the host names."""
    queued: ResourcePath | None = None
    addresses: list[HostAddress] = field(default_factory=list)
    preempted: bool = False
    host_lock: threading.Lock = field(default_factory=threading.Lock)
    """Serialises host work of this incarnation; never taken while the world's lock is held."""
    gone: bool = False
    """Set before the hosts are destroyed, so that a late creation does not bring them back."""

    @property
    def state(self) -> str:
        return str(self.data["state"])

    def hostname(self, worker: int) -> str:
        return f"t1v-n-{self.tag}-w-{worker}"


@dataclass
class Queued:
    """A queued resource as the API shows it."""

    path: ResourcePath
    data: Json
    node_paths: list[ResourcePath]
    chips: int
    offer: Offer
    failure: ApiError | None = None

    @property
    def state(self) -> str:
        return str(self.data["state"]["state"])


@dataclass
class Kernel:
    """Shared by all parts of one world. `lock` guards `nodes`, `queued`, `operations` and `requests`."""

    project: str
    clock: Clock
    schedule: Schedule
    ids: Ids
    delays: Delays
    speed: float
    catalog: SimCatalog
    hosts: HostBackend
    faults: FaultPlan
    quotas: dict[str, int]
    """Most chips per `ZONE` or `ZONE/GENERATION`; absent means plenty."""
    host_environment: Callable[[], dict[str, str]]
    lock: threading.RLock = field(default_factory=threading.RLock)
    nodes: dict[str, Node] = field(default_factory=dict)
    queued: dict[str, Queued] = field(default_factory=dict)
    operations: dict[str, Json] = field(default_factory=dict)
    requests: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """(method, resource, requestId) → the operation it got."""

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.schedule.after(delay_s / self.speed, action)

    def timestamp(self) -> str:
        return rfc3339(self.clock.now())

    def check_zone(self, path: ResourcePath) -> None:
        """Refuses other projects and zones that the catalog does not know."""
        if path.project != self.project:
            raise ApiError(Code.PERMISSION_DENIED, f"Permission denied on resource project {path.project}.")
        if path.zone not in self.catalog.zones():
            raise ApiError(
                Code.PERMISSION_DENIED,
                f"Permission denied on 'locations/{path.zone}' (or it may not exist).",
            )

    def current(self, node: Node) -> bool:
        """Whether this incarnation is still the one behind its name."""
        return self.nodes.get(node.path.name) is node
