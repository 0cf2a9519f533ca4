"""What the parts of the simulated world share: state, lock, time, ids, hosts and options."""

from __future__ import annotations

import math
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from tpuctl.model.accelerators import AcceleratorType
from tpuctl.sim.hosts.backend import HostAddress, HostBackend
from tpuctl.sim.hosts.metrics_server import Load
from tpuctl.sim.wire.status import ApiError, Code, Json, invalid_argument, location_denied, not_found
from tpuctl.sim.wire.timestamps import rfc3339
from tpuctl.sim.world.catalog import SimCatalog
from tpuctl.sim.world.clock import Clock, Schedule
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.faults import FaultKind, FaultPlan
from tpuctl.sim.world.paths import ResourcePath, attached_disk, parse_path


class Ids:
    """Thread-safe; the same seed and the same order of calls give the same identifiers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def _hex(self, digits: int) -> str:
        with self._lock:
            return f"{self._random.getrandbits(digits * 4):0{digits}x}"

    def node_id(self) -> str:
        """`Node.id`: an int64, which JSON carries as a string."""
        with self._lock:
            return str(self._random.randrange(10**18, 9 * 10**18))

    def operation_id(self, now: float) -> str:
        """`operation-<ms epoch>-<13 hex>-<8 hex>-<8 hex>`, as real operation names look."""
        return f"operation-{int(now * 1000)}-{self._hex(13)}-{self._hex(8)}-{self._hex(8)}"

    def eid(self) -> str:
        """The `[EID: 0x…]` of error texts."""
        return f"0x{self._hex(16)}"

    def short(self) -> str:
        """Eight hex digits, for host names like `t1v-n-9472280f-w-0`."""
        return self._hex(8)


def copy_json(value: Any) -> Any:
    """A copy that shares nothing that can change; many times faster than `copy.deepcopy` for plain JSON."""
    return msgspec.to_builtins(value)


RO, RW = "READ_ONLY", "READ_WRITE"
"""How a disk is attached."""


class Life(Protocol):
    """What becomes of machines by itself or by steering; the kind of machine has one."""

    def preempt(self, machine: Any, /) -> None:
        """Takes its capacity away; returns when its hosts are dead."""
        ...

    def reboot(self, machine: Any, workers: Collection[int] | None, /) -> None:
        """Of all workers, or of some: down in order, and up again a while later."""
        ...

    def apply_keys(self, machine: Any, /) -> None:
        """Its hosts take the keys that its metadata and the project's have now."""
        ...

    def load(self, machine: Any, workers: Collection[int] | None, fields: Mapping[str, str] | None, /) -> None:
        """Programs seem to run there, as `fields` of `Load` say; None for none."""
        ...


def guest_items(found: Mapping[str, str], query: str) -> list[Json]:
    """Guest attributes below `query` (`NAMESPACE/` or `NAMESPACE/KEY`; all for nothing), as APIs show them."""
    return [
        {"namespace": path.rpartition("/")[0], "key": path.rpartition("/")[2], "value": value}
        for path, value in found.items()
        if not query or path == query or path.startswith(query.rstrip("/") + "/")
    ]


@dataclass(frozen=True)
class Attachment:
    """A data disk that a machine holds."""

    disk: tuple[str, str]
    """Zone and name."""
    mode: str
    users: tuple[str, ...]
    """Who has it, as Compute Engine calls machines, relative to its root."""


@dataclass
class Machine(ABC):
    """One incarnation of what has hosts, a node of the TPU API or an instance of Compute Engine: what its API
    shows (`data`) and what stands behind it."""

    path: ResourcePath
    key: str
    """Names the incarnation towards the host backend."""
    data: Json
    life: Life = field(kw_only=True, repr=False)
    addresses: list[HostAddress] = field(default_factory=list, kw_only=True)
    """In the order of `workers`."""
    preempted: bool = field(default=False, kw_only=True)
    host_lock: threading.Lock = field(default_factory=threading.Lock, kw_only=True)
    """Serialises host work of this incarnation; never taken while the world's lock is held."""
    guest: dict[int, dict[str, str]] = field(default_factory=dict, kw_only=True)
    """By worker, the guest attributes that its programs published, by `NAMESPACE/KEY`."""
    loads: dict[int, Load] = field(default_factory=dict, kw_only=True)
    """By worker, what programs seem to do there."""
    maintenance: frozenset[int] = field(default=frozenset(), kw_only=True)
    """Workers whose hosts are taken down for maintenance just now."""
    reservation: str = field(default="", kw_only=True)
    """Which reservation its chips are from: see `tpuctl.sim.world.reservations`."""
    gone: bool = field(default=False, kw_only=True)
    """Set before the hosts are destroyed, so that a late creation does not bring them back."""
    disk_numbers: dict[str, int] = field(default_factory=dict, kw_only=True)
    """Of data disks, by full name: which device each is on the hosts."""
    boots: int = field(default=0, kw_only=True)
    """How many times hosts of it were started."""

    @property
    def state(self) -> str:
        """As its API calls it."""
        return str(self.data["state"])

    @property
    @abstractmethod
    def generation(self) -> str: ...

    @property
    @abstractmethod
    def chips_per_host(self) -> int: ...

    @property
    @abstractmethod
    def workers(self) -> range:
        """The numbers of its hosts in their slice."""

    @property
    @abstractmethod
    def live(self) -> bool:
        """Whether its API says that it runs."""

    @property
    @abstractmethod
    def holds_chips(self) -> bool:
        """Whether others cannot have its chips now."""

    @property
    @abstractmethod
    def names(self) -> frozenset[str]:
        """By which a person may mean it: its own, in short and in full, and that of what it belongs to."""

    @abstractmethod
    def hostname(self, worker: int) -> str: ...

    @abstractmethod
    def attachments(self) -> Iterator[Attachment]:
        """The data disks that it holds now."""

    @property
    def chips(self) -> int:
        return self.chips_per_host * len(self.workers)

    def address(self, worker: int) -> HostAddress | None:
        """Where that worker answers; None before it was made."""
        place = worker - self.workers.start
        return self.addresses[place] if place < len(self.addresses) else None


@dataclass
class Node(Machine):
    """A node of the TPU API."""

    offer: AcceleratorType
    tag: str
    """The hex part of the host names."""
    queued: ResourcePath | None = None
    phantom: bool = False
    """Listed as CREATING although there is no capacity for it: it will vanish."""

    @property
    def generation(self) -> str:
        return self.offer.generation

    @property
    def chips_per_host(self) -> int:
        return self.offer.chips_per_host

    @property
    def workers(self) -> range:
        return range(self.offer.hosts)

    @property
    def live(self) -> bool:
        return self.state == "READY"

    @property
    def holds_chips(self) -> bool:
        return not (self.preempted or self.phantom)

    @property
    def names(self) -> frozenset[str]:
        above = {self.queued.id} if self.queued else set()
        return frozenset({self.path.id, self.path.name} | above)

    def hostname(self, worker: int) -> str:
        return f"t1v-n-{self.tag}-w-{worker}"

    def attachments(self) -> Iterator[Attachment]:
        """A preempted node holds nothing. Its machines are in the TPU service's project, really."""
        zone = f"projects/{self.path.project}/zones/{self.path.zone}"
        for entry in () if self.preempted else self.data.get("dataDisks") or ():
            disk = attached_disk(str(entry.get("sourceDisk")))
            if disk is not None:
                users = (f"{zone}/instances/{self.path.id}-w-{each}" for each in self.workers_of(entry))
                yield Attachment(disk, str(entry.get("mode") or RW), tuple(users))

    def workers_of(self, entry: Json) -> list[int]:
        """Those that get a data disk: all, or what v2alpha1 says."""
        return [int(each) for each in entry.get("workerIds") or ()] or list(self.workers)


@dataclass
class Queued:
    """A queued resource as the API shows it."""

    path: ResourcePath
    data: Json
    node_paths: list[ResourcePath]
    chips: int
    offer: AcceleratorType
    specs: list[Json]
    """What its nodes will be made from, in the order of `node_paths`."""
    failure: ApiError | None = None
    valid_after: float = 0.0
    """Seconds since the epoch before which it only waits."""

    @property
    def state(self) -> str:
        return str(self.data["state"]["state"])


@dataclass(frozen=True)
class Reservation:
    """`chips` of `generation`, such as v4, in `zone`."""

    name: str
    zone: str
    generation: str
    chips: int


Found = TypeVar("Found", Node, Queued)


@dataclass
class Kernel:
    """Shared by all parts of one world. `lock` guards `nodes`, `instances`, `queued`, `operations` and
    `requests`."""

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
    """Limits by the keys of `tpuctl.sim.world.quotas`; absent means plenty."""
    host_environment: Callable[[], dict[str, str]]
    quota_preferences: dict[str, Json] = field(default_factory=dict)
    """Requests for more quota, by id, as the Cloud Quotas API shows them."""
    token: str = ""
    """Lets callers of the APIs in; hosts get it from their metadata server."""
    project_metadata: dict[str, str] = field(default_factory=dict)
    """In Compute Engine."""
    find_disk: Callable[[str, str], Json | None] = lambda _zone, _name: None
    """A disk as Compute Engine shows it, by zone and name."""
    disk_times: dict[tuple[str, str], Json] = field(default_factory=dict)
    """By zone and name of a disk, when it was attached and detached last, as Compute Engine shows it."""
    capacity: dict[str, int] = field(default_factory=dict)
    """Chips that exist for this project in a zone; absent means plenty. Unlike a quota it changes by itself."""
    reservations: dict[tuple[str, str], Reservation] = field(default_factory=dict)
    """By zone and name."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    nodes: dict[str, Node] = field(default_factory=dict)
    instances: dict[str, Machine] = field(default_factory=dict)
    """Of Compute Engine, by the name of their path."""
    queued: dict[str, Queued] = field(default_factory=dict)
    operations: dict[str, Json] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    """Names of resources that an operation in flight holds."""
    hidden: set[str] = field(default_factory=set)
    """Names of resources that exist and that reads do not show yet."""
    requests: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """(method, resource, requestId) → the operation it got."""

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Puts something on the schedule, in seconds before the speed is applied; infinity is never."""
        if math.isinf(delay_s):
            return
        self.schedule.after(delay_s / self.speed, action)

    def timestamp(self) -> str:
        return rfc3339(self.clock.now())

    def bad_request(self, text: str) -> ApiError:
        """The TPU API's form of INVALID_ARGUMENT."""
        return invalid_argument(f"Cloud TPU received a bad request. {text} [EID: {self.ids.eid()}]")

    def check_zone(self, path: ResourcePath) -> None:
        """Refuses other projects and zones that the catalog does not know."""
        if path.project != self.project:
            raise ApiError(Code.PERMISSION_DENIED, f"Permission denied on resource project {path.project}.")
        if path.zone not in self.catalog.zones():
            raise location_denied(path.project, path.zone)

    def room(self, zone: str) -> float:
        """Chips of `zone` that nothing holds; what was preempted holds none."""
        if zone not in self.capacity:
            return math.inf
        there = [each for each in self.machines() if each.path.zone == zone and not each.reservation]
        return self.capacity[zone] - sum(each.chips for each in there if each.holds_chips)

    def machines(self) -> list[Machine]:
        """Everything that has hosts, or will have some."""
        return [*self.nodes.values(), *self.instances.values()]

    def struck(self, kind: FaultKind, machine: Machine) -> bool:
        """Whether such a fault stands for the machine, by any of its names."""
        return any(self.faults.standing(kind, name) for name in machine.names)

    def hide(self, path: ResourcePath, seconds: float) -> None:
        """Reads are late: they do not show `path` until then."""
        self.hidden.add(path.name)
        self.after(seconds, lambda: self.hidden.discard(path.name))

    def shows(self, found: Node | Queued) -> bool:
        """Whether reads show it; the nodes of a queued resource are shown with it."""
        above = found.queued.name if isinstance(found, Node) and found.queued else ""
        return not {found.path.name, above} & self.hidden

    def find(self, there: Mapping[str, Found], name: str, *, read: bool = False) -> Found:
        """What is behind a full name; `read`: if reads show it. Raises NOT_FOUND. Expects the lock."""
        path = parse_path(name)
        self.check_zone(path)
        found = there.get(path.name)
        if found is None or (read and not self.shows(found)):
            raise not_found(name)
        return found

    def current(self, node: Node) -> bool:
        """Whether this incarnation is still the one behind its name."""
        return self.nodes.get(node.path.name) is node
