"""Two machines whose clocks are ten minutes apart look after one fleet: none is early for the other's sake."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up, limit, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.model import timeouts
from tpuctl.model.records import Doubt, Lifetime, RunState, SliceRecord, SliceState
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.runs.follow import start_run
from tpuctl.slices.enrollment import enroll_machine
from tpuctl.state.repository import get_run, get_slice, save
from tpuctl.watch.reconciler import run_pass

MINUTE, HOUR = 60.0, 3600.0
SKEW_S = 600.0


@pytest.fixture
def behind(place: MemoryPlace) -> MemoryServices:
    return enrolled(place.machine("behind"))


@pytest.fixture
def ahead(place: MemoryPlace) -> MemoryServices:
    return enrolled(place.machine("ahead", skew_s=SKEW_S))


def enrolled(machine: MemoryServices) -> MemoryServices:
    enroll_machine(machine)
    return machine


def minutes_until(
    place: MemoryPlace, machines: list[MemoryServices], over: Callable[[], bool], limit: int = 60
) -> int:
    """How many minutes pass until `over`, with a pass of every machine in each."""
    for minute in range(limit):
        if over():
            return minute
        place.clock.advance(MINUTE)
        for machine in machines:
            run_pass(machine)
    raise AssertionError(f"not in {limit} minutes")


def record_of(services: MemoryServices, name: str) -> SliceRecord:
    return get_slice(services, name).record


def test_hosts_that_fall_silent_have_their_time_by_one_clock(place, behind, ahead):
    bring_up(behind, "other")
    bring_up(behind, "big")
    stored = get_slice(behind, "big")
    assert stored.record.incarnation is not None
    doubted = replace(stored.record.incarnation, doubt=Doubt(behind.store.now(), "as a run saw it"))
    save(behind, stored, replace(stored.record, state=SliceState.BOOTING, incarnation=doubted))
    place.world.fail_hosts("big-1")
    passed = minutes_until(place, [behind, ahead], lambda: record_of(behind, "big").last_incarnation == 2)
    assert passed * MINUTE >= timeouts.UNREACHABLE_MAX_S


def test_a_node_missing_under_its_queued_resource_has_its_time_by_one_clock(place, behind, ahead):
    bring_up(behind, "big")
    hidden = next(iter(place.world._kernel.nodes))
    place.world._kernel.hidden.add(hidden)
    passed = minutes_until(place, [behind, ahead], lambda: record_of(behind, "big").state is SliceState.LOST)
    assert passed * MINUTE >= timeouts.NODE_MISSING_MAX_S
    place.world._kernel.hidden.clear()


def test_a_run_that_fails_while_a_worker_is_silent_waits_for_the_cloud_by_one_clock(place, behind, ahead):
    place.hosts.programs["main.py"] = scripted(2 * HOUR)
    bring_up(behind, "other")
    bring_up(behind, "big")
    run = submit(behind, "big", "as registered", policy=RestartPolicy())
    start_run(behind, run.id)
    [first, second] = place.hosts.all()[-2:]
    first.crash()
    second.vanish()

    def decided() -> bool:
        attempt = get_run(behind, run.id).record.attempt
        return attempt is not None and attempt.cause is not None

    run_pass(behind)
    assert not decided()
    run_pass(ahead)
    run_pass(ahead)
    assert not decided(), "two machines that look at one moment have no verdict yet"
    minutes_until(place, [behind, ahead], decided, limit=4)
    assert get_run(behind, run.id).record.state is not RunState.FAILED


def test_a_lifetime_ends_by_one_clock_ten_minutes_after_its_warning(place, behind, ahead):
    bring_up(behind, "big")
    limit(behind, "big", ttl_s=HOUR)
    assert record_of(behind, "big").lifetime == Lifetime(expires_at=behind.store.now() + HOUR, ttl_s=HOUR)
    passed = minutes_until(place, [ahead], lambda: record_of(behind, "big").state is SliceState.GONE, 90)
    assert 60 <= passed < 66


def test_a_back_off_is_over_for_both_at_once(place, behind, ahead):
    bring_up(behind, "big", queued=False)
    place.world.faults.add({"preset": "stockout-now", "times": 0})
    place.world.preempt("big-1")
    minutes_until(place, [ahead], lambda: record_of(behind, "big").failures > 6)
    until = record_of(behind, "big").not_before
    assert until - place.clock.now() <= timeouts.BACKOFF_MAX_S
    place.world.faults.clear()
    minutes_until(place, [behind], lambda: record_of(behind, "big").state is SliceState.PROVISIONING)
    assert until <= place.clock.now() < until + 2 * MINUTE
