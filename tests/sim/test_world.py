"""The simulated world under a clock that the test drives."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tpuctl.errors import NotFoundError, UsageError
from tpuctl.sim.hosts.backend import HostAddress, HostBackend, HostDisk, HostSpec
from tpuctl.sim.wire.status import ApiError, Code
from tpuctl.sim.wire.timestamps import rfc3339
from tpuctl.sim.world.clock import ManualClock, RealClock
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.world import World, WorldOptions

ZONE = "us-central2-b"
PARENT = f"projects/sim-project/locations/{ZONE}"
NODE = {"acceleratorType": "v4-16", "runtimeVersion": "tpu-ubuntu2204-base"}


@dataclass
class MemoryHosts(HostBackend):
    """Hosts that only remember what was asked of them."""

    specs: dict[str, list[HostSpec]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    gated: bool = False
    windows: list[float] = field(default_factory=list)
    workers: Collection[int] | None = None
    on_shutdown: Callable[[], None] = lambda: None
    disks: dict[str, Mapping[int, Sequence[HostDisk]]] = field(default_factory=dict)

    def set_disks(self, node_key: str, disks: Mapping[int, Sequence[HostDisk]]) -> None:
        self.disks[node_key] = disks

    def create(self, specs: list[HostSpec]) -> list[HostAddress]:
        self.entered.set()
        if self.gated:
            assert self.gate.wait(30)
        key = specs[0].node_key
        self.calls.append(("create", key))
        self.specs[key] = specs
        return [
            HostAddress(f"10.0.0.{n}", f"10.0.0.{n}", 22, f"ssh-ed25519 KEY{n}")
            for _, n in zip(specs, self.numbers, strict=False)
        ]

    def set_ssh_keys(self, node_key: str, ssh_keys: str) -> None:
        self.keys[node_key] = ssh_keys

    def _end(self, verb: str, node_key: str) -> None:
        self.calls.append((verb, node_key))
        if verb in ("kill", "destroy"):
            self.specs.pop(node_key, None)

    def kill(self, node_key: str) -> None:
        self._end("kill", node_key)

    def shutdown(self, node_key: str, window_s: float, workers: Collection[int] | None = None) -> None:
        self.windows.append(window_s)
        self.workers = workers
        self.on_shutdown()
        self._end("shutdown", node_key)

    def stop(self, node_key: str, workers: Collection[int] | None = None) -> None:
        self._end("stop", node_key)

    def start(self, node_key: str) -> None:
        self._end("start", node_key)

    def destroy(self, node_key: str) -> None:
        self._end("destroy", node_key)

    def close(self) -> None:
        self.specs.clear()


@dataclass
class Setup:
    world: World
    clock: ManualClock
    hosts: MemoryHosts

    def call(self, method: str, version: str = "v2", **request: Any) -> Any:
        return self.world.call(method, request, version)

    def create(self, name: str = "a", **node: Any) -> Any:
        return self.call("CreateNode", parent=PARENT, nodeId=name, node={**NODE, **node})

    def create_queued(self, name: str = "q", version: str = "v2", **fields: Any) -> Any:
        body = {"tpu": {"nodeSpec": [{"nodeId": f"{name}-node", "node": NODE}]}, "spot": {}, **fields}
        return self.call(
            "CreateQueuedResource", version, parent=PARENT, queuedResourceId=name, queuedResource=body
        )

    def node(self, name: str = "a") -> Any:
        return self.call("GetNode", name=f"{PARENT}/nodes/{name}")

    def queued_state(self, name: str = "q") -> str:
        found = self.call("GetQueuedResource", name=f"{PARENT}/queuedResources/{name}")
        return str(found["state"]["state"])

    def operation(self, operation: Any) -> Any:
        return self.call("GetOperation", name=operation["name"])

    def refused(self, method: str, **request: Any) -> ApiError:
        with pytest.raises(ApiError) as refusal:
            self.call(method, **request)
        return refusal.value


def build(**options: Any) -> Setup:
    clock, hosts = ManualClock(), MemoryHosts()
    return Setup(World(hosts, WorldOptions(**options), clock=clock), clock, hosts)


@pytest.fixture
def sim() -> Setup:
    return build()


def test_time_alone_makes_progress_and_reads_do_not(sim: Setup) -> None:
    operation = sim.create()
    sim.clock.advance(149)
    digest = sim.world.digest()
    assert sim.node()["state"] == "CREATING"
    sim.call("ListNodes", parent=PARENT)
    assert "done" not in sim.operation(operation)
    assert sim.world.digest() == digest
    assert sim.hosts.calls == []
    sim.clock.advance(1)
    assert sim.node()["state"] == "READY"
    done = sim.operation(operation)
    assert done["done"]
    assert done["response"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2.Node"
    assert done["metadata"]["target"] == f"{PARENT}/nodes/a"


def test_a_list_of_every_zone_takes_seconds_and_a_list_of_one_none() -> None:
    pauses: list[float] = []

    class Patient(ManualClock):
        def pause(self, seconds: float) -> None:
            pauses.append(seconds)

    world = World(MemoryHosts(), WorldOptions(speed=2.0), clock=Patient())
    everywhere = {"parent": "projects/sim-project/locations/-"}
    world.call("ListNodes", {"parent": PARENT}, "v2")
    world.call("ListNodes", everywhere, "v2")
    world.steering.set_delays({"list_everywhere": 30})
    world.call("ListQueuedResources", everywhere, "v2")
    assert pauses == [1.0, 15.0]


def test_speed_divides_the_delays() -> None:
    sim = build(speed=10.0)
    sim.create()
    sim.clock.advance(15)
    assert sim.node()["state"] == "READY"


def test_the_same_seed_gives_the_same_ids() -> None:
    def ids(seed: int) -> tuple[str, str]:
        sim = build(seed=seed)
        return (str(sim.create()["name"]), str(sim.node()["id"]))

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_zero_delays_are_done_when_the_call_returns() -> None:
    sim = build(delays=Delays.instant())
    sim.create()
    assert sim.node()["state"] == "READY"
    sim.call("DeleteNode", name=f"{PARENT}/nodes/a")
    assert sim.refused("GetNode", name=f"{PARENT}/nodes/a").code == Code.NOT_FOUND
    assert sim.hosts.specs == {}


def test_hosts_know_who_and_where_they_are(sim: Setup) -> None:
    sim.create(metadata={"startup-script": "true"}, schedulingConfig={"spot": True})
    sim.clock.advance(150)
    [specs] = sim.hosts.specs.values()
    environment = dict(specs[1].environment())
    assert [name for name in environment if name.startswith(("TPU_", "JAX_", "PJRT_"))] == []

    def metadata(path: str) -> object:
        return specs[1].metadata().get(f"instance/{path}")

    assert metadata("attributes/agent-worker-number") == "1"
    assert metadata("attributes/instance-id") == "a"
    assert metadata("attributes/startup-script") == "true"
    assert metadata("preempted") == "FALSE"
    assert metadata("attributes/none") is None
    endpoints = str(metadata("attributes/worker-network-endpoints")).split(",")
    assert [each.split(":")[2] for each in endpoints] == ["10.0.0.1", "10.0.0.2"]
    tpu_env = str(metadata("attributes/tpu-env")).splitlines()
    assert {"ACCELERATOR_TYPE: 'v4-16'", "TOPOLOGY: '2x2x2'", "WORKER_ID: '1'"} <= set(tpu_env)
    assert {"HOST_BOUNDS: '1,1,2'", "CHIPS_PER_HOST_BOUNDS: '2,2,1'", "TYPE: 'V4'"} <= set(tpu_env)
    assert "PREEMPTIBLE: 'true'" in tpu_env
    sim.world.preempt("a")
    assert metadata("preempted") == "TRUE"


def test_keys_are_on_the_hosts_soon_after_create_and_before_patch_is_done(sim: Setup) -> None:
    sim.create(metadata={"ssh-keys": "alice:one"})
    sim.clock.advance(150)
    assert list(sim.hosts.keys.values()) == []
    sim.clock.advance(5)
    assert list(sim.hosts.keys.values()) == ["alice:one"]
    change = {"name": f"{PARENT}/nodes/a", "metadata": {"ssh-keys": "alice:two"}}
    operation = sim.call("UpdateNode", node=change, updateMask="metadata")
    assert list(sim.hosts.keys.values()) == ["alice:one"]
    sim.clock.advance(40)
    assert sim.operation(operation)["done"]
    assert list(sim.hosts.keys.values()) == ["alice:two"]


def test_a_patch_while_creating_is_refused_in_the_clouds_words(sim: Setup) -> None:
    sim.create()
    error = sim.refused("UpdateNode", node={"name": f"{PARENT}/nodes/a", "labels": {}}, updateMask="labels")
    assert error.code == Code.INVALID_ARGUMENT
    assert "update is not supported while in state CREATING [EID: 0x" in error.message


def test_a_preemption_kills_the_hosts_before_the_api_tells(sim: Setup) -> None:
    sim.create(schedulingConfig={"spot": True})
    sim.clock.advance(150)
    sim.world.preempt("a")
    assert sim.hosts.specs == {}
    assert sim.node()["state"] == "READY"
    sim.clock.advance(60)
    assert sim.node()["state"] == "PREEMPTED"
    sim.clock.advance(10_000)
    assert sim.node()["state"] == "PREEMPTED"


def test_hosts_are_shut_down_in_order_and_told_before_they_go(sim: Setup) -> None:
    sim.create()
    sim.clock.advance(150)
    [specs] = sim.hosts.specs.values()
    told: list[str | None] = []
    sim.hosts.on_shutdown = lambda: told.append(str(specs[1].metadata()["instance/preempted"]))
    sim.world.preempt("a")
    assert told == ["TRUE"]
    assert [verb for verb, _ in sim.hosts.calls] == ["create", "shutdown", "kill"]
    assert sim.hosts.windows == [30.0]


def test_a_fast_simulator_shortens_the_window_and_not_the_rule() -> None:
    for delays, speed, window_s in ((Delays(), 10.0, 3.0), (Delays.instant(), 1.0, 1.0)):
        sim = build(delays=delays, speed=speed)
        sim.create()
        sim.clock.advance(150)
        sim.world.preempt("a")
        assert sim.hosts.windows == [window_s]


def test_a_reboot_takes_single_hosts_down_and_the_node_stays_ready(sim: Setup) -> None:
    sim.create()
    sim.clock.advance(150)
    assert sim.world.reboot("a", workers=[1]) == [f"{PARENT}/nodes/a"]
    assert sim.hosts.workers == [1]
    assert sim.node()["state"] == "READY"
    assert [verb for verb, _ in sim.hosts.calls] == ["create", "shutdown", "stop"]
    sim.clock.advance(45)
    assert [verb for verb, _ in sim.hosts.calls] == ["create", "shutdown", "stop", "start"]
    with pytest.raises(NotFoundError, match="no worker 2") as refused:
        sim.world.reboot("a", workers=[2])
    assert refused.value.hint == "its workers are 0 to 1"
    with pytest.raises(NotFoundError, match="nothing to reboot under the name b"):
        sim.world.reboot("b")


def test_a_planned_preemption_comes_after_its_time_in_ready(sim: Setup) -> None:
    sim.world.faults.add({"kind": "preempt", "name": "a", "seconds": 600})
    sim.create()
    sim.clock.advance(150 + 600 + 59)
    assert sim.node()["state"] == "READY"
    sim.clock.advance(1)
    assert sim.node()["state"] == "PREEMPTED"


def test_a_queued_resource_walks_through_its_states(sim: Setup) -> None:
    operation = sim.create_queued()
    seen = [sim.queued_state()]
    for seconds in (2, 10, 30, 150):
        sim.clock.advance(seconds)
        seen.append(sim.queued_state())
    assert seen == ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    assert sim.operation(operation)["done"]
    sim.world.preempt("q-node")
    sim.clock.advance(60)
    assert sim.queued_state() == "SUSPENDING"
    assert sim.node("q-node")["state"] == "PREEMPTED"
    sim.clock.advance(30)
    assert sim.queued_state() == "SUSPENDED"
    assert sim.refused("GetNode", name=f"{PARENT}/nodes/q-node").code == Code.NOT_FOUND


def test_a_waiting_queued_resource_is_deleted_without_force(sim: Setup) -> None:
    sim.create_queued()
    sim.clock.advance(12)
    operation = sim.call("DeleteQueuedResource", name=f"{PARENT}/queuedResources/q")
    assert sim.queued_state() == "DELETING"
    sim.clock.advance(20)
    assert sim.operation(operation)["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}
    assert sim.refused("GetQueuedResource", name=f"{PARENT}/queuedResources/q").code == Code.NOT_FOUND
    sim.clock.advance(1000)
    assert sim.hosts.calls == []


def test_maintenance_makes_a_node_unhealthy_for_a_while(sim: Setup) -> None:
    sim.create()
    sim.clock.advance(150)
    name = f"{PARENT}/nodes/a"
    [specs] = sim.hosts.specs.values()
    sim.call("SimulateMaintenanceEvent", "v2alpha1", name=name, workerIds=["0"])
    assert sim.node()["health"] == "UNHEALTHY_MAINTENANCE"
    told = [spec.metadata()["instance/maintenance-event"] for spec in specs]
    assert told == ["TERMINATE_ON_HOST_MAINTENANCE", "NONE"]
    sim.clock.advance(60)
    assert sim.node()["health"] == "HEALTHY"
    assert [verb for verb, _ in sim.hosts.calls] == ["create", "shutdown", "stop", "start"]
    assert sim.hosts.workers == {0}
    assert specs[0].metadata()["instance/maintenance-event"] == "NONE"
    assert sim.refused("PerformMaintenance", name=name).code == Code.FAILED_PRECONDITION


def test_a_type_that_is_only_listed_for_a_zone_never_has_capacity(sim: Setup) -> None:
    listed = next(t for t in sim.world.catalog.in_zone("us-east5-b") if "us-east5-b" in t.listed_zones)
    operation = sim.call(
        "CreateNode",
        parent="projects/sim-project/locations/us-east5-b",
        nodeId="a",
        node={"acceleratorType": listed.name, "runtimeVersion": listed.runtime_version},
    )
    sim.clock.advance(1000)
    assert sim.operation(operation)["error"]["code"] == Code.RESOURCE_EXHAUSTED


def test_preempting_nothing_is_an_error_that_names_the_state(sim: Setup) -> None:
    sim.create()
    with pytest.raises(NotFoundError, match="a is CREATING"):
        sim.world.preempt("a")


def test_every_mutating_call_is_in_the_journal_with_its_fate(sim: Setup) -> None:
    sim.create()
    sim.refused("CreateNode", parent=PARENT, nodeId="a", node=NODE)
    sim.refused("GetNode", name=f"{PARENT}/nodes/b")
    entries = [(each.method, each.resource, each.status) for each in sim.world.journal.entries()]
    target = f"{PARENT}/nodes/a"
    assert entries == [("nodes.create", target, "OK"), ("nodes.create", target, "ALREADY_EXISTS")]


def test_reset_empties_the_world_and_its_schedule(sim: Setup) -> None:
    sim.create()
    sim.create_queued()
    sim.clock.advance(151)
    sim.world.reset()
    sim.clock.advance(10_000)
    assert sim.world.snapshot() == {
        "project": "sim-project",
        "nodes": [],
        "instances": [],
        "queuedResources": [],
        "operations": [],
    }
    assert sim.hosts.specs == {}


def test_reads_do_not_wait_for_hosts() -> None:
    hosts = MemoryHosts(gated=True)
    world = World(hosts, WorldOptions(delays=Delays.instant()), clock=RealClock())
    try:
        world.call("CreateNode", {"parent": PARENT, "nodeId": "a", "node": NODE})
        assert hosts.entered.wait(30)
        assert world.call("GetNode", {"name": f"{PARENT}/nodes/a"})["state"] == "CREATING"
        hosts.gate.set()
        assert world.settle()
        assert world.call("GetNode", {"name": f"{PARENT}/nodes/a"})["state"] == "READY"
    finally:
        hosts.gate.set()
        world.close()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"kind": "error", "times": "two"}, "times"),
        ({"kind": "error", "method": "nodes.get", "in_operation": True}, "nodes.get"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_by_its_word(sim: Setup, spec: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        sim.world.faults.add(spec)


def test_a_create_without_capacity_ends_in_a_stockout_and_holds_nothing():
    lab = build()
    lab.world.set_capacity(ZONE, 8)
    lab.create("a")
    assert lab.world.room(ZONE) == 0
    operation = lab.create("b", acceleratorType="v4-8")
    assert lab.node("b")["state"] == "CREATING"
    assert lab.world.room(ZONE) == 0
    lab.clock.advance(3600)
    assert lab.operation(operation)["error"]["code"] == Code.RESOURCE_EXHAUSTED
    assert [resident.path.id for resident in lab.world.census()] == ["a"]
    lab.world.set_capacity(ZONE, None)
    lab.create("c", acceleratorType="v4-64")
    lab.clock.advance(3600)
    assert lab.node("c")["state"] == "READY"


def test_queued_requests_wait_for_capacity_and_get_it_in_order():
    lab = build()
    lab.world.set_capacity(ZONE, 8)
    names = ("first", "second", "third")
    for name in names:
        lab.create_queued(name)
    lab.clock.advance(3600)
    waiting = "WAITING_FOR_RESOURCES"
    assert [lab.queued_state(name) for name in names] == ["ACTIVE", waiting, waiting]
    lab.world.preempt("first")
    lab.clock.advance(3600)
    assert [lab.queued_state(name) for name in names] == ["SUSPENDED", "ACTIVE", waiting]
    lab.world.set_capacity(ZONE, 16)
    lab.clock.advance(3600)
    assert lab.queued_state("third") == "ACTIVE"


def test_an_operation_is_forgotten_a_day_after_its_end():
    lab = build()
    operation = lab.create()
    lab.clock.advance(3600)
    assert lab.operation(operation)["done"]
    lab.clock.advance(86_400)
    assert lab.refused("GetOperation", name=operation["name"]).code is Code.NOT_FOUND


def test_a_request_waits_until_it_is_valid(sim: Setup) -> None:
    sim.create_queued("soon")
    sim.create_queued("later", queueingPolicy={"validAfterDuration": "21600s"})
    at = rfc3339(sim.clock.now() + 7200)
    sim.create_queued("then", queueingPolicy={"validInterval": {"startTime": at}})
    sim.clock.advance(3600)
    states = [sim.queued_state(name) for name in ("soon", "later", "then")]
    assert states == ["ACTIVE", "WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES"]
    sim.clock.advance(3900)
    assert (sim.queued_state("then"), sim.queued_state("later")) == ("ACTIVE", "WAITING_FOR_RESOURCES")
    sim.clock.advance(14400)
    assert sim.queued_state("later") == "ACTIVE"


def test_reserved_capacity_comes_from_a_reservation_or_not_at_all(sim: Setup) -> None:
    reserved = {"schedulingConfig": {"reserved": True}}
    failed = sim.create("a", **reserved)
    sim.clock.advance(1000)
    error = sim.operation(failed)["error"]
    assert (error["code"], "Insufficient reserved capacity" in error["message"]) == (9, True)
    name = f"projects/sim-project/locations/{ZONE}/reservations/"
    sim.create_queued("q", reservationName=f"{name}ours")
    sim.clock.advance(1000)
    assert sim.queued_state("q") == "FAILED"

    sim.world.steering.set_reservation("ours", ZONE, "v4", 8)
    sim.world.set_capacity(ZONE, 0)
    sim.create("a", **reserved)
    sim.clock.advance(1000)
    assert sim.node("a")["state"] == "READY"
    assert sim.world.steering.reservations()[0]["used"] == 8
    sim.create_queued("r", reservationName=f"{name}-")
    sim.clock.advance(1000)
    assert sim.queued_state("r") == "FAILED"
    sim.call("DeleteNode", name=f"{PARENT}/nodes/a")
    sim.clock.advance(1000)
    sim.create_queued("s", reservationName=f"{name}ours")
    sim.create_queued("t", reservationName=f"{name}theirs")
    sim.clock.advance(1000)
    assert [sim.queued_state(each) for each in ("s", "t")] == ["ACTIVE", "FAILED"]
    listed = sim.call("ListReservations", "v2alpha1", parent=PARENT)["reservations"]
    assert [(each["name"], each["standard"]["size"]) for each in listed] == [(f"{name}ours", 8)]


def test_a_spot_request_of_a_preemptible_node_is_served(sim: Setup) -> None:
    node = {**NODE, "schedulingConfig": {"preemptible": True}}
    sim.create_queued("q", tpu={"nodeSpec": [{"nodeId": "n", "node": node}]})
    sim.clock.advance(1000)
    assert sim.queued_state("q") == "ACTIVE"


def test_announced_maintenance_is_shown_and_can_be_begun(sim: Setup) -> None:
    sim.create_queued("q")
    sim.clock.advance(1000)
    name = f"{PARENT}/queuedResources/q"
    assert sim.refused("PerformMaintenanceQueuedResource", name=name).code.name == "FAILED_PRECONDITION"
    sim.world.steering.set_fields("q-node", None, {"maintenance": "SCHEDULED"})
    [info] = sim.call("GetMaintenanceInfo", "v2alpha1", name=name)["nodeUpcomingMaintenances"]
    assert (info["nodeName"], info["upcomingMaintenance"]["type"]) == ("q-node", "SCHEDULED")
    assert sim.node("q-node")["upcomingMaintenance"]["canReschedule"] is True
    operation = sim.call("PerformMaintenanceQueuedResource", "v2alpha1", name=name)
    sim.clock.advance(0)
    assert sim.node("q-node")["health"] == "UNHEALTHY_MAINTENANCE"
    sim.clock.advance(1000)
    assert sim.operation(operation)["done"]
    assert sim.node("q-node")["health"] == "HEALTHY"
    assert "upcomingMaintenance" not in sim.node("q-node")
