"""What every `Cloud` must do: the real adapter over HTTP, and in the process of the world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from tests.support.clocks import FakeClock
from tests.support.memory.cloud import WorldCloud
from tests.support.memory.host import MemoryHosts
from tests.support.sim import running_sim
from tpuctl.cloud.tpu import GoogleCloud
from tpuctl.engine.cloud_ports import Cloud
from tpuctl.errors import (
    ConflictError,
    DeniedError,
    InvalidRequestError,
    NoCapacityError,
    QuotaError,
    RateLimitedError,
    TransientError,
)
from tpuctl.model.cloud import NodeState, OperationInfo, QueuedState, Tier
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.sim.world.clock import ManualClock
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.world import World, WorldOptions

ZONE = "us-central2-b"
LIMITED = "us-east1-d"


@dataclass(frozen=True)
class Place:
    """A cloud and the world behind it."""

    cloud: Cloud
    world: World

    def settle(self) -> None:
        assert self.world.settle()

    def fault(self, **fields: object) -> None:
        self.world.faults.add(fields)


def over_http(folder: Path) -> Iterator[Place]:
    with running_sim(folder, quotas={LIMITED: 4}) as sim:
        yield Place(GoogleCloud(sim.profile["project"], sim.endpoint, Credentials(token=sim.token)), sim.world)


def in_process(_folder: Path) -> Iterator[Place]:
    clock = FakeClock(ManualClock())
    options = WorldOptions(delays=Delays.instant(), quotas={LIMITED: 4})
    with closing(World(MemoryHosts(clock), options, clock=clock.manual)) as world:
        yield Place(WorldCloud(world, clock), world)


PLACES: dict[str, Callable[[Path], Iterator[Place]]] = {"http": over_http, "in-process": in_process}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from PLACES[request.param](tmp_path)


def ask(name: str = "a", **changes: Any) -> tuple[str, SliceSpec]:
    """Id and specification of what is created."""
    values: dict[str, Any] = {
        "hosts": 2,
        "chips": 8,
        "zone": ZONE,
        "accelerator_type": "v4-16",
        "runtime_version": "tpu-ubuntu2204-base",
        "tier": Tier.SPOT,
        "labels": {"owner": "ada"},
        "metadata": {"ssh-keys": "me:ssh-ed25519 AAAA"},
    }
    return name, SliceSpec(**{**values, **changes})


def end_of(place: Place, operation: OperationInfo) -> OperationInfo:
    place.settle()
    found = place.cloud.find_operation(operation.name)
    assert found is not None
    assert found.done
    return found


def test_a_node_is_shown_with_all_that_was_asked_for(place):
    operation = place.cloud.create_node(*ask())
    assert end_of(place, operation).error is None
    node = place.cloud.find_node(ZONE, "a")
    assert (node.name, node.zone, node.state, node.tier) == ("a", ZONE, NodeState.READY, Tier.SPOT)
    assert (node.accelerator_type, node.runtime_version) == ("v4-16", "tpu-ubuntu2204-base")
    assert (node.labels, node.metadata) == ({"owner": "ada"}, {"ssh-keys": "me:ssh-ed25519 AAAA"})
    assert (node.health, node.queued_resource, int(node.uid) > 0) == ("HEALTHY", None, True)
    assert len({each.internal_ip for each in node.endpoints}) == 2
    assert all(each.external_ip for each in node.endpoints)
    assert place.cloud.list_nodes().items == place.cloud.list_nodes(ZONE).items == (node,)
    assert place.cloud.list_nodes("us-east1-d").items == ()


def test_addresses_are_internal_only_if_asked_so(place):
    place.cloud.create_node(*ask(external_ips=False))
    place.settle()
    assert {each.external_ip for each in place.cloud.find_node(ZONE, "a").endpoints} == {None}


@pytest.mark.parametrize("tier", list(Tier)[:3])
def test_tiers_come_back_as_they_were_asked_for(place, tier):
    place.cloud.create_node(*ask(tier=tier))
    place.cloud.create_queued(*ask("q", tier=tier))
    place.settle()
    assert place.cloud.find_node(ZONE, "a").tier is tier
    assert place.cloud.find_queued(ZONE, "q").tier is tier


def test_what_does_not_exist_is_none_and_its_deletion_is_done(place):
    assert place.cloud.find_node(ZONE, "a") is None
    assert place.cloud.find_queued(ZONE, "a") is None
    missing = f"projects/sim-project/locations/{ZONE}/operations/operation-1"
    assert place.cloud.find_operation(missing) is None
    assert place.cloud.delete_node(ZONE, "a") is None
    assert place.cloud.delete_queued(ZONE, "a") is None


def test_a_queued_resource_is_active_with_its_node_and_goes_with_it(place):
    place.cloud.create_queued(*ask())
    place.settle()
    queued, node = place.cloud.find_queued(ZONE, "a"), place.cloud.find_node(ZONE, "a")
    assert (queued.state, queued.node_ids, queued.labels) == (QueuedState.ACTIVE, ("a",), {"owner": "ada"})
    assert (queued.accelerator_type, queued.error, node.queued_resource) == ("v4-16", None, "a")
    assert place.cloud.list_queued().items == (queued,)
    assert end_of(place, place.cloud.delete_queued(ZONE, "a")).error is None
    assert place.cloud.find_queued(ZONE, "a") is None
    assert place.cloud.find_node(ZONE, "a") is None


def test_a_preempted_node_is_shown_so_and_a_queued_one_is_gone(place):
    place.cloud.create_node(*ask())
    place.cloud.create_queued(*ask("q"))
    place.settle()
    place.world.preempt("a")
    place.world.preempt("q")
    place.settle()
    assert place.cloud.find_node(ZONE, "a").state is NodeState.PREEMPTED
    assert place.cloud.find_node(ZONE, "q") is None
    queued = place.cloud.find_queued(ZONE, "q")
    assert (queued.state, queued.initiator) == (QueuedState.SUSPENDED, "SERVICE")


def test_the_failure_of_a_queued_resource_is_told(place):
    place.fault(preset="queued-internal")
    place.cloud.create_queued(*ask())
    place.settle()
    queued = place.cloud.find_queued(ZONE, "a")
    assert queued.state is QueuedState.FAILED
    assert (queued.error.code, queued.error.message) == (13, "an internal error has occurred")


def test_a_stockout_ends_the_operation_and_may_refuse_the_call(place):
    place.fault(preset="stockout")
    ended = end_of(place, place.cloud.create_node(*ask()))
    assert (ended.error.code, "no more capacity" in ended.error.message) == (8, True)
    assert place.cloud.find_node(ZONE, "a") is None
    place.fault(preset="stockout-now")
    with pytest.raises(NoCapacityError, match="no more capacity"):
        place.cloud.create_node(*ask())


def test_refusals_are_told_apart(place):
    place.cloud.create_node(*ask())
    with pytest.raises(ConflictError):
        place.cloud.create_node(*ask())
    with pytest.raises(InvalidRequestError, match="accelerator"):
        place.cloud.create_node(*ask("b", accelerator_type="v9-8"))
    with pytest.raises(DeniedError):
        place.cloud.create_node(*ask("b", zone="mars-north1-a"))
    v6e = {"zone": LIMITED, "accelerator_type": "v6e-8", "runtime_version": "v2-alpha-tpuv6e"}
    with pytest.raises(QuotaError, match="Limit: 4"):
        place.cloud.create_node(*ask("b", **v6e))
    place.fault(preset="rate-limit")
    with pytest.raises(RateLimitedError):
        place.cloud.create_node(*ask("b"))


def test_the_answer_to_a_change_may_be_lost_although_it_took_effect(place):
    place.fault(preset="lost-response")
    with pytest.raises(TransientError):
        place.cloud.create_node(*ask())
    place.settle()
    assert place.cloud.find_node(ZONE, "a").state is NodeState.READY


def test_reads_are_repeated_after_passing_trouble_and_changes_are_not(place):
    place.fault(preset="blip", method="nodes.list", times=1)
    assert place.cloud.list_nodes().items == ()
    place.fault(preset="blip", method="nodes.create", times=1)
    with pytest.raises(TransientError):
        place.cloud.create_node(*ask())
    assert place.cloud.find_node(ZONE, "a") is None


def test_a_zone_that_cannot_be_read_is_named(place):
    place.cloud.create_node(*ask())
    place.settle()
    place.fault(kind="unreachable", zone=ZONE, times=0)
    listed = place.cloud.list_nodes()
    assert (listed.items, listed.unreachable) == ((), frozenset({ZONE}))


def test_host_keys_are_those_of_the_workers(place):
    place.cloud.create_node(*ask())
    place.settle()
    keys = place.cloud.list_host_keys(ZONE, "a")
    assert [key.worker for key in keys] == [0, 1]
    assert all(key.public_key.startswith("ssh-ed25519 AAAA") for key in keys)
    assert len({key.public_key for key in keys}) == 2
    assert [key.hostname[-4:] for key in keys] == ["-w-0", "-w-1"]


def test_several_slices_are_one_request_with_many_nodes(place):
    place.cloud.create_queued(*ask("m", slices=2))
    place.settle()
    assert place.cloud.find_queued(ZONE, "m").node_ids == ("m-0", "m-1")
    assert [node.name for node in place.cloud.list_nodes(ZONE).items] == ["m-0", "m-1"]
