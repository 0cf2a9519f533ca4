"""Slices of Compute Engine: the real adapter against the simulated API, in one process and over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials
from msgspec.structs import replace

from tests.support.clocks import FakeClock
from tests.support.compute_slices import FAMILY, INSTANCE, OWNED, OWNER, ZONE
from tests.support.memory.disks import WorldDisks
from tests.support.memory.host import MemoryHosts
from tests.support.memory.tpus import WorldTpus
from tests.support.sim import running_sim
from tpuctl.cloud.disks import GoogleDisks
from tpuctl.cloud.groups import ComputeTpus
from tpuctl.engine.cloud_ports import Cloud, Disks
from tpuctl.errors import ConflictError, InvalidRequestError, NotFoundError, TransientError
from tpuctl.model.cloud import NodeState, OperationInfo, ResourceKind, Tier
from tpuctl.model.disks import SHARED, DataDisk, DiskMode, DiskRequest
from tpuctl.sim.compute.rest import ComputeApi
from tpuctl.sim.world.clock import ManualClock
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.world import World, WorldOptions


@dataclass(frozen=True)
class Place:
    """A cloud and the world behind it."""

    cloud: Cloud
    world: World
    disks: Disks
    clock: ManualClock | None = None

    def settle(self) -> None:
        assert self.world.settle()

    def fault(self, **fields: object) -> None:
        self.world.faults.add(fields)

    def end(self, operation: OperationInfo) -> OperationInfo:
        self.settle()
        found = self.cloud.find_operation(operation.name)
        assert found is not None
        assert found.done
        return found

    def make(self, name: str = "big-1", **changes: Any) -> None:
        """As the loop does it: until there are hosts."""
        for _ in range(3):
            assert self.end(self.cloud.create_node(name, replace(OWNED, **changes))).error is None
            found = self.cloud.find_node(ZONE, name)
            if found is not None and found.state is not NodeState.HALF_MADE:
                return
        raise AssertionError("three objects, and no hosts")

    def remove(self, name: str = "big-1") -> list[ResourceKind]:
        """As the loop does it; which objects it was."""
        kinds = []
        while (found := self.cloud.find_node(ZONE, name)) is not None:
            assert len(kinds) < 3
            kinds.append(found.kind)
            operation = self.cloud.delete_node(ZONE, name)
            assert operation is not None
            assert self.end(operation).error is None
        return kinds


def over_http(folder: Path) -> Iterator[Place]:
    with running_sim(folder) as sim:
        asked = (sim.profile["project"], sim.endpoint, Credentials(token=sim.token))
        yield Place(ComputeTpus(*asked), sim.world, GoogleDisks(*asked))


def in_process(_folder: Path) -> Iterator[Place]:
    clock = FakeClock(ManualClock())
    options = WorldOptions(delays=Delays.instant())
    with closing(World(MemoryHosts(clock), options, clock=clock.manual)) as world:
        api = ComputeApi(world)
        cloud: Any = WorldTpus(options.project, lambda: api, clock, lambda: None)
        disks: Any = WorldDisks(options.project, lambda: api, clock)
        yield Place(cloud, world, disks, clock.manual)


PLACES: dict[str, Callable[[Path], Iterator[Place]]] = {"http": over_http, "in-process": in_process}


@pytest.fixture(params=PLACES)
def everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from PLACES[request.param](tmp_path)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield from in_process(tmp_path)


def test_one_host_is_an_instance_with_all_that_was_asked_for(place):
    place.make("one-1", **INSTANCE, description="Ablation", tags=("a",))
    found = place.cloud.find_node(ZONE, "one-1")
    assert (found.name, found.state, found.tier) == ("one-1", NodeState.READY, Tier.SPOT)
    assert (found.kind, found.accelerator_type) == (ResourceKind.INSTANCE, "tpu7x-8")
    assert (found.labels, found.tags) == ({"team": "vision", **OWNER}, ("a",))
    assert found.metadata == {"ssh-keys": "tpuctl:ssh-ed25519 AAAA"}
    assert found.options.description == "Ablation"
    [endpoint] = found.endpoints
    assert endpoint.instance == "one-1"
    assert endpoint.internal_ip
    assert endpoint.external_ip
    assert place.cloud.list_nodes().items == place.cloud.list_nodes(ZONE).items == (found,)
    assert place.cloud.list_nodes("us-east5-a").items == ()
    with pytest.raises(ConflictError, match="already"):
        place.cloud.create_node("one-1", replace(OWNED, **INSTANCE))
    assert place.remove("one-1") == [ResourceKind.INSTANCE]
    assert place.cloud.delete_node(ZONE, "one-1") is None
    assert place.cloud.list_nodes().items == ()


def test_what_was_begun_is_half_made_wherever_one_looks(place):
    assert place.cloud.find_node(ZONE, "big-1") is None
    for kind in (ResourceKind.POLICY, ResourceKind.TEMPLATE):
        place.end(place.cloud.create_node("big-1", OWNED))
        found = place.cloud.find_node(ZONE, "big-1")
        assert (found.state, found.kind, found.labels) == (NodeState.HALF_MADE, kind, OWNER)
        assert place.cloud.list_nodes().items == place.cloud.list_nodes(ZONE).items == (found,)
        assert place.cloud.list_nodes("us-central1-a").items == ()
    assert place.remove() == [ResourceKind.TEMPLATE, ResourceKind.POLICY]


@pytest.mark.parametrize("labels", [{}, {**OWNER, "tpuctl-store": "cd34"}, {**OWNER, "tpuctl-user": "bob"}])
def test_what_has_the_name_and_other_marks_is_left_alone(place, labels):
    place.end(place.cloud.create_node("big-1", replace(OWNED, labels=labels)))
    with pytest.raises(ConflictError, match="another workload policy called big-1"):
        place.cloud.create_node("big-1", OWNED)


def test_what_does_not_exist_has_no_hosts(place):
    cloud = place.cloud
    assert cloud.find_node(ZONE, "big-1") is cloud.delete_node(ZONE, "big-1") is None
    assert cloud.find_operation(f"projects/sim-project/zones/{ZONE}/operations/operation-1") is None
    for call in (cloud.list_host_keys, cloud.list_host_heartbeats, cloud.list_disk_changes):
        with pytest.raises(NotFoundError, match="no hosts of big-1"):
            call(ZONE, "big-1")


def test_an_answer_that_is_lost_is_found_by_the_next_look(place):
    place.fault(kind="drop", method="resourcePolicies.insert")
    with pytest.raises(TransientError):
        place.cloud.create_node("big-1", OWNED)
    place.settle()
    assert place.cloud.find_node(ZONE, "big-1").kind is ResourceKind.POLICY


def test_a_name_that_is_used_again_within_the_hour_is_made_again(place):
    for changes in ({}, {}, {"labels": {**OWNER, "tpuctl-store": "cd34"}}):
        place.make(**changes)
        assert place.cloud.find_node(ZONE, "big-1").state is NodeState.READY
        assert place.remove() == [ResourceKind.GROUP, ResourceKind.TEMPLATE, ResourceKind.POLICY]


def test_only_what_was_proved_is_deleted(place):
    place.end(place.cloud.create_node("big-1", OWNED))
    policy = place.cloud.find_node(ZONE, "big-1").resource
    place.end(place.cloud.create_node("big-1", OWNED))
    assert place.cloud.delete_node(ZONE, "big-1", policy) is None  # a template lies on top of it
    place.remove()
    place.end(place.cloud.create_node("big-1", OWNED))
    assert place.cloud.delete_node(ZONE, "big-1", policy) is None  # another of that name
    found = place.cloud.find_node(ZONE, "big-1").resource
    assert found.uid != policy.uid
    place.end(place.cloud.delete_node(ZONE, "big-1", found))
    assert place.cloud.find_node(ZONE, "big-1") is None


def test_an_image_that_is_not_there_is_refused_for_good(place):
    with pytest.raises(InvalidRequestError, match=r"no-such-family'\. The referenced image"):
        place.cloud.create_node("one-1", replace(OWNED, **{**INSTANCE, "runtime_version": "no-such-family"}))


def test_machine_types_with_chips_are_what_a_zone_offers(place):
    assert "tpu7x-standard-4t" in {each.name for each in place.cloud.list_offers(ZONE)}
    assert place.cloud.list_offers("us-central2-b") == ()


def test_several_hosts_are_a_group_made_of_three_objects_and_gone_in_reverse(everywhere):
    cloud = everywhere.cloud
    everywhere.make(description="Ablation")
    found = cloud.find_node(ZONE, "big-1")
    assert (found.state, found.kind, found.tier) == (NodeState.READY, ResourceKind.GROUP, Tier.SPOT)
    assert (found.accelerator_type, found.runtime_version) == ("tpu7x-16", FAMILY)
    assert found.labels == {"team": "vision", **OWNER}
    assert found.options.description == "Ablation"
    assert [each.instance for each in found.endpoints] == ["big-1-w-001", "big-1-w-002"]
    assert len({each.internal_ip for each in found.endpoints}) == 2
    assert cloud.list_nodes().items == cloud.list_nodes(ZONE).items == (found,)
    keys = cloud.list_host_keys(ZONE, "big-1")
    assert [(each.worker, each.hostname) for each in keys] == [(0, "big-1-w-001"), (1, "big-1-w-002")]
    assert all(each.public_key.startswith("ssh-ed25519 AAAA") for each in keys)
    assert cloud.list_host_heartbeats(ZONE, "big-1") == {}
    with pytest.raises(ConflictError, match="already"):
        cloud.create_node("big-1", OWNED)
    assert everywhere.remove() == [ResourceKind.GROUP, ResourceKind.TEMPLATE, ResourceKind.POLICY]
    assert cloud.list_nodes().items == ()


@pytest.mark.parametrize(
    ("changes", "there"),
    [({}, 2), ({"tier": Tier.FLEX_START, "run_duration_s": 3600.0}, 1)],
    ids=["members stop", "members vanish"],
)
def test_one_preempted_host_is_the_loss_of_its_group(place, changes, there):
    place.make(**changes)
    place.world.preempt("big-1", ZONE, [1])
    place.settle()
    for found in (place.cloud.find_node(ZONE, "big-1"), *place.cloud.list_nodes().items):
        assert found.state is NodeState.PREEMPTED
        assert "Compute Engine preempted them" in found.health_description
        assert len(found.endpoints) == (2 if there == 2 else 0)
    assert place.remove()[0] is ResourceKind.GROUP


def test_the_end_of_its_time_is_told_from_a_preemption(place):
    place.make(run_duration_s=3600.0)
    place.cloud.find_node(ZONE, "big-1")
    assert place.clock is not None
    place.clock.advance(3700.0)
    place.settle()
    assert place.cloud.find_node(ZONE, "big-1").state is NodeState.TERMINATED


def test_how_an_instance_that_is_gone_ended_is_told_by_the_operations_on_its_id(place):
    ends = {"one-1": NodeState.STOPPED, "one-2": NodeState.PREEMPTED, "one-3": NodeState.TERMINATED}
    lives = {}
    for name, state in ends.items():
        place.make(name, **INSTANCE, tier=Tier.FLEX_START, run_duration_s=3600.0)
        lives[place.cloud.find_node(ZONE, name).uid] = state
    place.cloud.delete_node(ZONE, "one-1")
    place.world.preempt("one-2", ZONE)
    place.settle()
    place.clock.advance(3700.0)
    place.settle()
    assert place.cloud.list_nodes().items == ()
    assert {uid: place.cloud.find_end(ZONE, uid) for uid in lives} == lives
    assert place.cloud.find_end(ZONE, "1") is place.cloud.find_end("us-east5-a", min(lives)) is None


def test_a_member_that_somebody_deleted_was_not_preempted(place):
    place.make()
    member = f"/compute/v1/projects/sim-project/zones/{ZONE}/instances/big-1-w-002"
    place.cloud.rest.change("DELETE", member, "delete a member")
    place.settle()
    found = place.cloud.find_node(ZONE, "big-1")
    assert (found.state, found.endpoints) == (NodeState.STOPPED, ())
    assert "somebody stopped or deleted them" in found.health_description


def test_a_group_without_room_waits_and_says_why(place):
    place.fault(preset="stockout", code=14, method="instances.insert", times=1000)
    for _ in range(3):
        place.end(place.cloud.create_node("big-1", OWNED))
    found = place.cloud.find_node(ZONE, "big-1")
    assert (found.state, found.endpoints, found.error.code) == (NodeState.CREATING, (), 8)
    assert place.remove() == [ResourceKind.GROUP, ResourceKind.TEMPLATE, ResourceKind.POLICY]


def test_a_group_that_is_deleted_between_two_reads_is_no_error(place):
    place.fault(preset="stockout", code=14, method="instances.insert", times=1000)
    for _ in range(3):
        place.end(place.cloud.create_node("big-1", OWNED))
    place.fault(kind="error", code=5, method="instanceGroupManagers.listManagedInstances", times=2)
    for found in (place.cloud.find_node(ZONE, "big-1"), *place.cloud.list_nodes().items):
        assert found.state is NodeState.CREATING


def test_labels_and_metadata_go_to_each_host_that_lacks_them(place):
    place.make()
    changed = {"ssh-keys": "tpuctl:ssh-ed25519 BBBB", "more": "1"}
    before = place.world.journal.count
    place.end(place.cloud.update_node(ZONE, "big-1", labels={**OWNER, "team": "audio"}, metadata=changed))
    assert place.world.journal.count == before + 4
    found = place.cloud.find_node(ZONE, "big-1")
    assert (found.labels["team"], found.metadata) == ("audio", changed)
    assert place.cloud.list_host_keys(ZONE, "big-1")  # the service's own attributes stayed
    done = place.cloud.update_node(ZONE, "big-1", labels={**OWNER, "team": "audio"}, metadata=changed)
    assert (done.done, place.world.journal.count) == (True, before + 4)


def test_a_label_that_one_host_has_for_itself_stays(place):
    place.make()
    path = f"/compute/v1/projects/sim-project/zones/{ZONE}/instances/big-1-w-001"
    host = place.cloud.rest.get(path, "read it")
    body = {"labels": {**host["labels"], "own": "1"}, "labelFingerprint": host["labelFingerprint"]}
    place.cloud.rest.change("POST", f"{path}/setLabels", "label it", body)
    place.settle()
    place.end(place.cloud.update_node(ZONE, "big-1", labels={**OWNER, "more": "1"}))
    assert place.cloud.rest.get(path, "read it")["labels"] == {**OWNER, "more": "1", "own": "1"}


def test_a_disk_is_attached_to_each_host_and_detached_from_each(place):
    place.make()
    place.disks.create_disk(DiskRequest("data", ZONE, "hyperdisk-ml", 10, {}, access_mode=SHARED), "data")
    place.settle()
    disk = DataDisk(ZONE, "data", DiskMode.READ_ONLY)
    assert place.cloud.find_node(ZONE, "big-1").data_disks == ()
    place.end(place.cloud.set_data_disks(ZONE, "big-1", [disk]))
    assert place.cloud.find_node(ZONE, "big-1").data_disks == (disk,)
    assert place.cloud.list_disk_changes(ZONE, "big-1") == {}
    assert place.cloud.set_data_disks(ZONE, "big-1", [disk]).done
    place.end(place.cloud.set_data_disks(ZONE, "big-1", []))
    assert place.cloud.find_node(ZONE, "big-1").data_disks == ()


@pytest.mark.parametrize("method", ["resourcePolicies", "instanceTemplates", "instanceGroupManagers"])
@pytest.mark.parametrize("verb", ["insert", "delete"])
def test_a_lost_answer_leaves_what_the_next_turn_goes_on_with(place, method, verb):
    place.fault(kind="drop", method=f"{method}.{verb}")
    if verb == "insert":
        make_until_there(place)
    else:
        place.make()
    names = [entry.method for entry in place.world.journal.entries() if entry.method.endswith(".insert")]
    assert sorted(names).count(f"{method}.insert") == 1
    remove_until_gone(place)
    assert place.cloud.list_nodes().items == ()


def make_until_there(place: Place) -> None:
    for _ in range(4):
        with suppress(TransientError):
            place.cloud.create_node("big-1", OWNED)
        place.settle()
        found = place.cloud.find_node(ZONE, "big-1")
        if found is not None and found.state is NodeState.READY:
            return
    raise AssertionError("it did not come")


def remove_until_gone(place: Place) -> None:
    for _ in range(5):
        if place.cloud.find_node(ZONE, "big-1") is None:
            return
        with suppress(TransientError):
            place.cloud.delete_node(ZONE, "big-1")
        place.settle()
    raise AssertionError("it did not go")
