"""What is done next for a slice."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import a_slice, a_spec, an_incarnation
from tpuctl.model.records import Answer, Desired, Loss, Retry, SliceState
from tpuctl.model.timeouts import CREATE_STALLED_S, DELETING_MAX_S, UNCLEAR_MAX_S
from tpuctl.model.verdict import Blocked, Done, Wait
from tpuctl.slices.plan import next_incarnation, plan_slice
from tpuctl.slices.states import Effect, ObservedEvent, SliceEvent

NOW = 5000.0


def plan(record, event):
    return plan_slice(record, ObservedEvent(event, "seen"), NOW)


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


def spent_slice(**spec):
    incarnation = an_incarnation(create_called_at=1000.0, cloud_ready_at=1100.0)
    loss = Loss(4900.0, "preempted", "SUSPENDED by the service")
    return a_slice(state=SliceState.LOST, spec=a_spec(**spec), incarnation=incarnation, loss=loss)


def test_a_slice_whose_time_is_over_is_cleaned_away_and_not_asked_for_again():
    lost = spent_slice(run_duration_s=3600.0)
    assert plan(lost, SliceEvent.PREEMPTED).effect is Effect.DELETE
    answer = plan(lost, SliceEvent.ABSENT)
    assert (answer.state, answer.effect) == (SliceState.REMOVED, None)
    assert isinstance(answer.verdict, Blocked)
    assert "1h is over" in answer.verdict.why
    later = plan(replace(lost, state=SliceState.REMOVED), SliceEvent.ABSENT)
    assert later.verdict == answer.verdict


def test_a_slice_taken_before_its_time_is_over_is_asked_for_again():
    assert plan(spent_slice(run_duration_s=86400.0), SliceEvent.ABSENT).effect is Effect.RENEW
    assert plan(spent_slice(valid_for_s=60.0), SliceEvent.ABSENT).effect is Effect.RENEW


def test_a_request_that_found_no_capacity_in_its_time_is_given_up():
    lost = spent_slice(valid_for_s=600.0)
    lost = replace(lost, incarnation=replace(lost.incarnation, cloud_ready_at=None))
    answer = plan(lost, SliceEvent.ABSENT)
    assert answer.state is SliceState.REMOVED
    assert "within --valid-for 10m" in answer.why


def test_a_person_who_asks_again_begins_anew_until_nothing_may_be_created_any_more():
    asked_again = replace(spent_slice(run_duration_s=3600.0), loss=None)
    assert plan(asked_again, SliceEvent.ABSENT).effect is Effect.RENEW
    for state in (SliceState.LOST, SliceState.REQUESTED):
        late = replace(spent_slice(valid_until=NOW), loss=None, state=state)
        assert plan(late, SliceEvent.ABSENT).state is SliceState.REMOVED
        early = replace(spent_slice(valid_until=NOW + 1), loss=None, state=state)
        assert plan(early, SliceEvent.ABSENT).effect in {Effect.CREATE, Effect.RENEW}


@pytest.mark.parametrize(
    ("state", "effect", "after"),
    [
        (SliceState.PROVISIONING, Effect.RECORD_LOSS, SliceState.LOST),
        (SliceState.LOST, Effect.RENEW, SliceState.REQUESTED),
        (SliceState.DELETING, None, SliceState.GONE),
    ],
)
def test_an_operation_that_never_ends_is_not_waited_for_when_nothing_exists(state, effect, after):
    running = ObservedEvent(SliceEvent.CREATING, "operation-1 is running", pending=True)
    fresh = a_slice(state=state, incarnation=an_incarnation(create_called_at=NOW - 60))
    assert plan_slice(fresh, running, NOW).state is state
    stalled = a_slice(state=state, incarnation=an_incarnation(create_called_at=NOW - CREATE_STALLED_S))
    answer = plan_slice(stalled, running, NOW)
    assert (answer.effect, answer.state) == (effect, after)
    assert "operation-1 is running for 15 min" in answer.why
    listed = ObservedEvent(SliceEvent.CREATING, "node big-1 is CREATING")
    assert plan_slice(stalled, listed, NOW).state is state


def test_a_lost_slice_in_a_state_that_nobody_knows_is_left_to_a_person():
    record = a_slice(state=SliceState.LOST)
    plan = plan_slice(record, ObservedEvent(SliceEvent.UNCLEAR, "node big-1 is UNKNOWN"), 2000.0)
    assert (plan.state, plan.effect) == (SliceState.LOST, None)
    assert isinstance(plan.verdict, Blocked)
    assert "tpuctl down big" in str(plan.verdict.hint)
    going = replace(record, state=SliceState.DELETING, desired=Desired.DOWN)
    assert (
        plan_slice(going, ObservedEvent(SliceEvent.UNCLEAR, "node big-1 is UNKNOWN"), 2000.0).effect
        is Effect.DELETE
    )


@pytest.mark.parametrize("state", [SliceState.PROVISIONING, SliceState.BOOTING, SliceState.READY])
def test_a_state_that_nobody_knows_is_timed_and_then_left_to_a_person(state):
    unclear = ObservedEvent(SliceEvent.UNCLEAR, "node big-1 is UNKNOWN")
    fresh = a_slice(state=state)
    assert plan_slice(fresh, unclear, NOW).effect is Effect.MARK_UNCLEAR
    timed = a_slice(state=state, incarnation=an_incarnation(unclear_since=NOW))
    early = plan_slice(timed, unclear, NOW + UNCLEAR_MAX_S - 1)
    assert (early.effect, early.verdict) == (None, Wait("node big-1 is UNKNOWN", NOW + UNCLEAR_MAX_S))
    late = plan_slice(timed, unclear, NOW + UNCLEAR_MAX_S)
    assert (late.state, late.effect) == (state, None)
    assert isinstance(late.verdict, Blocked)
    assert "UNKNOWN for 60 min" in late.why
    assert plan_slice(timed, ObservedEvent(SliceEvent.UNKNOWN, "unread"), NOW).effect is not Effect.MARK_UNCLEAR
    known = plan_slice(timed, ObservedEvent(SliceEvent.NODE_READY, "node big-1 is READY"), NOW)
    assert (known.state, known.effect) == (state, Effect.MARK_UNCLEAR)


def test_a_deletion_hangs_only_long_after_it_was_asked_for_however_old_the_loss():
    loss = Loss(NOW - 3 * DELETING_MAX_S, "preempted", "taken away")
    retry = Retry("delete", NOW - DELETING_MAX_S + 1, NOW - DELETING_MAX_S + 1, Answer.TAKEN)
    lost = a_slice(state=SliceState.LOST, loss=loss, incarnation=an_incarnation(retry=retry))
    assert plan(lost, SliceEvent.DELETING).effect is None
    answer = plan_slice(lost, ObservedEvent(SliceEvent.DELETING, "it is DELETING"), NOW + 1)
    assert (answer.effect, answer.why) == (Effect.RENEW, "it is DELETING for 15 min")
