"""The nodes of a multislice seen as one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import LABELS, a_node, a_queued, a_run, a_slice, a_spec, an_attempt, an_incarnation
from tests.support.builders import STORE as STORE_ID
from tpuctl.model.cloud import Endpoint, NodeInfo, NodeState, QueuedState
from tpuctl.model.records import SliceState
from tpuctl.runs.process_env import render_environment
from tpuctl.slices.classify import SliceInfo, classify_slice
from tpuctl.slices.multislice import combine_nodes
from tpuctl.slices.states import SliceEvent


def part(index: int, state: NodeState = NodeState.READY, hosts: int = 2, **changes: object) -> NodeInfo:
    endpoints = tuple(Endpoint(f"10.0.{index}.{host}") for host in range(hosts))
    node = a_node(name=f"big-1-{index}", uid=str(40 + index), state=state, endpoints=endpoints)
    return replace(node, **changes)  # type: ignore[arg-type]


def test_workers_are_counted_through_in_the_order_of_the_nodes():
    whole = combine_nodes([part(0), part(1)], was_whole=False)
    assert [each.internal_ip for each in whole.endpoints] == ["10.0.0.0", "10.0.0.1", "10.0.1.0", "10.0.1.1"]
    assert (whole.state, whole.uid) == (NodeState.READY, "40,41")
    assert whole.labels == LABELS


@pytest.mark.parametrize("state", [state for state in NodeState if state is not NodeState.READY])
def test_the_worst_node_speaks_for_all(state):
    one = combine_nodes([part(0), part(1, state)], was_whole=True)
    assert (one.state, one.name) == (state, "big-1-1")


def test_a_missing_node_means_on_its_way_first_and_nothing_left_later():
    assert combine_nodes([part(0), None], was_whole=False).state is NodeState.CREATING
    assert combine_nodes([part(0), None], was_whole=False).endpoints == ()
    assert combine_nodes([part(0), None], was_whole=True) is None
    assert combine_nodes([None, None], was_whole=False) is None


def test_a_label_that_one_node_lacks_is_no_label_of_the_slice():
    stranger = part(1, labels={**LABELS, "tpuctl-slice": "other"})
    assert "tpuctl-slice" not in combine_nodes([part(0), stranger], was_whole=False).labels


def test_one_sick_node_makes_the_slice_sick():
    sick = part(1, health="UNHEALTHY_MAINTENANCE", health_description="window")
    whole = combine_nodes([part(0, health="HEALTHY"), sick], was_whole=True)
    assert (whole.health, whole.health_description) == ("UNHEALTHY_MAINTENANCE", "window")


@pytest.mark.parametrize(
    ("state", "found", "event"),
    [
        (SliceState.PROVISIONING, [part(0), None], SliceEvent.CREATING),
        (SliceState.PROVISIONING, [part(0), part(1, NodeState.CREATING)], SliceEvent.CREATING),
        (SliceState.PROVISIONING, [part(0), part(1)], SliceEvent.NODE_READY),
        (SliceState.READY, [part(0), part(1, NodeState.PREEMPTED)], SliceEvent.PREEMPTED),
        (SliceState.READY, [part(0), None], SliceEvent.NODE_MISSING),
        (SliceState.READY, [part(0), part(1)], SliceEvent.NODE_READY),
        (SliceState.LOST, [part(0), None], SliceEvent.CREATING),
    ],
)
def test_any_node_lost_is_the_loss_of_the_incarnation(state, found, event):
    record = a_slice(state=state, spec=a_spec(slices=2, hosts=4), incarnation=an_incarnation(workers=()))
    was_whole = state is SliceState.READY
    info = SliceInfo(node=combine_nodes(found, was_whole=was_whole), queued=a_queued(state=QueuedState.ACTIVE))
    assert classify_slice(record, info, STORE_ID).event is event


def test_every_worker_of_a_run_is_told_its_slice_and_the_same_coordinator():
    attempt = an_attempt(workers=tuple(range(6)), slices=3, coordinator="10.0.0.1:4711")
    told = [render_environment(a_run(), attempt, worker) for worker in range(6)]
    assert [each["MEGASCALE_SLICE_ID"] for each in told] == ["0", "0", "1", "1", "2", "2"]
    assert {each["MEGASCALE_NUM_SLICES"] for each in told} == {"3"}
    assert {each["MEGASCALE_COORDINATOR_ADDRESS"] for each in told} == {"10.0.0.1"}
    alone = render_environment(a_run(), an_attempt(), 0)
    assert not [name for name in alone if name.startswith("MEGASCALE_")]
