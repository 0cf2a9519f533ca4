"""Where to ask next, what is remembered of asking, and when silence proves something."""

from __future__ import annotations

import itertools

import pytest

from tests.support.builders import a_slice, a_spec, an_incarnation
from tpuctl.lib.codec import from_data, to_data
from tpuctl.model import timeouts
from tpuctl.model.capacity import KEPT, CapacityNote, HourStat, note_failed, note_lost, note_ready, note_request
from tpuctl.model.cloud import Tier
from tpuctl.model.records import Doubt, SliceState
from tpuctl.slices.liveness import Silence, classify_silence
from tpuctl.slices.plan import plan_slice
from tpuctl.slices.states import Effect, ObservedEvent, SliceEvent
from tpuctl.slices.zones import REMEMBERED_S, choose_zone

NOW = 1_000_000.0
ZONES = ("a-b1-a", "c-d1-b", "e-f1-c")


def a_note(zone: str, **changes) -> CapacityNote:
    return CapacityNote(zone, "v4-16", Tier.SPOT, **changes)


def test_the_users_order_decides_where_nothing_is_known():
    assert choose_zone(ZONES, {}, {}, NOW).zone == ZONES[0]


def test_zones_that_are_backed_off_are_left_alone():
    assert choose_zone(ZONES, {ZONES[0]: NOW + 1}, {}, NOW).zone == ZONES[1]


def test_a_zone_that_has_just_failed_is_tried_again_after_the_others():
    assert choose_zone(ZONES, {ZONES[0]: NOW - 1}, {}, NOW).zone == ZONES[1]
    assert choose_zone(ZONES, {ZONES[0]: NOW - 1, ZONES[1]: NOW - 2}, {}, NOW).zone == ZONES[2]


def test_the_zone_where_capacity_was_last_found_comes_first_for_a_day():
    found = {
        ZONES[1]: a_note(ZONES[1], last_ready_at=NOW - 60),
        ZONES[2]: a_note(ZONES[2], last_ready_at=NOW - 30),
    }
    assert choose_zone(ZONES, {}, found, NOW).zone == ZONES[2]
    assert choose_zone(ZONES, {}, found, NOW + REMEMBERED_S).zone == ZONES[0]


def test_when_every_zone_is_backed_off_the_first_to_open_is_waited_for():
    closed = {ZONES[0]: NOW + 30, ZONES[1]: NOW + 10, ZONES[2]: NOW + 20}
    choice = choose_zone(ZONES, closed, {}, NOW)
    assert (choice.zone, choice.not_before) == (ZONES[1], NOW + 10)


def test_back_off_grows_to_its_ceiling_and_capacity_ends_it():
    note = a_note(ZONES[0])
    waits = []
    for _ in range(12):
        note = note_failed(note, "no more capacity", "big-1", NOW)
        waits.append(note.not_before - NOW)
    assert waits == sorted(waits)
    assert 0.75 * timeouts.BACKOFF_MAX_S <= waits[-1] <= timeouts.BACKOFF_MAX_S
    again = note_ready(note, NOW, NOW + 200)
    assert (again.failures, again.not_before, again.median_wait_s) == (0, 0.0, 200)


def test_those_that_failed_together_do_not_ask_again_together():
    waits = {timeouts.next_backoff(5, f"slice-{number}") for number in range(20)}
    assert len(waits) == 20
    assert max(waits) <= timeouts.next_backoff(5)


def test_what_is_remembered_is_bounded_and_counted_by_hour_of_the_day():
    note = a_note(ZONES[0])
    for day in range(KEPT + 5):
        asked = day * 86_400.0 + 3 * 3600
        note = note_ready(note_request(note, asked), asked, asked + 100 + day)
        note = note_lost(note, asked + 100, asked + 1300)
    assert len(note.waits_s) == len(note.lives_s) == KEPT
    assert note.hours == {"03": HourStat(KEPT + 5, KEPT + 5)}
    assert from_data(CapacityNote, to_data(note)) == note


def hunting(**changes):
    incarnation = an_incarnation(create_called_at=NOW - timeouts.HUNT_PATIENCE_S)
    spec = a_spec(zone=ZONES[0])
    return a_slice(
        **{
            "state": SliceState.PROVISIONING,
            "spec": spec,
            "zones": ZONES,
            "incarnation": incarnation,
            **changes,
        }
    )


def plan(record, event, now=NOW):
    return plan_slice(record, ObservedEvent(event, "seen"), now)


def test_a_request_that_only_waits_is_given_up_for_another_zone_after_a_while():
    answer = plan(hunting(), SliceEvent.QUEUED)
    assert (answer.state, answer.effect) == (SliceState.LOST, Effect.RECORD_LOSS)
    assert "no capacity in a-b1-a for 10 min" in answer.why


@pytest.mark.parametrize(
    ("record", "event"),
    [
        (hunting(), SliceEvent.CREATING),
        (hunting(zones=()), SliceEvent.QUEUED),
        (hunting(zones=ZONES[:1]), SliceEvent.QUEUED),
        (hunting(zone_not_before={ZONES[1]: NOW + 9, ZONES[2]: NOW + 9}), SliceEvent.QUEUED),
        (hunting(incarnation=an_incarnation(create_called_at=NOW - 599)), SliceEvent.QUEUED),
    ],
    ids=["being provisioned", "no other zone", "the only zone", "others backed off", "not long enough"],
)
def test_otherwise_the_place_in_the_queue_is_kept(record, event):
    assert plan(record, event).effect is None


@pytest.mark.parametrize(
    ("silent", "another", "sick"),
    list(
        itertools.product(
            (0.0, timeouts.BOOT_GRACE_S, timeouts.UNREACHABLE_MAX_S), (False, True), (False, True)
        )
    ),
)
def test_silence_alone_never_gives_a_slice_up(silent, another, sick):
    judged = classify_silence(silent, reached_another=another, unhealthy=sick)
    if judged is Silence.GIVE_UP:
        assert another or sick
        assert silent >= timeouts.UNREACHABLE_MAX_S
    if judged is Silence.BLIND:
        assert not another
        assert not sick
    if silent < timeouts.BOOT_GRACE_S:
        assert judged is Silence.WAIT


def test_a_node_missing_under_an_active_queued_resource_is_doubted_first_and_lost_later():
    assert plan(a_slice(), SliceEvent.NODE_MISSING).effect is Effect.DOUBT
    doubt = Doubt(NOW, "its node is not there", missing=True)
    doubted = a_slice(state=SliceState.BOOTING, incarnation=an_incarnation(doubt=doubt))
    soon, late = NOW + 1, NOW + timeouts.NODE_MISSING_MAX_S
    assert plan(doubted, SliceEvent.NODE_MISSING, soon).effect is None
    assert plan(doubted, SliceEvent.NODE_MISSING, late).effect is Effect.RECORD_LOSS
    assert plan(doubted, SliceEvent.CREATING, late).effect is Effect.TRUST


def test_silent_hosts_say_nothing_about_how_long_a_node_is_missing():
    silent = a_slice(state=SliceState.BOOTING, incarnation=an_incarnation(doubt=Doubt(NOW, "no host answers")))
    late = NOW + timeouts.NODE_MISSING_MAX_S
    assert plan(silent, SliceEvent.NODE_MISSING, late).effect is Effect.DOUBT
