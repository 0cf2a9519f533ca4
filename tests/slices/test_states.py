"""The slice's state table: complete, and right about what each look at the cloud means."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from tests.support.builders import LABELS, STORE, a_node, a_queued, a_slice, an_incarnation
from tpuctl.model.cloud import Api, CloudErrorInfo, NodeState, OperationInfo, QueuedState, ResourceKind, Tier
from tpuctl.model.records import SliceState
from tpuctl.slices import classify
from tpuctl.slices.classify import SliceInfo
from tpuctl.slices.states import IGNORED, STATE_NOTES, TRANSITIONS, Effect, SliceEvent, To


def test_every_pair_is_either_a_transition_or_ignored_on_purpose():
    pairs = itertools.product(SliceState, SliceEvent)
    assert [pair for pair in pairs if (pair in TRANSITIONS) == (pair in IGNORED)] == []


def classify_slice(record, info):
    return classify.classify_slice(record, info, STORE)


def test_every_state_is_explained_for_the_readme():
    assert set(STATE_NOTES) == set(SliceState)


def test_nothing_is_deleted_or_created_when_the_cloud_could_not_be_read():
    for state in SliceState:
        assert (state, SliceEvent.UNKNOWN) in IGNORED


def test_a_ready_slice_is_deleted_only_by_way_of_a_recorded_loss_or_down():
    effects = {TRANSITIONS[pair].effect for pair in TRANSITIONS if pair[0] is SliceState.READY}
    assert effects == {Effect.RECORD_LOSS, Effect.DOUBT, None}


def test_whatever_takes_a_ready_slice_away_takes_one_that_is_initializing_away_alike():
    for event in set(SliceEvent) - {SliceEvent.NODE_READY}:
        both = [TRANSITIONS.get((state, event)) for state in (SliceState.INITIALIZING, SliceState.READY)]
        assert both[0] == both[1]


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (NodeState.CREATING, SliceEvent.CREATING),
        (NodeState.READY, SliceEvent.NODE_READY),
        (NodeState.PREEMPTED, SliceEvent.PREEMPTED),
        (NodeState.TERMINATED, SliceEvent.PREEMPTED),
        (NodeState.REPAIRING, SliceEvent.CREATING),
        (NodeState.STOPPED, SliceEvent.STOPPED),
        (NodeState.DELETING, SliceEvent.DELETING),
        (NodeState.UNKNOWN, SliceEvent.UNCLEAR),
        (NodeState.HALF_MADE, SliceEvent.HALF_MADE),
    ],
)
def test_node_states_are_understood(state, event):
    info = SliceInfo(node=a_node(state=state))
    assert classify_slice(a_slice(), info).event is event


@pytest.mark.parametrize(
    ("state", "to"),
    [
        (SliceState.REQUESTED, To(SliceState.REQUESTED, Effect.CREATE)),
        (SliceState.PROVISIONING, To(SliceState.REQUESTED)),
        (SliceState.BOOTING, To(SliceState.REMOVED)),
        (SliceState.READY, To(SliceState.REMOVED)),
        (SliceState.LOST, To(SliceState.LOST, Effect.DELETE)),
        (SliceState.REFUSED, To(SliceState.REFUSED, Effect.DELETE)),
        (SliceState.DELETING, To(SliceState.DELETING, Effect.DELETE)),
    ],
)
def test_what_is_half_made_goes_on_or_goes_and_what_had_hosts_was_deleted_by_a_person(state, to):
    assert TRANSITIONS[state, SliceEvent.HALF_MADE] == to


def test_what_is_left_of_a_group_is_ours_by_its_marks_and_not_by_the_id_of_the_group():
    life = an_incarnation(node_uid="42", cloud_ready_at=1.0)
    record = a_slice(state=SliceState.DELETING, incarnation=life)
    left = a_node(uid="7", state=NodeState.HALF_MADE, api=Api.COMPUTE, kind=ResourceKind.TEMPLATE)
    assert classify_slice(record, SliceInfo(node=left)).event is SliceEvent.HALF_MADE
    anothers = replace(left, labels={})
    assert classify_slice(record, SliceInfo(node=anothers)).event is SliceEvent.FOREIGN
    assert classify_slice(record, SliceInfo(node=a_node(uid="7"))).event is SliceEvent.FOREIGN


def test_a_state_of_our_own_is_nothing_that_the_api_can_say():
    assert NodeState.parse("HALF_MADE") is NodeState.UNKNOWN


@pytest.mark.parametrize(
    ("state", "initiator", "event"),
    [
        (QueuedState.WAITING_FOR_RESOURCES, "", SliceEvent.QUEUED),
        (QueuedState.PROVISIONING, "", SliceEvent.CREATING),
        (QueuedState.ACTIVE, "", SliceEvent.NODE_MISSING),
        (QueuedState.SUSPENDED, "SERVICE", SliceEvent.PREEMPTED),
        (QueuedState.SUSPENDED, "USER", SliceEvent.ENDED_BY_PERSON),
        (QueuedState.DELETING, "", SliceEvent.DELETING),
        (QueuedState.UNKNOWN, "", SliceEvent.UNCLEAR),
    ],
)
def test_queued_resource_states_are_understood_without_a_node(state, initiator, event):
    info = SliceInfo(queued=a_queued(state=state, initiator=initiator))
    assert classify_slice(a_slice(), info).event is event


def test_internal_error_of_a_queued_resource_is_a_stockout_and_a_bad_request_is_not():
    internal = a_queued(state=QueuedState.FAILED, error=CloudErrorInfo(13, "an internal error has occurred"))
    invalid = a_queued(state=QueuedState.FAILED, error=CloudErrorInfo(3, "no such accelerator"))
    assert classify_slice(a_slice(), SliceInfo(queued=internal)).event is SliceEvent.CREATE_FAILED
    assert classify_slice(a_slice(), SliceInfo(queued=invalid)).event is SliceEvent.CREATE_REFUSED


def test_an_operation_that_never_ends_does_not_hide_a_ready_node():
    running = OperationInfo("operations/x", done=False)
    info = SliceInfo(node=a_node(), operation=running)
    assert classify_slice(a_slice(), info).event is SliceEvent.NODE_READY


@pytest.mark.parametrize("label", sorted(LABELS))
def test_a_node_of_another_slice_life_or_fleet_is_foreign(label):
    info = SliceInfo(node=a_node(labels={**LABELS, label: "other"}))
    assert classify_slice(a_slice(), info).event is SliceEvent.FOREIGN


def test_a_multislice_of_which_one_node_is_deleted_already_is_still_ours():
    """Else what is left of it counted as somebody else's, and the slice as gone."""
    life = an_incarnation(cloud_ready_at=1.0, node_uid="11,12")
    record = a_slice(state=SliceState.DELETING, incarnation=life)
    left = SliceInfo(node=a_node(uid="12", state=NodeState.DELETING))
    assert classify_slice(record, left).event is SliceEvent.DELETING
    another = SliceInfo(node=a_node(uid="12,13"))
    assert classify_slice(record, another).event is SliceEvent.FOREIGN


def test_a_node_in_an_unknown_state_is_deleted_when_the_slice_goes():
    assert TRANSITIONS[SliceState.DELETING, SliceEvent.UNCLEAR].effect is Effect.DELETE
    assert (SliceState.READY, SliceEvent.UNCLEAR) in IGNORED


def test_a_waiting_request_that_is_gone_was_removed_by_a_person():
    event = classify_slice(a_slice(state=SliceState.PROVISIONING), SliceInfo()).event
    assert event is SliceEvent.ENDED_BY_PERSON
    assert TRANSITIONS[SliceState.PROVISIONING, event].state is SliceState.REMOVED


def test_a_failed_create_no_longer_counts_once_the_slice_is_being_cleaned():
    failed = OperationInfo("operations/x", done=True, error=CloudErrorInfo(8, "no more capacity"))
    info = SliceInfo(operation=failed)
    assert classify_slice(a_slice(state=SliceState.REQUESTED), info).event is SliceEvent.CREATE_FAILED
    assert classify_slice(a_slice(state=SliceState.DELETING), info).event is SliceEvent.ABSENT


def test_a_running_create_is_waited_for_even_while_deleting():
    info = SliceInfo(operation=OperationInfo("operations/x", done=False))
    assert classify_slice(a_slice(state=SliceState.DELETING), info).event is SliceEvent.CREATING


@pytest.mark.parametrize("tier", Tier)
def test_a_reservation_that_nobody_asked_for_and_is_not_found_is_no_capacity(tier):
    error = CloudErrorInfo(5, "Reservation not found.")
    operation = OperationInfo("operations/x", done=True, error=error)
    failed = a_queued(state=QueuedState.FAILED, error=error)
    expected = SliceEvent.CREATE_REFUSED if tier is Tier.RESERVED else SliceEvent.CREATE_FAILED
    asked = a_slice(state=SliceState.REQUESTED)
    asked = replace(asked, spec=replace(asked.spec, tier=tier))
    for info in (SliceInfo(operation=operation), SliceInfo(queued=failed)):
        assert classify_slice(asked, info).event is expected


@pytest.mark.parametrize("code", [*range(1, 17), 0, 99, -1])
def test_only_errors_that_asking_again_cannot_mend_refuse_a_request_for_good(code):
    error = CloudErrorInfo(code, "why")
    operation = OperationInfo("operations/x", done=True, error=error)
    failed = a_queued(state=QueuedState.FAILED, error=error)
    final = code in {3, 5, 7, 11, 12, 16}
    for info in (SliceInfo(operation=operation), SliceInfo(queued=failed)):
        event = classify_slice(a_slice(state=SliceState.REQUESTED), info).event
        assert event is (SliceEvent.CREATE_REFUSED if final else SliceEvent.CREATE_FAILED)
