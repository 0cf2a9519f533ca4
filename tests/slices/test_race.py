"""Which place of a race the slice is: decided from its record alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import a_slice, a_spec, an_incarnation
from tpuctl.model.records import Answer, Desired, Retry, Rival, SliceRecord, SliceState
from tpuctl.model.refs import MountRef
from tpuctl.slices.race import describe_end, is_out, plan_race

S = SliceState
NOW = 10_000.0
ZONES = ("us-central2-b", "europe-west4-b", "us-east5-a")


def race(*states: SliceState, desired: Desired = Desired.UP) -> SliceRecord:
    """A slice whose own place is in the first of these states, and its rivals in the others."""
    places = [
        Rival(
            a_spec(race=True, zone=zone),
            state,
            an_incarnation(number=number, cloud_name=f"big-{number}", create_called_at=NOW - 600),
        )
        for number, (zone, state) in enumerate(zip(ZONES, states, strict=False), 1)
    ]
    first, *rivals = places
    return a_slice(
        spec=first.spec,
        state=first.state,
        incarnation=first.incarnation,
        desired=desired,
        zones=ZONES,
        last_incarnation=len(places),
        rivals=tuple(rivals),
    )


def told(record: SliceRecord | None) -> list[tuple[int, SliceState]]:
    """The number and the state of each place, its own first."""
    assert record is not None
    return [(place.incarnation.number, place.state) for place in record.places if place.incarnation]


DECIDED = {
    "nothing has come": ([S.PROVISIONING, S.REQUESTED, S.LOST], None),
    "a rival comes": (
        [S.PROVISIONING, S.BOOTING, S.LOST],
        [(2, S.BOOTING), (1, S.DELETING), (3, S.DELETING)],
    ),
    "its own place comes": (
        [S.BOOTING, S.PROVISIONING, S.REFUSED],
        [(1, S.BOOTING), (2, S.DELETING), (3, S.DELETING)],
    ),
    "two come at the same moment": (
        [S.REQUESTED, S.BOOTING, S.BOOTING],
        [(2, S.BOOTING), (1, S.DELETING), (3, S.DELETING)],
    ),
    "it is decided, and what lost goes": ([S.READY, S.DELETING, S.DELETING], None),
    "it is decided, and lost before what lost is gone": ([S.LOST, S.DELETING, S.DELETING], None),
    "it is gone before what lost": ([S.GONE, S.DELETING, S.DELETING], None),
    "what lost is gone": ([S.READY, S.GONE, S.DELETING], [(1, S.READY), (3, S.DELETING)]),
    "its own place is refused": (
        [S.REFUSED, S.REMOVED, S.PROVISIONING],
        [(3, S.PROVISIONING), (2, S.REMOVED), (1, S.REFUSED)],
    ),
    "a person removes a rival": ([S.PROVISIONING, S.REMOVED, S.PROVISIONING], None),
    "all are refused": ([S.REFUSED, S.REFUSED, S.REMOVED], None),
}


@pytest.mark.parametrize(("states", "then"), DECIDED.values(), ids=DECIDED.keys())
def test_the_first_that_comes_is_the_slice(states, then):
    step = plan_race(race(*states), NOW)
    assert (None if step is None else told(step.record)) == then
    if step is not None:
        again = plan_race(step.record, NOW)
        assert again is None or again.ended is not None, "one step decides it"


def test_what_is_to_go_goes_in_all_places():
    step = plan_race(race(S.DELETING, S.PROVISIONING, S.BOOTING, desired=Desired.DOWN), NOW)
    assert step is not None
    assert told(step.record) == [(1, S.DELETING), (2, S.DELETING), (3, S.DELETING)]


def test_a_race_begins_with_the_intents_for_all_zones_and_again_after_each_loss():
    alone = replace(race(S.REQUESTED), incarnation=an_incarnation())
    step = plan_race(alone, NOW)
    assert step is not None
    assert told(step.record) == [(1, S.REQUESTED), (2, S.REQUESTED), (3, S.REQUESTED)]
    assert [place.spec.zone for place in step.record.places] == list(ZONES)
    assert plan_race(step.record, NOW) is None
    assert plan_race(replace(alone, spec=a_spec()), NOW) is None, "nobody asked for a race"
    assert plan_race(race(S.REQUESTED), NOW) is None, "it is too late for others: it was asked for"
    # What is still being deleted in a zone keeps nobody out of it.
    stays = replace(race(S.REQUESTED, S.DELETING), incarnation=an_incarnation())
    taken = an_incarnation(retry=Retry("delete", NOW, NOW, Answer.TAKEN))
    goes = replace(stays, rivals=(replace(stays.rivals[0], incarnation=taken),))
    step = plan_race(goes, NOW)
    assert step is not None
    assert [place.spec.zone for place in step.record.places] == [ZONES[0], ZONES[1], ZONES[1], ZONES[2]]
    step = plan_race(stays, NOW)
    assert step is not None, "what does not go where it lost is not made more"
    assert [place.spec.zone for place in step.record.places] == [ZONES[0], ZONES[1], ZONES[2]]


def test_what_was_never_asked_for_is_gone_at_once_and_of_the_others_the_last_is_known():
    record = race(S.BOOTING, S.REQUESTED, S.GONE)
    unsent = replace(record.rivals[0], incarnation=an_incarnation())
    late = replace(record.rivals[1], incarnation=an_incarnation(create_called_at=NOW - 5))
    step = plan_race(replace(record, rivals=(unsent, late)), NOW)
    assert step is not None
    assert step.record.last_asked_at == NOW - 5
    step = plan_race(step.record, NOW)
    assert step is not None
    assert [rival.state for rival in step.record.rivals] == [S.GONE]
    step = plan_race(step.record, NOW)
    assert step is not None
    assert (step.record.rivals, step.record.last_asked_at) == ((), NOW - 5)


def test_a_race_of_types_has_an_intent_for_each_type_in_each_of_its_zones():
    small, large = a_spec(race=True, zone=ZONES[0]), a_spec(race=True, zone=ZONES[0], accelerator_type="v6e-16")
    specs = (small, large, replace(large, zone=ZONES[1]))
    alone = replace(race(S.REQUESTED), spec=small, incarnation=an_incarnation(), race_specs=specs)
    alone = replace(alone, zone_not_before={ZONES[0]: NOW + 60})
    step = plan_race(alone, NOW)
    assert step is not None
    assert tuple(place.spec for place in step.record.places) == specs
    assert step.why == (
        f"also asked for in {ZONES[0]} as v6e-16, {ZONES[1]} as v6e-16; the first that comes is kept"
    )
    assert {rival.not_before for rival in step.record.rivals} == {0.0}, "no capacity is that of a type"
    assert plan_race(step.record, NOW) is None
    won = step.record.led_by(1)
    assert won.requested_specs == specs
    assert won.differs_from(specs) == ()
    assert won.differs_from(specs[1:]) == ("accelerator_type",)
    assert won.differs_from(tuple(replace(each, zone=ZONES[2]) for each in specs)) == ("zone",)
    assert won.differs_from(tuple(replace(each, queued=False) for each in specs)) == ("queued",)


def test_the_view_from_a_place_and_back_is_the_record():
    record = race(S.LOST, S.PROVISIONING, S.REFUSED)
    for number in range(2):
        seen = record.led_by(number)
        assert seen.spec.zone == ZONES[number + 1]
        assert seen.led_by(number) == record


def test_what_hosts_have_is_that_of_the_slice_in_every_place():
    record = race(S.PROVISIONING, S.PROVISIONING)
    mounts = (MountRef("lab", "/mnt/lab", "train"),)  # `up --mount` while it goes on
    seen = replace(record, spec=replace(record.spec, mounts=mounts)).led_by(0)
    assert (seen.spec.zone, seen.spec.mounts) == (ZONES[1], mounts)


def test_a_race_waits_for_a_person_only_when_every_place_does():
    assert is_out(race(S.REFUSED, S.REMOVED))
    assert is_out(race(S.REFUSED, S.DELETING))
    assert not is_out(race(S.REFUSED, S.LOST))
    assert not is_out(race(S.PROVISIONING, S.REFUSED))


def test_only_what_may_become_the_slice_is_wanted():
    assert [race(S.PROVISIONING, S.LOST, S.DELETING).wants(number) for number in (1, 2, 3)] == [
        True,
        True,
        False,
    ]
    for spec in (a_spec(race=True), a_spec()):  # an older tpuctl drops what it does not know
        assert not replace(race(S.READY), spec=spec, last_incarnation=3).wants(2), "what lost and shows late"


@pytest.mark.parametrize(
    ("life", "price", "text"),
    [
        ({"create_called_at": None}, 1.0, "was never asked for, and cost nothing"),
        ({"create_called_at": NOW - 240}, 1.0, "lost: it never came in 4 min, and cost nothing"),
        ({"create_called_at": NOW - 240, "cloud_ready_at": NOW - 36}, 100.0, "was there for 36 s, about $1.00"),
        ({"create_called_at": NOW - 240, "cloud_ready_at": NOW - 36}, None, "for 36 s, at an unknown price"),
    ],
)
def test_what_lost_says_what_it_cost(life, price, text):
    rival = Rival(a_spec(zone="a-b1-c"), S.GONE, an_incarnation(**life))
    said = describe_end(rival, price, NOW)
    assert said.startswith("big-1 in a-b1-c ")
    assert text in said
