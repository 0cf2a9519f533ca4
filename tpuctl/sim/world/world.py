"""The simulated cloud behind all APIs: one model, called by RPC name with REST-JSON requests.

Reads never change it. Mutating calls change it at once or put the rest on the schedule; every one of them is in
the journal, the refused ones too.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpuctl.errors import UsageError
from tpuctl.sim.hosts.backend import HostBackend
from tpuctl.sim.wire.calls import Call, tpu_calls
from tpuctl.sim.wire.status import ApiError, DroppedConnectionError, Json
from tpuctl.sim.wire.tpu_versions import show
from tpuctl.sim.world.call_log import Journal
from tpuctl.sim.world.catalog import SimCatalog, load_catalog
from tpuctl.sim.world.clock import Clock, RealClock, schedule_for
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.faults import FaultKind, FaultPlan
from tpuctl.sim.world.iam import PROJECT_NUMBER, TPU, Access
from tpuctl.sim.world.incidents import Incidents
from tpuctl.sim.world.locations import COLLECTIONS, Inventory
from tpuctl.sim.world.nodes import Nodes
from tpuctl.sim.world.operations import Operations
from tpuctl.sim.world.paths import ANY_ZONE, ResourcePath
from tpuctl.sim.world.queued_resources import QueuedResources
from tpuctl.sim.world.quota_preferences import QuotaPreferences
from tpuctl.sim.world.quotas import Quotas, check_keys
from tpuctl.sim.world.state import Ids, Kernel
from tpuctl.sim.world.steering import Steering
from tpuctl.sim.world.tpu_vms import TpuVms


@dataclass(frozen=True)
class WorldOptions:
    """How the world behaves. `speed` divides the simulator's own delays; `quotas`: see `sim.world.quotas`;
    `internal_rule`: the default network begins with the rule that lets its hosts reach each other."""

    project: str = "sim-project"
    seed: int = 1
    speed: float = 1.0
    delays: Delays = field(default_factory=Delays)
    quotas: Mapping[str, int] = field(default_factory=dict)
    internal_rule: bool = True


@dataclass(frozen=True)
class Resident:
    """One resource of the world. `kind` is "node", "instance" or "queued"; `key` names hosts to their
    backend."""

    kind: str
    path: ResourcePath
    state: str
    chips: int
    labels: Mapping[str, str]
    key: str = ""


_BY_NUMBER = re.compile(rf"projects/{PROJECT_NUMBER}(?=/|\Z)")
_DEDUPED = frozenset({"queuedResources.create", "queuedResources.delete", "nodes.create", "nodes.delete"})
"""Methods with a `requestId` (v2 has it on queued resources only, so others never send one)."""


class World(Incidents):
    """Thread-safe. `clock` defaults to the real one; with a `ManualClock`, `clock.advance()` makes progress."""

    def __init__(
        self,
        hosts: HostBackend,
        options: WorldOptions | None = None,
        *,
        clock: Clock | None = None,
        catalog: SimCatalog | None = None,
        host_environment: Callable[[], dict[str, str]] = dict,
        token: str = "",
    ) -> None:
        self.options = options or WorldOptions()
        if self.options.speed <= 0:
            raise UsageError("the simulator's speed must be more than 0")
        self.clock: Clock = clock or RealClock()
        self.faults = FaultPlan()
        self.catalog = catalog or load_catalog()
        check_keys(self.options.quotas, self.catalog)
        self.access = Access(self.faults, self.options.project)
        kernel = Kernel(
            project=self.options.project,
            clock=self.clock,
            schedule=schedule_for(self.clock),
            ids=Ids(self.options.seed),
            delays=self.options.delays,
            speed=self.options.speed,
            catalog=self.catalog,
            hosts=hosts,
            faults=self.faults,
            quotas=dict(self.options.quotas),
            host_environment=host_environment,
            token=token,
        )
        super().__init__(kernel, Journal(self.clock.now))
        self._operations = Operations(kernel)
        self._machines = TpuVms(kernel)
        self._nodes = Nodes(kernel, self._operations, self._machines)
        self._queued = QueuedResources(kernel, self._operations, self._nodes)
        self.quota_preferences = QuotaPreferences(kernel)
        self.steering = Steering(kernel, self.give_turns)
        self.calls = {each.rpc: each for each in tpu_calls()}
        self.handlers = self._table()
        """What answers a call by its id, past access, faults and journal."""

    def _table(self) -> Mapping[str, Callable[[Json, str], Json]]:
        """What answers each call of the API (request, version)."""
        nodes, queued, operations = self._nodes, self._queued, self._operations
        inventory = Inventory(self._kernel)
        reads: Mapping[str, Callable[[Json], Json]] = {
            "nodes.get": nodes.get,
            "nodes.list": nodes.list_all,
            "nodes.getGuestAttributes": nodes.guest_attributes,
            "queuedResources.get": queued.get,
            "queuedResources.list": queued.list_all,
            "queuedResources.getMaintenanceInfo": queued.maintenance_info,
            "operations.get": operations.get,
            "operations.wait": operations.get,
            "operations.list": operations.list_all,
            "operations.cancel": operations.cancel,
            "operations.delete": operations.delete,
            "locations.list": inventory.list_locations,
            "locations.get": inventory.get_location,
            "locations.generateServiceIdentity": inventory.service_identity,
            **{f"{each}.list": inventory.list(each) for each in COLLECTIONS},
            **{f"{each}.get": inventory.get(each) for each in COLLECTIONS},
        }
        return {
            "nodes.create": nodes.create,
            "nodes.delete": nodes.delete,
            "nodes.patch": nodes.patch,
            "nodes.start": nodes.start,
            "nodes.stop": nodes.stop,
            "nodes.simulateMaintenanceEvent": nodes.simulate_maintenance,
            "nodes.performMaintenance": nodes.perform_maintenance,
            "queuedResources.create": queued.create,
            "queuedResources.delete": queued.delete,
            "queuedResources.reset": queued.reset,
            "queuedResources.performMaintenance": queued.perform_maintenance,
            **{id: _versionless(read) for id, read in reads.items()},
        }

    # The API.

    def call(self, method: str, request: Json, version: str = "v2") -> Json:
        """Answers one RPC. Raises ApiError, or DroppedConnectionError when a fault eats the answer."""
        call = self.calls[method]
        request = self._by_id(request)
        path = target_of(call.id, request)
        try:
            answer = self._answer(call, path, request, version)
            status = "OK"
            if self.faults.take(FaultKind.DROP, call.id, path) is not None:
                status = "DROPPED"
        except ApiError as error:
            if call.changes:
                self.journal.record(call.id, path.name, error.code.name)
            raise
        if call.changes:
            self.journal.record(call.id, path.name, status)
            self._kernel.schedule.flush()
        if call.id.endswith(".list") and path.zone == ANY_ZONE:
            self.clock.pause(self.delays.list_everywhere / self.options.speed)
        if status == "DROPPED":
            raise DroppedConnectionError(call.id)
        return answer

    def _by_id(self, request: Json) -> Json:
        """The project's number, which some names in answers have, in names of a request as its id."""
        node = request.get("node") or {}
        found = {
            key: _BY_NUMBER.sub(f"projects/{self.options.project}", request[key])
            for key in ("name", "parent")
            if request.get(key)
        }
        return {**request, **found, **({"node": self._by_id(node)} if "name" in node else {})}

    def _answer(self, call: Call, path: ResourcePath, request: Json, version: str) -> Json:
        self.access.check_token()
        self.access.check_service(TPU)
        self.access.check_permission(call.permission, path.name)
        fault = self.faults.take(FaultKind.ERROR, call.id, path)
        if fault is not None:
            raise fault.error(path)
        kernel = self._kernel
        with kernel.lock:
            key = (call.id, path.name, str(request.get("requestId") or ""))
            if key[2] and call.id in _DEDUPED and kernel.requests.get(key) in kernel.operations:
                return self._operations.get({"name": kernel.requests[key]})
            answer = show(version, self.handlers[call.id](request, version))
            if key[2] and call.id in _DEDUPED:
                kernel.requests[key] = str(answer["name"])
            late = self.faults.take(FaultKind.LATE, call.id, path) if call.id in _CREATED else None
            if late is not None:
                kernel.hide(path, late.seconds)
            return answer

    # What only a simulated cloud can do.

    def set_capacity(self, zone: str, chips: int | None) -> None:
        """How many chips exist for this project in `zone` from now on; None for plenty.

        Less takes nothing away from nodes that are there: preempt them. Direct creates that do not fit end in a
        stockout, queued ones wait until they fit.
        """
        self.steering.set_capacity({zone: chips})

    def give_turns(self) -> None:
        """Chips may have become free: requests that wait for capacity try again."""
        self._queued.retry_parked()
        self._kernel.schedule.flush()

    @property
    def delays(self) -> Delays:
        """How long things take now, in seconds before the speed is applied."""
        return self._kernel.delays

    def room(self, zone: str) -> float:
        """Chips of `zone` that nothing holds; infinite where no capacity was set."""
        with self._kernel.lock:
            return self._kernel.room(zone)

    def census(self) -> list[Resident]:
        """What exists, in short; much cheaper than `snapshot`."""
        with self._kernel.lock:
            kernel = self._kernel
            found = [
                Resident(
                    each.path.collection.removesuffix("s"),
                    each.path,
                    each.state,
                    each.chips,
                    each.data.get("labels") or {},
                    each.key,
                )
                for each in kernel.machines()
            ]
            for queued in kernel.queued.values():
                labels = queued.data["tpu"]["nodeSpec"][0]["node"].get("labels") or {}
                found.append(Resident("queued", queued.path, queued.state, queued.chips, labels))
            return found

    def set_quotas(self, quotas: Mapping[str, int]) -> dict[str, int]:
        """Changes limits from now on and returns all that are set; what exists already stays."""
        check_keys(quotas, self.catalog)
        with self._kernel.lock:
            self._kernel.quotas.update(quotas)
            return dict(self._kernel.quotas)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The project's metadata in Compute Engine."""
        return self._kernel.project_metadata

    def set_metadata(self, items: Mapping[str, str]) -> None:
        """Changes the project's metadata; hosts follow it."""
        self._kernel.project_metadata.update(items)
        self.follow_os_login()

    def follow_os_login(self) -> None:
        """Hosts take keys from metadata, or no longer do, as guest agents find out while they run."""
        with self._kernel.lock:
            known = self._kernel.machines()
        for each in known:
            each.life.apply_keys(each)

    @property
    def hosts(self) -> HostBackend:
        return self._kernel.hosts

    @property
    def kernel(self) -> Kernel:
        """For Compute Engine, whose instances are machines of this world, too. Its lock is held for every
        change of what exists: who attaches a disk must not meet who deletes it."""
        return self._kernel

    def read_quotas(self, read: Callable[[Quotas], list[Json]]) -> list[Json]:
        """What `read` finds in the quotas as they are at one moment."""
        with self._kernel.lock:
            return read(Quotas(self._kernel))

    def snapshot(self) -> dict[str, Any]:
        """The whole state as the API would show it, and which hosts stand behind it."""
        with self._kernel.lock:
            kernel = self._kernel
            state = {
                "project": kernel.project,
                "nodes": [node.data for node in kernel.nodes.values()],
                "instances": [instance.data for instance in kernel.instances.values()],
                "queuedResources": [queued.data for queued in kernel.queued.values()],
                "operations": [
                    {k: v for k, v in each.items() if k != "_late_s"} for each in kernel.operations.values()
                ],
            }
            return copy.deepcopy(state)

    def digest(self) -> str:
        """A hash of the state, for the proof that reads change nothing."""
        return hashlib.sha256(json.dumps(self.snapshot(), sort_keys=True).encode()).hexdigest()

    def settle(self, timeout_s: float = 60.0) -> bool:
        """Waits until nothing is due and nothing runs."""
        return self._kernel.schedule.settle(timeout_s)

    def reset(self) -> None:
        """Back to an empty cloud: no nodes, hosts, faults or journal."""
        kernel = self._kernel
        kernel.schedule.clear()
        with kernel.lock:
            nodes = list(kernel.nodes.values())
            found: list[dict[Any, Any] | set[str]] = [
                *(kernel.nodes, kernel.queued, kernel.operations, kernel.requests, kernel.hidden, kernel.held),
                *(kernel.capacity, kernel.disk_times, kernel.reservations, kernel.quota_preferences),
                kernel.project_metadata,
            ]
            for each in found:
                each.clear()
            kernel.quotas = dict(self.options.quotas)
        for node in nodes:
            self._machines.destroy(node)
        self.faults.clear()
        self.access.reset()
        self.journal.clear()

    def close(self) -> None:
        """Ends all activity; the host backend is closed by whoever made it."""
        self._kernel.schedule.close()
        self._machines.close()


_CREATED = {
    "nodes.create": ("nodes", "nodeId"),
    "queuedResources.create": ("queuedResources", "queuedResourceId"),
}


def _versionless(read: Callable[[Json], Json]) -> Callable[[Json, str], Json]:
    return lambda request, _version: read(request)


def target_of(method: str, request: Json) -> ResourcePath:
    """Which resource a call is about, for faults and the journal; never raises."""
    name = str(request.get("name") or (request.get("node") or {}).get("name") or request.get("parent") or "")
    parts = (name + "/////").split("/")
    path = ResourcePath(parts[1], parts[3], parts[4], parts[5])
    if method in _CREATED:
        collection, key = _CREATED[method]
        path = path.child(collection, str(request.get(key) or ""))
    return path
