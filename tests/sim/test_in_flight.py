"""What the simulated TPU API refuses or drops while something else is in flight."""

from __future__ import annotations

import pytest

from tests.sim.test_world import NODE, PARENT, Setup, build
from tpuctl.sim.wire.status import Code
from tpuctl.sim.world.delays import Delays

NODE_NAME = f"{PARENT}/nodes/a"
QUEUED_NAME = f"{PARENT}/queuedResources/q"
LABELS = {"name": NODE_NAME, "labels": {"k": "v"}}


@pytest.fixture
def sim() -> Setup:
    return build()


def ready(sim: Setup) -> None:
    sim.create()
    sim.clock.advance(150)
    assert sim.node()["state"] == "READY"


def test_an_operation_in_flight_holds_its_resource_against_others(sim: Setup) -> None:
    ready(sim)
    sim.call("UpdateNode", node=LABELS, updateMask="labels")
    for method, request in (
        ("UpdateNode", {"node": LABELS, "updateMask": "labels"}),
        ("DeleteNode", {"name": NODE_NAME}),
    ):
        refused = sim.refused(method, **request)
        assert (refused.code, refused.message) == (Code.ABORTED, "unable to queue the operation")
    sim.clock.advance(40)
    sim.call("DeleteNode", name=NODE_NAME)
    assert sim.refused("UpdateNode", node=LABELS, updateMask="labels").code == Code.INVALID_ARGUMENT


def test_an_operation_that_never_ends_holds_nothing_once_its_work_is_done(sim: Setup) -> None:
    sim.world.faults.add({"preset": "slow-operation"})
    ready(sim)
    sim.call("DeleteNode", name=NODE_NAME)
    sim.clock.advance(60)
    assert sim.refused("GetNode", name=NODE_NAME).code == Code.NOT_FOUND


def test_operations_on_other_resources_are_not_held_up(sim: Setup) -> None:
    ready(sim)
    sim.call("CreateNode", parent=PARENT, nodeId="b", node=NODE)
    sim.clock.advance(150)
    sim.call("UpdateNode", node=LABELS, updateMask="labels")
    sim.call("DeleteNode", name=f"{PARENT}/nodes/b")


def test_a_delete_while_a_create_settles_is_taken_and_does_nothing(sim: Setup) -> None:
    created = sim.create()
    deleted = sim.call("DeleteNode", name=NODE_NAME)
    sim.clock.advance(150)
    assert sim.operation(deleted)["done"]
    assert "error" not in sim.operation(created)
    assert sim.node()["state"] == "READY"


def test_a_request_is_deletable_only_where_it_waits_is_up_or_is_over(sim: Setup) -> None:
    sim.create_queued()
    taken = {}
    for seconds in (0, 2, 10, 30):
        sim.clock.advance(seconds)
        state = sim.queued_state()
        if state in ("ACCEPTED", "WAITING_FOR_RESOURCES"):
            continue  # proved by a request of its own below
        refused = sim.refused("DeleteQueuedResource", name=QUEUED_NAME, force=True)
        taken[state] = (refused.code, "not in a deletable state" in refused.message)
    assert taken == dict.fromkeys(("CREATING", "PROVISIONING"), (Code.FAILED_PRECONDITION, True))
    sim.clock.advance(150)
    assert sim.queued_state() == "ACTIVE"
    assert "set force" in sim.refused("DeleteQueuedResource", name=QUEUED_NAME).message
    sim.world.preempt("q-node")
    sim.clock.advance(60)
    assert sim.queued_state() == "SUSPENDING"
    assert sim.refused("DeleteQueuedResource", name=QUEUED_NAME, force=True).code == Code.FAILED_PRECONDITION
    sim.clock.advance(30)
    sim.call("DeleteQueuedResource", name=QUEUED_NAME)


@pytest.mark.parametrize(
    ("seconds", "state"), [(2, "ACCEPTED"), (12, "WAITING_FOR_RESOURCES"), (192, "ACTIVE")]
)
def test_a_request_that_waits_or_is_up_goes_when_it_is_deleted(sim: Setup, seconds: int, state: str) -> None:
    sim.create_queued()
    sim.clock.advance(seconds)
    assert sim.queued_state() == state
    sim.call("DeleteQueuedResource", name=QUEUED_NAME, force=True)
    sim.clock.advance(60)
    assert sim.refused("GetQueuedResource", name=QUEUED_NAME).code == Code.NOT_FOUND
    assert sim.world.snapshot()["nodes"] == []


def test_without_delays_the_rules_are_the_same_and_nothing_is_waited_for() -> None:
    sim = build(delays=Delays.instant())
    sim.create_queued()
    assert sim.queued_state() == "ACTIVE"
    assert "set force" in sim.refused("DeleteQueuedResource", name=QUEUED_NAME).message
    sim.call("DeleteQueuedResource", name=QUEUED_NAME, force=True)
    assert sim.world.snapshot()["queuedResources"] == []
