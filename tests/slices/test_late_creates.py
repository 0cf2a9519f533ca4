"""A create whose effect is shown late, after its slice was taken down: found and deleted all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.jobs import SPEC, bring_up
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.errors import PendingError
from tpuctl.inventory.reap import survey
from tpuctl.inventory.resources import Fate
from tpuctl.model import timeouts
from tpuctl.model.records import SliceState
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice
from tpuctl.watch.reconciler import run_pass


def all_that_exists(place: MemoryPlace) -> list[str]:
    return sorted({each.path.id for each in place.world.census()})


def creates(place: MemoryPlace) -> list[str]:
    return [
        entry.resource.rsplit("/", 1)[-1]
        for entry in place.world.journal.entries()
        if entry.method.endswith(".create") and entry.status in ("OK", "DROPPED")
    ]


def minutes(place: MemoryPlace, count: int) -> None:
    for _ in range(count):
        place.clock.advance(60.0)
        run_pass(place.machine())


def ask(services: MemoryServices, *, queued: bool) -> None:
    """`up`, whose create takes effect and whose answer is lost; a person ends it a second later."""
    request_slice(services, "big", replace(SPEC, queued=queued), pay=False, admit=lambda: None)
    with pytest.raises(PendingError):
        wait_for_slice(services, "big", deadline=services.clock.now() + 1)


both_ways = pytest.mark.parametrize("queued", [True, False], ids=["queued", "direct"])


@both_ways
@pytest.mark.parametrize("late_s", [5.0, 60.0, 110.0])
def test_down_waits_for_what_a_lost_create_may_have_made(place, services, queued, late_s):
    place.world.faults.add({"kind": "late", "method": "*.create", "seconds": late_s})
    place.world.faults.add({"kind": "drop", "method": "*.create"})
    ask(services, queued=queued)
    take_down(services, "big")
    assert get_slice(services, "big").record.state is SliceState.GONE
    assert all_that_exists(place) == []


@both_ways
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "lost"])
def test_the_only_slice_of_a_fleet_is_found_hours_after_it_was_gone(place, services, queued, answered):
    place.world.faults.add({"kind": "late", "method": "*.create", "seconds": 4 * 3600.0})
    if answered:
        request_slice(services, "big", replace(SPEC, queued=queued), pay=False, admit=lambda: None)
        with pytest.raises(Exception, match="out of time"):
            wait_for_slice(services, "big", deadline=services.clock.now() + 1)
    else:
        place.world.faults.add({"kind": "drop", "method": "*.create"})
        ask(services, queued=queued)
    take_down(services, "big")
    assert get_slice(services, "big").record.state is SliceState.GONE
    assert all_that_exists(place) == ["big-1"]
    minutes(place, 30)
    place.clock.advance(4 * 3600.0)
    assert [each.found.name for each in survey(services).of(Fate.DELETE)] == ["big-1"]
    minutes(place, 5)
    assert all_that_exists(place) == []


@both_ways
def test_up_again_does_not_make_a_second_one_beside_it(place, services, queued):
    place.world.faults.add({"kind": "late", "method": "*.create", "seconds": 60.0})
    place.world.faults.add({"kind": "drop", "method": "*.create"})
    ask(services, queued=queued)
    bring_up(services, "big", queued=queued)
    assert creates(place) == ["big-1"]
    assert all_that_exists(place) == ["big-1"]


@both_ways
@pytest.mark.parametrize("late_s", [0.0, 5.0, 60.0])
def test_an_up_whose_create_was_not_answered_goes_on_waiting(place, services, queued, late_s):
    place.world.faults.add({"kind": "late", "method": "*.create", "seconds": late_s})
    place.world.faults.add({"kind": "drop", "method": "*.create"})
    assert bring_up(services, "big", queued=queued).state is SliceState.READY
    assert creates(place) == ["big-1"]


@both_ways
def test_down_and_up_again_takes_what_shows_late(place, services, queued):
    place.world.faults.add({"kind": "late", "method": "*.create", "seconds": 60.0})
    place.world.faults.add({"kind": "drop", "method": "*.create"})
    ask(services, queued=queued)
    take_down(services, "big", wait=False)
    bring_up(services, "big", queued=queued)
    minutes(place, 10)
    assert get_slice(services, "big").record.state is SliceState.READY
    assert len(all_that_exists(place)) == 1


def test_a_create_that_was_refused_is_not_waited_for(place, services):
    place.world.faults.add({"preset": "stockout-now"})
    request_slice(services, "big", _direct(), pay=False, admit=lambda: None)
    began = services.clock.now()
    wait_for_slice(services, "big")
    assert creates(place) == ["big-2"]
    took = services.clock.now() - began
    assert took < timeouts.UNSEEN_S + 200.0
    place.world.faults.add({"preset": "stockout-now"})
    request_slice(services, "small", _direct(), pay=False, admit=lambda: None)
    with pytest.raises(Exception, match="out of time"):
        wait_for_slice(services, "small", deadline=services.clock.now() + 1)
    began = services.clock.now()
    take_down(services, "small")
    assert services.clock.now() - began < 5.0


def _direct() -> Any:
    return replace(SPEC, queued=False)


def test_a_fleet_that_is_long_gone_costs_no_call(place, services):
    bring_up(services, "big")
    take_down(services, "big")
    calls: list[str] = []
    services.cloud = _Counting(services.cloud, calls.append)
    place.clock.advance(timeouts.LATE_EFFECT_S - 3600.0)
    run_pass(services)
    assert calls == ["list_nodes", "list_queued"]
    place.clock.advance(3600.0)
    run_pass(services)
    assert len(calls) == 2


class _Counting:
    def __init__(self, inner: Any, note: Callable[[str], None]) -> None:
        self._inner, self._note = inner, note

    def __getattr__(self, name: str) -> Any:
        self._note(name)
        return getattr(self._inner, name)
