"""Slices whose hosts are instances of Compute Engine: what is seen of them, and what is done next."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import STORE, a_node, a_slice, a_spec, an_incarnation
from tests.support.memory.services import MemoryPlace
from tpuctl.model.cloud import Api, CloudErrorInfo, NodeInfo, NodeState, OperationInfo, ResourceKind, Tier
from tpuctl.model.records import Answer, Lifetime, Loss, Retry, SliceRecord, SliceState
from tpuctl.model.timeouts import CREATE_STALLED_S, OUTLIVED_S
from tpuctl.slices.classify import SliceInfo, classify_slice
from tpuctl.slices.desired import request_down, request_slice
from tpuctl.slices.plan import hosts_end, plan_slice, time_left
from tpuctl.slices.reconcile import wait_for_slice, wait_until_gone
from tpuctl.slices.states import Effect, LossKind, ObservedEvent, SliceEvent

NOW = 5000.0
SPEC = a_spec(api=Api.COMPUTE, queued=False, accelerator_type="tpu7x-16", topology="2x2x2")
STOCKOUT = CloudErrorInfo(8, "no more capacity", ({"reason": "ZONE_RESOURCE_POOL_EXHAUSTED"},))
QUOTA = CloudErrorInfo(8, "Quota 'TPUS' exceeded", ({"reason": "QUOTA_EXCEEDED"},))
NO_IMAGE = CloudErrorInfo(5, "the image was not found", ({"reason": "RESOURCE_NOT_FOUND"},))


def a_group(**changes: Any) -> NodeInfo:
    return a_node(**{"api": Api.COMPUTE, "kind": ResourceKind.GROUP, **changes})


def in_state(state: SliceState, **life: Any) -> SliceRecord:
    return a_slice(state=state, spec=SPEC, incarnation=an_incarnation(create_called_at=NOW, **life))


def seen(record: SliceRecord, node: NodeInfo | None, operation: OperationInfo | None = None) -> ObservedEvent:
    return classify_slice(record, SliceInfo(node=node, operation=operation), STORE)


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (None, SliceEvent.CREATING),
        (STOCKOUT, SliceEvent.QUEUED),
        (QUOTA, SliceEvent.CREATE_FAILED),
        (NO_IMAGE, SliceEvent.CREATE_REFUSED),
    ],
)
def test_a_group_waits_for_capacity_and_is_given_up_for_what_no_waiting_mends(error, event):
    making = a_group(state=NodeState.CREATING, error=error)
    assert seen(in_state(SliceState.PROVISIONING), making).event is event
    assert SliceInfo(node=making).failure is error
    up_before = in_state(SliceState.BOOTING, cloud_ready_at=1.0, node_uid="42")
    assert seen(up_before, making).event is SliceEvent.CREATING


@pytest.mark.parametrize(("error", "state"), [(NO_IMAGE, SliceState.REFUSED), (QUOTA, SliceState.LOST)])
def test_a_group_that_was_given_up_is_deleted_as_it_would_go_on_asking(error, state):
    record = in_state(SliceState.PROVISIONING)
    steps = []
    for _ in range(5):
        plan = plan_slice(record, seen(record, a_group(state=NodeState.CREATING, error=error)), NOW)
        steps.append((plan.state, plan.effect))
        record = replace(record, state=plan.state)
    assert steps == [(state, Effect.RECORD_LOSS), *[(state, Effect.DELETE)] * 4]


def test_a_group_that_waits_for_capacity_is_taken_back_after_a_refusal():
    record = in_state(SliceState.REFUSED)
    waits = seen(record, a_group(state=NodeState.CREATING, error=STOCKOUT))
    assert plan_slice(record, waits, NOW).state is SliceState.PROVISIONING


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (NodeState.READY, SliceEvent.NODE_READY),
        (NodeState.PREEMPTED, SliceEvent.PREEMPTED),
        (NodeState.TERMINATED, SliceEvent.TIME_OVER),
        (NodeState.STOPPED, SliceEvent.STOPPED),
        (NodeState.DELETING, SliceEvent.DELETING),
        (NodeState.UNKNOWN, SliceEvent.UNCLEAR),
    ],
)
def test_ends_by_preemption_by_time_and_by_a_person_are_told_apart(state, event):
    assert seen(in_state(SliceState.READY, cloud_ready_at=1.0), a_group(state=state)).event is event


@pytest.mark.parametrize(
    ("ended", "event"),
    [
        (NodeState.PREEMPTED, SliceEvent.PREEMPTED),
        (NodeState.TERMINATED, SliceEvent.TIME_OVER),
        (NodeState.STOPPED, SliceEvent.ABSENT),
        (None, SliceEvent.ABSENT),
    ],
)
def test_hosts_that_are_gone_ended_as_the_cloud_proves_it(ended, event):
    record = in_state(SliceState.READY, cloud_ready_at=1.0, node_uid="42")
    assert classify_slice(record, SliceInfo(ended=ended), STORE).event is event


HALF = a_group(state=NodeState.HALF_MADE, kind=ResourceKind.TEMPLATE)
RUNNING = OperationInfo("projects/p/zones/z/operations/o", done=False)
REFUSED = replace(RUNNING, done=True, error=QUOTA)


@pytest.mark.parametrize(
    ("state", "operation", "event"),
    [
        (SliceState.REQUESTED, None, SliceEvent.HALF_MADE),
        (SliceState.REQUESTED, replace(RUNNING, done=True), SliceEvent.HALF_MADE),
        (SliceState.REQUESTED, RUNNING, SliceEvent.CREATING),
        (SliceState.REQUESTED, REFUSED, SliceEvent.CREATE_FAILED),
        (SliceState.DELETING, REFUSED, SliceEvent.HALF_MADE),
        (SliceState.LOST, REFUSED, SliceEvent.HALF_MADE),
    ],
)
def test_the_next_object_is_asked_for_when_the_last_one_is_made(state, operation, event):
    assert seen(in_state(state), HALF, operation).event is event


def test_an_operation_that_never_ends_does_not_keep_the_next_object_waiting():
    record = in_state(SliceState.REQUESTED)
    observed = seen(record, HALF, RUNNING)
    assert plan_slice(record, observed, NOW).effect is None
    assert plan_slice(record, observed, NOW + CREATE_STALLED_S).effect is Effect.CREATE


def test_the_next_object_is_deleted_as_soon_as_the_last_one_is_gone():
    asked = Retry("delete", NOW, NOW, Answer.TAKEN, "group")
    record = in_state(SliceState.DELETING, retry=asked)
    assert plan_slice(record, seen(record, a_group()), NOW + 1).effect is None
    assert plan_slice(record, seen(record, HALF), NOW + 1).effect is Effect.DELETE
    same = in_state(SliceState.DELETING, retry=replace(asked, said="template"))
    assert plan_slice(same, seen(same, HALF), NOW + 1).effect is None


def test_compute_engine_ends_a_slice_some_time_after_its_ttl():
    record = a_slice(spec=SPEC, lifetime=Lifetime(expires_at=NOW + 3600, ttl_s=3600))
    assert time_left(record, NOW) == 3600 + OUTLIVED_S
    assert time_left(replace(record, lifetime=None), NOW) is None
    shorter = replace(record, spec=replace(SPEC, run_duration_s=600.0, tier=Tier.ON_DEMAND))
    assert time_left(shorter, NOW) == 600
    assert time_left(replace(record, spec=a_spec()), NOW) is None


def test_what_ended_with_its_ttl_is_not_asked_for_again_and_what_was_given_more_time_is():
    ended = Loss(NOW, LossKind.TIME_OVER, "its time is over")
    record = replace(in_state(SliceState.LOST), loss=ended, lifetime=Lifetime(expires_at=NOW - 1, ttl_s=60))
    over = plan_slice(record, seen(record, None), NOW)
    assert (over.state, over.effect) == (SliceState.REMOVED, None)
    more = replace(record, lifetime=Lifetime(expires_at=NOW + 1, ttl_s=60))
    assert plan_slice(more, seen(more, None), NOW).effect is Effect.RENEW


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (NOW + 60, NOW + 600, "ends the hosts that are there as it was told"),
        (NOW + 60, None, "`tpuctl status big` says when"),
        (None, NOW + 600, "only a pass ends them"),
        (NOW + 600, NOW + 60, ""),
        (NOW + 600, NOW + 600, ""),
    ],
)
def test_another_ttl_says_when_the_hosts_that_are_there_end(then, now, said):
    made = in_state(SliceState.READY)
    before = replace(made, lifetime=Lifetime(expires_at=then) if then else None)
    found = hosts_end(before, replace(made, lifetime=Lifetime(expires_at=now) if now else None))
    assert said in found
    assert bool(said) == bool(found)
    of_tpu_api = replace(made, spec=a_spec(), lifetime=Lifetime(expires_at=NOW + 900))
    assert hosts_end(before, of_tpu_api) == ""


def test_a_slice_that_is_gone_comes_back_by_the_other_api():
    """The operation of the last life is one of the other API, which would refuse to look for it."""
    place = MemoryPlace()
    try:
        services = place.machine()
        zone = "us-east5-a"
        by_api = a_spec(
            accelerator_type="v6e-8", zone=zone, hosts=1, chips=8, runtime_version="v2-alpha-tpuv6e"
        )
        by_compute = replace(
            by_api,
            api=Api.COMPUTE,
            queued=False,
            machine_type="ct6e-standard-8t",
            topology="2x4",
            runtime_version="ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        )
        for spec in (by_compute, by_api, by_compute):
            request_slice(services, "big", spec, pay=True, admit=lambda: None)
            assert wait_for_slice(services, "big").spec.api is spec.api
            request_down(services, "big")
            wait_until_gone(services, "big")
    finally:
        place.close()
