"""The cloud says "not now", or nothing for hours: it is written down, waited for, and asked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.jobs import SPEC, bring_up, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.soak import soak
from tpuctl.engine.events import StepDone, Warn
from tpuctl.errors import DeniedError, PendingError, TpuctlError, TransientError
from tpuctl.model import timeouts
from tpuctl.model.cloud import Api, Listing
from tpuctl.model.records import RunState, SliceState
from tpuctl.runs.follow import follow_run, start_run
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_slice
from tpuctl.slices.observe import list_inventory
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice, save
from tpuctl.views.decisions import decisions
from tpuctl.watch.reconciler import run_pass

pytestmark = pytest.mark.slow

HOUR = 3600.0
OUTAGE: dict[str, dict[str, Any]] = {
    "503": {"kind": "error", "method": "*", "code": 14, "message": "Internal error. Please try again."},
    "500": {"kind": "error", "method": "*", "code": 2, "message": "Unknown Error."},
    "cut connections": {"kind": "drop", "method": "*"},
    "429 on reads": {"kind": "error", "method": "*.get", "code": 8, "message": "Resource has been exhausted"},
}
BUSY = {"kind": "error", "code": 10, "message": "unable to queue the operation"}
NOT_DELETABLE = {"kind": "error", "code": 9, "message": "Resource is not in a deletable state"}


@pytest.fixture
def place(place: MemoryPlace) -> MemoryPlace:
    place.hosts.programs["main.py"] = scripted(300.0, lines=["working"])
    return place


class Until:
    """A clock that makes `then` happen when its time has come."""

    def __init__(self, clock: Any, seconds: float, then: Callable[[], object]) -> None:
        self._clock, self._at, self._then = clock, clock.now() + seconds, then
        self._done = False

    def now(self) -> float:
        return float(self._clock.now())

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)
        if not self._done and self.now() >= self._at:
            self._done = True
            self._then()


def trouble(place: MemoryPlace, services: MemoryServices, fault: dict[str, Any], hours: float = 3.0) -> None:
    """`fault` strikes everything for some hours."""
    place.world.faults.add({**fault, "times": 0})
    services.clock = Until(services.clock, hours * HOUR, place.world.faults.clear)


def calls(place: MemoryPlace, verb: str, status: str = "OK") -> list[str]:
    return [
        entry.resource.rsplit("/", 1)[-1]
        for entry in place.world.journal.entries()
        if entry.method.endswith(f".{verb}") and entry.status == status
    ]


def actions(services: MemoryServices, name: str = "big") -> list[str]:
    return [str(entry["action"]) for entry in decisions(services, name)]


both_ways = pytest.mark.parametrize("queued", [True, False], ids=["queued", "direct"])


@both_ways
@pytest.mark.parametrize(
    "fault",
    [soak(fault, id=name) if name == "500" else pytest.param(fault, id=name) for name, fault in OUTAGE.items()],
)
def test_up_run_and_down_outlive_an_outage_of_hours(place, services, queued, fault):
    request_slice(services, "big", replace(SPEC, queued=queued), pay=False, admit=lambda: None)
    trouble(place, services, fault)
    assert wait_for_slice(services, "big").state is SliceState.READY
    run = submit(services, "big", "some minutes")
    start_run(services, run.id)
    trouble(place, services, fault)
    place.world.preempt("big-1")
    assert follow_run(services, run.id).state is RunState.SUCCEEDED
    trouble(place, services, fault)
    take_down(services, "big")
    assert place.world.census() == []
    assert [name for name in calls(place, "create") if name != "big-1"] in ([], ["big-2"])


@both_ways
@pytest.mark.parametrize("refusal", [BUSY, NOT_DELETABLE], ids=["409", "not deletable"])
def test_a_delete_that_is_refused_for_now_is_repeated_until_it_is_taken(place, services, queued, refusal):
    bring_up(services, "big", queued=queued)
    place.world.faults.add({**refusal, "method": "*.delete", "times": 3})
    take_down(services, "big")
    assert get_slice(services, "big").record.state is SliceState.GONE
    assert actions(services).count("not-now") == 1
    assert place.world.census() == []


@both_ways
def test_a_recovery_outlives_a_delete_that_is_refused_for_now(place, services, queued):
    bring_up(services, "big", queued=queued)
    place.world.faults.add({**NOT_DELETABLE, "method": "*.delete", "times": 2})
    place.world.preempt("big-1")
    place.clock.advance(120.0)
    assert wait_for_slice(services, "big").incarnation.cloud_name == "big-2"


def test_a_person_is_asked_after_an_hour_of_refusals_and_passes_go_on(place, services):
    bring_up(services, "big")
    place.world.faults.add({**NOT_DELETABLE, "method": "*.delete", "times": 0})
    began = services.clock.now()
    with pytest.raises(TpuctlError, match=r"big-1: refused for 60 min: .* not in a deletable state") as asked:
        take_down(services, "big")
    assert services.clock.now() - began >= timeouts.RETRY_ASK_S
    zone = SPEC.zone
    assert asked.value.hint == f"gcloud compute tpus queued-resources describe big-1 --zone {zone}"
    assert len(calls(place, "delete", "FAILED_PRECONDITION")) < 75
    place.clock.advance(60.0)
    [line] = run_pass(place.machine())
    assert line.result == "blocked"
    place.world.faults.clear()
    for _ in range(4):
        place.clock.advance(60.0)
        run_pass(place.machine())
    assert place.world.census() == []


@both_ways
@pytest.mark.parametrize("refusal", [BUSY, NOT_DELETABLE], ids=["409", "precondition"])
def test_a_create_that_is_refused_for_now_is_repeated_under_its_name(place, services, queued, refusal):
    place.world.faults.add({**refusal, "method": "*.create", "times": 3})
    assert bring_up(services, "big", queued=queued).incarnation.cloud_name == "big-1"
    assert actions(services).count("not-now") == 1


def test_a_create_that_one_zone_refuses_for_now_is_tried_in_another(place, services):
    zones = ("us-central2-b", "us-central1-a")
    place.world.faults.add({**NOT_DELETABLE, "method": "*.create", "zone": zones[0], "times": 0})
    spec = replace(SPEC, accelerator_type="v5p-16", zone=zones[0], runtime_version="v2-alpha-tpuv5")
    request_slice(services, "big", spec, pay=False, zones=zones, admit=lambda: None)
    with pytest.raises(PendingError):
        wait_for_slice(services, "big", deadline=services.clock.now() + 60.0)
    assert get_slice(services, "big").record.spec.zone == zones[1]


@both_ways
def test_keys_for_a_node_that_an_operation_holds_are_sent_a_minute_later(place, services, queued):
    bring_up(services, "big", queued=queued)
    office = place.machine("office")
    place.world.faults.add({**BUSY, "method": "nodes.patch", "times": 1})
    wait_for_slice(office, "big")
    assert "not-now" in actions(office)
    assert calls(place, "patch") == []
    place.clock.advance(timeouts.KEYS_BUSY_S)
    run_pass(office)
    assert calls(place, "patch") == ["big-1"]


def test_a_deletion_that_hangs_does_not_block_the_next_incarnation(place, services):
    bring_up(services, "big")
    place.world.faults.add({"kind": "hang", "method": "queuedResources.delete"})
    place.world.preempt("big-1")
    place.clock.advance(120.0)
    began = services.clock.now()
    assert wait_for_slice(services, "big").incarnation.cloud_name == "big-2"
    assert timeouts.DELETING_MAX_S <= services.clock.now() - began < timeouts.DELETING_MAX_S + 600.0
    told = [event.text for event in services.events if isinstance(event, Warn)]
    assert "big-1 is DELETING for 15 min: it is not waited for any more" in told[-1]


def test_a_deletion_that_hangs_is_told_to_who_took_the_slice_down(place, services):
    bring_up(services, "big")
    place.world.faults.add({"kind": "hang", "method": "queuedResources.delete"})
    with pytest.raises(TpuctlError, match="big-1 is DELETING for 60 min"):
        take_down(services, "big")


def test_a_request_that_was_thought_to_be_gone_and_still_waits_is_kept(place, services):
    place.world.set_capacity(SPEC.zone, 0)
    request_slice(services, "big", SPEC, pay=False, admit=lambda: None)
    with pytest.raises(PendingError):
        wait_for_slice(services, "big", deadline=services.clock.now() + 30.0)
    assert get_slice(services, "big").record.state is SliceState.PROVISIONING
    stored = get_slice(services, "big")
    life = replace(stored.record.incarnation, unseen_since=services.clock.now())
    hidden = Hiding(services.cloud)
    services.cloud = hidden
    save(services, stored, replace(stored.record, incarnation=life))
    with pytest.raises(PendingError):
        wait_for_slice(services, "big", deadline=services.clock.now() + 5.0)
    assert get_slice(services, "big").record.state is SliceState.LOST
    hidden.hides = False
    place.world.set_capacity(SPEC.zone, None)
    assert bring_up(services, "big").incarnation.cloud_name == "big-1"
    assert calls(place, "delete") == []


class Hiding:
    """A cloud whose reads do not show requests."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.hides = inner, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def find_queued(self, zone: str, name: str) -> Any:
        return None if self.hides else self._inner.find_queued(zone, name)

    def list_queued(self, zone: str = "-") -> Any:
        found = self._inner.list_queued(zone)
        return replace(found, items=()) if self.hides else found


def test_an_operation_that_never_ended_does_not_hold_up_what_was_ready(place, services):
    place.world.faults.add({"preset": "slow-operation", "seconds": 0.0})
    bring_up(services, "big", queued=False)
    place.world.preempt("big-1")
    began = services.clock.now()
    assert wait_for_slice(services, "big").incarnation.cloud_name == "big-2"
    assert services.clock.now() - began < 600.0
    asked = [each for each in services.events if isinstance(each, StepDone) and each.action == "delete big-1"]
    assert len(asked) == 1


def test_ready_again_counts_from_the_doubt_and_not_from_the_first_request(place, services):
    bring_up(services, "big")
    place.clock.advance(HOUR)
    for key in {each.key for each in place.world.census() if each.kind == "node"}:
        place.hosts.stop(key)
    with pytest.raises(PendingError) as late:
        wait_for_slice(services, "big", deadline=services.clock.now() + 20.0)
    assert late.value.hint == "what was asked for goes on with the same command, or with a pass of the watchdog"
    for key in {each.key for each in place.world.census() if each.kind == "node"}:
        place.hosts.start(key)
    wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    took = [each.seconds for each in services.events if isinstance(each, StepDone) and each.action == "ready"]
    assert 10.0 < took[-1] < 300.0


class Dark:
    """A cloud whose list of all zones leaves some out, and which answers `errors` where these are listed."""

    def __init__(self, inner: Any, errors: dict[str, TpuctlError]) -> None:
        self._inner, self._errors = inner, errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list_nodes(self, zone: str = "-") -> Any:
        if zone in self._errors:
            raise self._errors[zone]
        dark = frozenset(self._errors) | {SPEC.zone}
        return self._inner.list_nodes(zone) if zone != "-" else Listing((), dark)


def test_a_zone_that_cannot_be_listed_alone_keeps_no_other_from_being_read(place, services):
    bring_up(services, "big", queued=False)
    services.cloud = Dark(services.cloud, {"europe-west4-a": DeniedError("not in this zone")})
    seen = list_inventory(services, {SPEC.zone, "europe-west4-a"})
    assert ([(node.zone, node.name) for node in seen.nodes], seen.unread) == ([(SPEC.zone, "big-1")], "")
    assert seen.apis[Api.TPU].unreachable == {"europe-west4-a"}


def test_zones_are_not_listed_one_by_one_for_ever(place, services):
    class Slow(Dark):
        def list_nodes(self, zone: str = "-") -> Any:
            asked.append(zone)
            place.clock.advance(60.0)
            raise TransientError("timed out")

    asked: list[str] = []
    services.cloud = Slow(services.cloud, {})
    zones = {f"zone-{number}" for number in range(30)}
    assert list_inventory(services, zones).unread == "nothing in the cloud could be read: timed out"
    assert asked == ["-", "zone-0", "zone-1"]


def test_a_deletion_that_was_refused_for_good_is_not_waited_for(place, services):
    bring_up(services, "big", queued=False)
    place.world.faults.add({"kind": "error", "method": "nodes.delete", "code": 7, "message": "no", "times": 1})
    with pytest.raises(DeniedError):
        take_down(services, "big")
    assert get_slice(services, "big").record.incarnation.retry is None
    take_down(services, "big", deadline=services.clock.now() + 300.0)
    assert place.world.census() == []
