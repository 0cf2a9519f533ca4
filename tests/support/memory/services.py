"""A cloud, its hosts, a store and several machines that work on them, in one process and by one clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.clocks import FakeClock, WatchedClock
from tests.support.memory.buckets import NearBuckets
from tests.support.memory.cloud import ParsedLists, WorldCloud
from tests.support.memory.disks import WorldDisks
from tests.support.memory.host import MemoryHost, MemoryHosts, make_host_key
from tests.support.memory.objects import MemoryObjects
from tests.support.memory.process import NEVER
from tests.support.memory.remote import MemoryRemote
from tests.support.memory.store import MemoryServer, MemoryStore
from tests.support.memory.tpus import WorldTpus
from tests.support.services import CountingIds, EnvSecrets
from tpuctl.engine.ports import KeptLogs
from tpuctl.engine.services import Sightings
from tpuctl.model.cloud import Api, HostTarget
from tpuctl.sim.compute.rest import ComputeApi
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.world import World, WorldOptions
from tpuctl.slices.host_keys import RepinningRemote, renewed_pin

STRIKE_READS = {
    FaultKind.ERROR,
    FaultKind.UNREACHABLE,
    FaultKind.DROP,
    FaultKind.SERVICE_OFF,
    FaultKind.NO_PERMISSION,
    FaultKind.EXPIRED_TOKEN,
    FaultKind.BILLING_OFF,
}
AGENT = b"what is sent to hosts in memory, which have the agent"


class MemoryLogs:
    """Implements `ports.RunLogs`."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, int, int, str], bytearray] = {}
        self.removed: dict[str, float] = {}

    def size(self, run_id: str, attempt: int, worker: int, stream: str) -> int:
        return len(self.files.get((run_id, attempt, worker, stream), b""))

    def set_aside(self, run_id: str) -> None:
        for key in [key for key in self.files if key[0] == run_id]:
            del self.files[key]

    def append(self, run_id: str, attempt: int, worker: int, stream: str, data: bytes) -> None:
        self.files.setdefault((run_id, attempt, worker, stream), bytearray()).extend(data)

    def write(self, run_id: str, attempt: int, worker: int, stream: str, offset: int, data: bytes) -> None:
        found = self.files.setdefault((run_id, attempt, worker, stream), bytearray())
        found.extend(bytes(max(0, offset - len(found))))
        found[offset : offset + len(data)] = data

    def read(self, run_id: str, attempt: int, worker: int, stream: str, offset: int, limit: int) -> bytes:
        return bytes(self.files.get((run_id, attempt, worker, stream), b""))[offset : offset + limit]

    def tail(self, run_id: str, attempt: int, worker: int, stream: str, limit: int) -> bytes:
        return bytes(self.files.get((run_id, attempt, worker, stream), b""))[-limit:]

    def path(self, run_id: str, attempt: int, worker: int, stream: str) -> str:
        return f"memory:{run_id}/{attempt}/{worker}.{stream}"

    def has(self, run_id: str, attempt: int) -> bool:
        return any(key[:2] == (run_id, attempt) for key in self.files)

    def list(self) -> list[KeptLogs]:
        sizes: dict[str, int] = {}
        for key, data in self.files.items():
            sizes[key[0]] = sizes.get(key[0], 0) + len(data)
        return [KeptLogs(run, size, 0.0) for run, size in sorted(sizes.items())]

    def remove(self, run_id: str, at: float) -> None:
        self.set_aside(run_id)
        self.removed[run_id] = at

    def removed_at(self, run_id: str) -> float | None:
        return self.removed.get(run_id)

    def list_removed(self) -> frozenset[str]:
        return frozenset(self.removed)


class NoRateLimit:
    """Implements `ports.RateLimiter`: every create may go out at once."""

    def take(self) -> float:
        return 0.0


class MemorySshEntries:
    """Implements `ports.SshEntries`; keeps what it was told last."""

    def __init__(self) -> None:
        self.known: dict[str, Sequence[HostTarget]] = {}

    def names(self) -> frozenset[str]:
        return frozenset(self.known)

    def update(self, slice_name: str, targets: Sequence[HostTarget]) -> None:
        self.known[slice_name] = targets

    def remove(self, slice_name: str) -> None:
        self.known.pop(slice_name, None)


class MemoryServices:
    """Implements `workflows.services.Services` for one process on one machine."""

    def __init__(
        self,
        place: MemoryPlace,
        machine: str,
        *,
        process: int = 1,
        skew_s: float = 0.0,
        reaches: Callable[[MemoryHost], bool] = lambda _host: True,
        bytes_per_s: float = NEVER,
    ) -> None:
        self.public_key = f"{make_host_key(sum(machine.encode()) << 16)} {machine}"
        self.clock: Any = FakeClock(place.clock, skew_s=skew_s)
        self.cloud: Any = WorldCloud(place.world, self.clock, place.lists, place.hosts.beat)
        self.compute_tpus: Any = WorldTpus(
            place.world.options.project, lambda: place.compute, self.clock, place.hosts.beat
        )
        self.objects: Any = place.objects
        self.project = place.world.options.project
        self.disks: Any = WorldDisks(self.project, lambda: place.compute, self.clock)
        self.project_api: Any = NearBuckets()  # quotas and permissions have tests of their own
        self.store: Any = MemoryStore(place.server)
        direct = MemoryRemote(place.hosts, self.public_key, reaches=reaches, bytes_per_s=bytes_per_s)
        self.remote: Any = RepinningRemote(direct, lambda target: renewed_pin(self, target))
        self.ids: Any = place.ids or CountingIds()
        self.rate_limiter: Any = NoRateLimit()
        self.secrets: Any = EnvSecrets()
        self.logs: Any = place.logs.setdefault(machine, MemoryLogs())
        self.ssh_entries: Any = MemorySshEntries()
        self.sightings = Sightings()
        self.events: list[object] = []
        self.user = "ada"
        self.machine = machine
        self.lease_owner = f"{machine}/{process}"
        self.ssh_port = place.hosts.ssh_port
        self.internal_ip = False
        self.trust_first_use = False
        self.replace_after_s: float | None = None
        self.agent_source = AGENT
        self.wheel_cache = Path("/nowhere")

    def emit(self, event: object) -> None:
        self.events.append(event)

    def tpus(self, api: Api) -> Any:
        return {Api.TPU: self.cloud, Api.COMPUTE: self.compute_tpus}[api]

    def process_alive(self, owner: str) -> bool:
        """On this machine one process runs after the other; about others nothing is known."""
        return owner == self.lease_owner or owner.split("/")[0] != self.machine

    def output(self) -> str:
        """Everything the workers' programs were seen to write."""
        chunks = [event.data for event in self.events if hasattr(event, "data")]
        return b"".join(chunks).decode(errors="replace")


class MemoryPlace:
    """What all machines see: one world, its hosts, one store. `clock.advance` moves them all."""

    def __init__(
        self,
        *,
        seed: int = 1,
        delays: Delays | None = None,
        quotas: Mapping[str, int] | None = None,
        entries_kept: int | None = None,
        shared_ids: bool = False,
    ) -> None:
        self.clock = WatchedClock()
        true_time = FakeClock(self.clock)
        self.hosts = MemoryHosts(true_time)
        options = WorldOptions(seed=seed, delays=delays or Delays(), quotas=dict(quotas or {}))
        self.world = World(self.hosts, options, clock=self.clock)
        self.server = MemoryServer(true_time, entries_kept=entries_kept)
        self.lists = ParsedLists(self._changes)
        self.objects = MemoryObjects(true_time)
        self.ids = CountingIds() if shared_ids else None
        """Hosts remember what was done for each id, so no two processes that work on them may have the same."""
        self.logs: dict[str, MemoryLogs] = {}
        """By machine."""

    def _changes(self) -> int | None:
        """Grows with every change of the world; None while faults may strike reads or hide zones."""
        active = self.world.faults.list_active()
        if any(fault.kind in STRIKE_READS and not fault.in_operation for fault in active):
            return None
        return self.clock.actions + self.world.journal.count

    @cached_property
    def compute(self) -> ComputeApi:
        """Made when it is first asked: most places have no disks."""
        return ComputeApi(self.world)

    def machine(self, name: str = "laptop", **options: Any) -> MemoryServices:
        """A new process on the machine called `name`."""
        return MemoryServices(self, name, **options)

    def close(self) -> None:
        self.world.close()
        self.hosts.close()
