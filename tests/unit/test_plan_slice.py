"""What is done next for a slice."""

from __future__ import annotations

from tests.support.builders import a_slice
from tpuctl.core.lifecycle import Effect, Sighting, SliceEvent
from tpuctl.core.plan import Blocked, Done, Wait
from tpuctl.core.plan_slice import next_incarnation, plan_slice
from tpuctl.core.records import Loss, SliceState

NOW = 5000.0


def plan(record, event):
    return plan_slice(record, Sighting(event, "seen"), NOW)


def test_a_ready_slice_needs_nothing():
    answer = plan(a_slice(), SliceEvent.NODE_READY)
    assert answer.effect is None
    assert isinstance(answer.verdict, Done)


def test_a_preempted_slice_is_recorded_lost_before_anything_is_deleted():
    answer = plan(a_slice(), SliceEvent.PREEMPTED)
    assert (answer.state, answer.effect) == (SliceState.LOST, Effect.RECORD_LOSS)


def test_a_lost_slice_is_deleted_first_and_renewed_when_it_is_absent():
    lost = a_slice(state=SliceState.LOST)
    assert plan(lost, SliceEvent.PREEMPTED).effect is Effect.DELETE
    assert plan(lost, SliceEvent.ABSENT).effect is Effect.RENEW


def test_a_new_create_waits_for_its_back_off():
    loss = Loss(4990.0, "create-failed", "no more capacity")
    lost = a_slice(state=SliceState.LOST, not_before=NOW + 7, loss=loss)
    answer = plan(lost, SliceEvent.ABSENT)
    assert answer.effect is None
    assert answer.verdict == Wait("next try after: no more capacity", NOW + 7)


def test_what_a_person_removed_stays_removed():
    answer = plan(a_slice(), SliceEvent.ABSENT)
    assert (answer.state, answer.effect) == (SliceState.REMOVED, None)
    again = plan(a_slice(state=SliceState.REMOVED), SliceEvent.ABSENT)
    assert again.effect is None
    assert isinstance(again.verdict, Blocked)
    assert again.verdict.hint == "tpuctl up big"


def test_incarnation_numbers_only_grow():
    assert next_incarnation(a_slice(last_incarnation=7), NOW).cloud_name == "big-8"
