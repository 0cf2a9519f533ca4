"""A race for capacity: several places are asked at once, one slice comes of it, and what loses goes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from tests.support.jobs import SPEC
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, Up, Watched, nodes, passes, state_of
from tests.support.surviving import Accident, Place, Repair, Story, cases, check_fleet, survive, survive_all
from tpuctl.engine.events import Waiting
from tpuctl.errors import ConflictError, DeniedError, TpuctlError
from tpuctl.inventory.ownership import owner_labels
from tpuctl.model.cloud import USER_LABEL
from tpuctl.model.records import WITH_HOSTS, Incarnation, LifetimeLimits, SliceRecord, SliceState
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.model.timeouts import LATE_EFFECT_S
from tpuctl.runs.take_down import take_down
from tpuctl.slices.bring_up import bring_up, request_wanted
from tpuctl.slices.desired import request_slice
from tpuctl.slices.plan import node_spec
from tpuctl.slices.reconcile import advance_slice, wait_for_slice
from tpuctl.slices.resolve import WantedSlice
from tpuctl.state.repository import get_slice, save
from tpuctl.views.slices import fleet_rows
from tpuctl.watch.heartbeat import PassResult
from tpuctl.watch.reconciler import run_pass

EAST, WEST, OHIO = ZONES = ("us-east1-d", "europe-west4-a", "us-east5-b")
RACE: SliceSpec = replace(
    SPEC, accelerator_type="v6e-8", zone=EAST, runtime_version="v2-alpha-tpuv6e", hosts=1, chips=8, race=True
)


@pytest.fixture
def place() -> Iterator[MemoryPlace]:
    found = MemoryPlace()
    yield found
    found.close()


def request(services: MemoryServices, **changes: object) -> None:
    spec = replace(RACE, **changes)
    request_slice(services, "big", spec, pay=True, zones=ZONES, admit=lambda: None)


def up(services: MemoryServices, **changes: object) -> SliceRecord:
    request(services, **changes)
    return wait_for_slice(services, "big", deadline=services.clock.now() + 3 * HOUR)


def life_of(record: SliceRecord) -> Incarnation:
    assert record.incarnation is not None
    return record.incarnation


def said(services: MemoryServices) -> list[str]:
    return [event.text for event in services.events if hasattr(event, "text")]


def requests(place: MemoryPlace) -> list[str]:
    return sorted(f"{each.path.zone} {each.path.id}" for each in place.world.census())


def test_three_zones_cost_one_slice_and_what_lost_is_told(place: MemoryPlace) -> None:
    services = place.machine()
    place.world.set_capacity(EAST, 0)
    record = up(services)
    assert record.state is SliceState.READY
    assert record.spec.zone in (WEST, OHIO)
    assert record.rivals == ()
    assert len(nodes(place)) == 1
    assert len({each.partition(" ")[0] for each in requests(place)}) == 1
    text = "\n".join(said(services))
    assert "also asked for in europe-west4-a, us-east5-b" in text
    assert f"big-1 in {EAST} lost: it never came in" in text
    check_fleet(place)


def test_what_is_ready_at_the_same_moment_is_deleted_in_the_same_pass(place: MemoryPlace) -> None:
    services = make_all_ready(place)
    passes(place.machine("server"), 1)
    record = get_slice(services, "big").record
    assert record.state in WITH_HOSTS
    assert len(record.rivals) == 2
    lost = [(each.spec.zone, life_of(each).queued_name) for each in record.places[1:]]
    shown = [services.cloud.find_queued(zone, name) for zone, name in lost]
    assert {str(each.state) for each in shown if each is not None} <= {"DELETING", "SUSPENDING"}
    passes(place.machine("server"), 10)
    assert get_slice(services, "big").record.rivals == ()
    assert len(nodes(place)) == 1
    ends = [
        entry.data["reason"]
        for entry in services.store.list("journal/slices/big/")
        if entry.data["action"] == "race-end"
    ]
    assert len(ends) == 2
    assert all("was there for" in each and "$" in each for each in ends)


def test_all_zones_without_capacity_are_waited_for_and_a_slice_comes_where_there_is_some_first(
    place: MemoryPlace,
) -> None:
    services = place.machine()
    for zone in ZONES:
        place.world.set_capacity(zone, 0)
    request(services)
    passes(services, 30)
    record = get_slice(services, "big").record
    assert {each.state for each in record.places} <= {SliceState.REQUESTED, SliceState.PROVISIONING}
    assert len({each.spec.zone for each in record.places}) == 3
    assert nodes(place) == []
    place.world.set_capacity(OHIO, 64)
    passes(services, 40)
    record = get_slice(services, "big").record
    assert (record.state, record.spec.zone, record.rivals) == (SliceState.READY, OHIO, ())
    assert len(requests(place)) <= 2
    check_fleet(place)


def test_a_race_that_is_taken_down_leaves_nothing_anywhere(place: MemoryPlace) -> None:
    services = place.machine()
    for zone in ZONES:
        place.world.set_capacity(zone, 0)
    request(services)
    passes(services, 3)
    assert len(requests(place)) == 3
    take_down(services, "big")
    assert state_of(place, "big") is SliceState.GONE
    assert requests(place) == []


def test_the_time_of_a_race_ends_in_all_zones(place: MemoryPlace) -> None:
    services = place.machine()
    for zone in ZONES:
        place.world.set_capacity(zone, 0)
    request_slice(
        services, "big", RACE, pay=True, zones=ZONES, limits=LifetimeLimits(ttl_s=1800.0), admit=lambda: None
    )
    passes(services, 45)
    assert state_of(place, "big") is SliceState.GONE
    assert requests(place) == []


def test_zones_that_refuse_are_out_and_only_when_all_are_the_slice_is_refused(place: MemoryPlace) -> None:
    services = place.machine()
    refusal = {"kind": "error", "method": "*.create", "code": 3, "message": "no such thing", "times": 0}
    place.world.faults.add({**refusal, "zone": EAST})
    place.world.set_capacity(WEST, 0)
    record = up(services)
    assert (record.state, record.spec.zone) == (SliceState.READY, OHIO)
    assert len(nodes(place)) == 1
    take_down(services, "big")
    for zone in (WEST, OHIO):
        place.world.faults.add({**refusal, "zone": zone})
    with pytest.raises(TpuctlError, match="no such thing"):
        up(services)
    assert state_of(place, "big") is SliceState.REFUSED
    assert requests(place) == []
    take_down(services, "big")
    assert state_of(place, "big") is SliceState.GONE


def test_a_slice_that_won_and_was_preempted_races_again(place: MemoryPlace) -> None:
    services = place.machine()
    record = up(services)
    place.world.preempt(life_of(record).cloud_name)
    passes(services, 25)
    again = get_slice(services, "big").record
    assert (again.state, again.rivals) == (SliceState.READY, ())
    assert life_of(again).number > 3
    assert again.last_incarnation == 6
    assert len(nodes(place)) == 1
    check_fleet(place)


def test_a_zone_that_cannot_be_read_keeps_nobody_waiting_and_is_cleaned_when_it_can(place: MemoryPlace) -> None:
    services = place.machine()
    for zone in (EAST, WEST):
        place.world.set_capacity(zone, 0)
    place.world.set_capacity(OHIO, 0)
    request(services)
    passes(services, 3)
    fault = place.world.faults.add({"kind": "unreachable", "zone": WEST, "times": 0})
    place.world.set_capacity(OHIO, 64)
    record = up(services)
    assert (record.state, record.spec.zone) == (SliceState.READY, OHIO)
    assert [rival.spec.zone for rival in record.rivals] == [WEST]
    assert any("may still cost" in text for text in said(services))
    place.world.faults.remove(fault.id)
    passes(place.machine("server"), 5)
    assert get_slice(services, "big").record.rivals == ()
    check_fleet(place)


def refuse(place: MemoryPlace, method: str, code: int, zone: str) -> str:
    fault = {"kind": "error", "method": f"*.{method}", "code": code, "message": "not you", "times": 0}
    return place.world.faults.add({**fault, "zone": zone}).id


def make_all_ready(place: MemoryPlace) -> MemoryServices:
    """All three come at the same moment, before anybody looks."""
    services = place.machine()
    request(services)
    for _ in range(40):
        advance_slice(services, "big")
        if len(nodes(place)) == 3:
            break
        place.clock.advance(1.0)
    place.clock.advance(1200.0)
    assert len(nodes(place)) == 3
    return services


@pytest.mark.parametrize("code", [7, 14])
def test_what_cannot_be_deleted_keeps_no_other_place_from_its_steps(place: MemoryPlace, code: int) -> None:
    services = make_all_ready(place)
    fault = refuse(place, "delete", code, WEST)
    record = wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    assert (record.state, record.spec.zone) == (SliceState.READY, EAST)
    assert [rival.spec.zone for rival in record.rivals] == [WEST]
    assert any("may still cost: big-2" in text and "not you" in text for text in said(services))
    server = place.machine("server")
    assert {line.result for line in run_pass(server)} == {PassResult.DONE}
    place.world.preempt(life_of(record).cloud_name)
    passes(server, 30)
    record = get_slice(services, "big").record
    assert record.state is SliceState.READY, "the winner is watched"
    assert [life_of(each).cloud_name for each in record.places[1:]] == ["big-2"], "and no more is lost there"
    with pytest.raises(TpuctlError, match="not you"):
        take_down(services, "big", deadline=services.clock.now() + HOUR)
    assert nodes(place) == ["big-2"]
    place.world.faults.remove(fault)
    passes(server, 10)
    assert state_of(place, "big") is SliceState.GONE
    assert requests(place) == []


@pytest.mark.parametrize("zone", [EAST, WEST])
def test_a_zone_that_this_user_may_not_read_is_out_of_a_race(place: MemoryPlace, zone: str) -> None:
    services = place.machine()
    refuse(place, "get", 7, zone)
    record = up(services)
    assert record.state is SliceState.READY
    assert record.spec.zone != zone
    assert record.rivals == (), "nothing was asked for there"
    assert len(nodes(place)) == 1
    assert any("not you" in event.why for event in services.events if isinstance(event, Waiting))


def test_up_again_while_the_zone_of_the_lead_cannot_be_read_goes_on_elsewhere(place: MemoryPlace) -> None:
    services = place.machine()
    for zone in ZONES:
        place.world.set_capacity(zone, 0)
    request(services)
    passes(services, 3)
    lead = get_slice(services, "big").record
    assert lead.state is SliceState.PROVISIONING
    refuse(place, "get", 7, lead.spec.zone)
    won = next(each.spec.zone for each in lead.places[1:])
    place.world.set_capacity(won, 64)
    wanted = WantedSlice("big", tuple(replace(RACE, zone=zone) for zone in ZONES), pay=True)
    bring_up(services, wanted, since=services.store.now(), wait=True, deadline=services.clock.now() + HOUR)
    record = get_slice(services, "big").record
    assert (record.state, record.spec.zone) == (SliceState.READY, won)
    known = f"as last read: big-1 in {lead.spec.zone} provisioning, "
    assert any(text.startswith(known) and "not you" in text for text in said(services))
    assert any("may still cost: big-1" in text for text in said(services))
    refuse(place, "get", 7, won)
    with pytest.raises(DeniedError, match=rf"as last read: big-\d in {won} ready, .*{won}: .*not you"):
        bring_up(services, wanted, since=services.store.now(), wait=True, deadline=services.clock.now() + HOUR)


def test_places_that_an_older_tpuctl_drops_from_the_record_are_collected(place: MemoryPlace) -> None:
    services = make_all_ready(place)
    stored = services.store.get("slices/big")
    assert stored is not None
    older = {name: value for name, value in stored.data.items() if name != "rivals"}
    older["spec"] = {name: value for name, value in stored.data["spec"].items() if name != "race"}
    services.store.put("slices/big", older, if_generation=stored.generation)
    passes(place.machine("server"), 20)
    assert state_of(place, "big") is SliceState.READY
    assert nodes(place) == ["big-1"]


def test_what_was_asked_for_last_in_a_race_may_come_late_when_all_is_gone(place: MemoryPlace) -> None:
    services = place.machine()
    request(services)
    passes(services, 2)
    stored = get_slice(services, "big")
    long_ago = services.store.now() - LATE_EFFECT_S
    life = replace(life_of(stored.record), create_called_at=long_ago)
    save(services, stored, replace(stored.record, incarnation=life))
    take_down(services, "big")
    place.clock.advance(600.0)
    rival = stored.record.led_by(0)
    labels = owner_labels(rival, life_of(rival), services.store.identity()) | {USER_LABEL: rival.owner}
    services.cloud.create_queued(life_of(rival).queued_name, node_spec(rival, labels, ""))
    passes(place.machine("server"), 5)
    assert requests(place) == []


def test_ls_has_a_line_for_each_place(place: MemoryPlace) -> None:
    services = place.machine()
    for zone in ZONES:
        place.world.set_capacity(zone, 0)
    request(services)
    passes(services, 3)
    rows, _ = fleet_rows(services)
    assert {(row["name"], row["zone"], row["managed"]) for row in rows} == {
        ("big", zone, True) for zone in ZONES
    }
    assert {row["cloud"] for row in rows} <= {"ACCEPTED", "WAITING_FOR_RESOURCES", "CREATING", "PROVISIONING"}


SIX = replace(RACE, accelerator_type="v6e-16", hosts=4, chips=16)
LITE = replace(SIX, accelerator_type="v5litepod-16", zone=WEST, runtime_version="v2-alpha-tpuv5-lite")
TYPES = WantedSlice("big", (SIX, LITE), pay=True)


def up_as_either(services: MemoryServices) -> SliceRecord:
    request_wanted(services, TYPES, quotas=False)
    return wait_for_slice(services, "big", deadline=services.clock.now() + 3 * HOUR)


def test_a_race_of_types_keeps_one_of_them_and_is_run_again_for_both_after_a_loss(place: MemoryPlace) -> None:
    services = place.machine()
    place.world.set_capacity(EAST, 0)
    record = up_as_either(services)
    assert (record.state, record.spec, record.rivals) == (SliceState.READY, LITE, ())
    [node] = services.cloud.list_nodes().items
    assert (node.accelerator_type, node.zone, node.runtime_version) == (
        "v5litepod-16",
        WEST,
        LITE.runtime_version,
    )
    assert f"also asked for in {WEST} as v5litepod-16" in "\n".join(said(services))
    before = record
    assert up_as_either(services) == before, "the same again changes nothing"
    one = WantedSlice("big", (SIX, replace(SIX, zone=OHIO)), pay=True)
    with pytest.raises(ConflictError, match="not as asked: zone, accelerator would be another"):
        request_wanted(services, one, quotas=False)
    place.world.set_capacity(EAST, 64)
    place.world.set_capacity(WEST, 0)
    place.world.preempt(life_of(record).cloud_name)
    passes(services, 40)
    record = get_slice(services, "big").record
    assert (record.state, record.spec, record.rivals) == (SliceState.READY, SIX, ())
    assert len(nodes(place)) == 1
    check_fleet(place)
    take_down(services, "big")
    assert requests(place) == []


class Race(Up):
    """Three places are asked; one has nothing."""

    def __init__(self, *empty: str, **spec: object) -> None:
        super().__init__(ZONES, **{name: getattr(RACE, name) for name in RACE.__struct_fields__} | spec)
        self.empty = empty

    def prepare(self, place: MemoryPlace) -> None:
        for zone in self.empty:
            place.world.set_capacity(zone, 0)

    def check(self, place: MemoryPlace) -> None:
        passes(place.machine("server"), 5)  # a loser whose deletion had no answer is left to them, and said
        super().check(place)
        assert get_slice(place.machine("server"), "big").record.rivals == ()


class RaceOfTypes(Race):
    """Two types in a zone each."""

    def command(self, services: MemoryServices) -> None:
        up_as_either(services)


class RaceRefused(Race):
    """The first place refuses for good."""

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        fault = {"kind": "error", "method": "*.create", "code": 3, "message": "no", "times": 0}
        place.world.faults.add({**fault, "zone": EAST})

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        assert get_slice(place.machine("server"), "big").record.spec.zone != EAST


class RaceDown(Race):
    """A race that nobody won is taken down."""

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        services = place.machine()
        request(services)
        passes(services, 1)

    def command(self, services: MemoryServices) -> None:
        take_down(services, "big", deadline=services.clock.now() + HOUR)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.GONE
        assert requests(place) == []


class WatchedRace(Watched):
    """A preempted slice is raced for again."""

    minutes = 30

    def begin(self, place: MemoryPlace) -> None:
        services = place.machine()
        record = up(services)
        place.world.preempt(life_of(record).cloud_name)

    def check(self, place: MemoryPlace) -> None:
        record = get_slice(place.machine("server"), "big").record
        assert (record.state, record.rivals) == (SliceState.READY, ())
        assert life_of(record).number > 3
        assert nodes(place) == [life_of(record).cloud_name]


STORIES: dict[str, Callable[[], Story]] = {
    "race": lambda: Race(EAST),
    "race of nodes": lambda: Race(queued=False),
    "race with a refusal": RaceRefused,
    "race of types": lambda: RaceOfTypes(EAST),
    "race taken down": lambda: RaceDown(EAST, WEST),
    "pass: race after a preemption": WatchedRace,
}
RARE = set(STORIES) - {"race of nodes", "race taken down"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "repair", "sample"), cases(STORIES, rare=RARE))
def test_every_accident_of_a_race_is_survived(name: str, repair: Repair, sample: bool) -> None:
    assert survive_all(STORIES[name], repair, sample=sample) == []


def test_a_refusal_in_one_place_is_no_end_of_a_race_that_went_on_while_a_process_slept() -> None:
    """A pass of another machine had decided it when the process, in the middle of writing it down, woke up."""
    for at in range(32, 37):
        survive(RaceRefused(), Place(Accident.ASLEEP, at), Repair.PASSES)
