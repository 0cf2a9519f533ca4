"""Slices that wait for capacity, and slices that go with their runs, or wait for them, whoever asked."""

from __future__ import annotations

import pytest

from tests.support.jobs import SPEC, bring_up, pass_until, run_to_end, submit
from tests.support.memory.process import Process, Steps, Terminated, scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.memory.store import MemoryServer, MemoryStore
from tpuctl.model.attempts import AttemptPhase
from tpuctl.model.records import RunRecord, RunState, SliceState
from tpuctl.runs.request import request_stop
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_down, request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_run, get_slice
from tpuctl.views.decisions import decisions

HOUR = 3600.0


def ends_in_order(process: Process) -> Steps:
    process.print("hello")
    try:
        yield 6 * HOUR
    except Terminated:
        process.print("ended in order")
    return 0


@pytest.fixture
def run(place: MemoryPlace, services: MemoryServices) -> RunRecord:
    """One that goes on, on the slice `big`."""
    place.hosts.programs["main.py"] = ends_in_order
    bring_up(services, "big")
    made = submit(services, "big", "hours")
    pass_until(services, lambda: get_run(services, made.id).record.state is RunState.RUNNING)
    return made


def state_of(services: MemoryServices) -> SliceState:
    return get_slice(services, "big").record.state


def left(services: MemoryServices) -> list[str]:
    """Names of all nodes and queued resources."""
    return [each.name for each in (*services.cloud.list_nodes().items, *services.cloud.list_queued().items)]


def test_stockouts_are_waited_out_with_a_new_name_each_time(place, services):
    place.world.faults.add({"preset": "stockout", "times": 2})
    record = bring_up(services, "big", queued=False)
    assert record.incarnation.cloud_name == "big-3"
    assert record.failures == 0
    kinds = [entry["action"] for entry in decisions(services, "big")]
    assert kinds.count("create-failed") == 2


def test_two_fleets_in_one_project_leave_each_others_slices_alone(place, services):
    theirs = bring_up(services, "big", queued=False)
    others = place.machine("desktop")
    others.store = MemoryStore(MemoryServer(others.clock))
    ours = bring_up(others, "big", queued=False)
    assert (theirs.incarnation.cloud_name, ours.incarnation.cloud_name) == ("big-1", "big-2")
    take_down(others, "big")
    assert left(services) == ["big-1"]
    assert bring_up(services, "big", queued=False) == theirs


def test_down_ends_the_run_keeps_its_logs_and_leaves_nothing(services, run):
    assert get_run(services, run.id).record.attempt.state is AttemptPhase.RUNNING
    take_down(services, "big")
    assert get_run(services, run.id).record.state is RunState.STOPPED
    for worker in (0, 1):
        assert services.logs.read(run.id, 1, worker, "stdout", 0, 99) == b"hello\nended in order\n"
    assert left(services) == []


def test_down_asks_for_nothing_in_place_of_what_was_lost_while_its_run_ends(place, services, run):
    place.world.preempt("big-1")
    place.world.faults.add({"preset": "rate-limit", "times": 1})
    pass_until(services, lambda: get_slice(services, "big").record.last_incarnation == 2)
    take_down(services, "big")
    record = get_slice(services, "big").record
    assert (record.state, record.last_incarnation) == (SliceState.GONE, 2)
    assert get_run(services, run.id).record.state is RunState.STOPPED
    assert left(services) == []


def test_a_slice_that_is_to_go_keeps_its_hosts_until_its_run_has_ended_whoever_asked(services, run):
    # As `down` writes it; then its process is killed.
    request_stop(services, run.id)
    request_down(services, "big", run_first=True)
    assert state_of(services) is SliceState.READY
    pass_until(services, lambda: state_of(services) is SliceState.GONE)
    assert get_run(services, run.id).record.state is RunState.STOPPED
    assert services.logs.read(run.id, 1, 0, "stdout", 0, 99) == b"hello\nended in order\n"
    assert left(services) == []


def test_a_slice_that_waited_for_a_run_goes_when_there_is_none(services):
    bring_up(services, "big")
    request_down(services, "big", run_first=True)
    pass_until(services, lambda: state_of(services) is SliceState.GONE)
    assert left(services) == []


def owned(services, name, run_id):
    record = request_slice(services, name, SPEC, pay=False, run_id=run_id, admit=lambda: None)
    return wait_for_slice(services, record.name)


def test_a_slice_made_for_a_run_that_was_never_written_down_goes_with_the_next_one(place, services):
    place.hosts.programs["main.py"] = scripted(10.0)
    owned(services, "big", "lost-in-a-crash")
    assert owned(services, "big", "run-0001").run_id == "run-0001"
    run = run_to_end(services, "big", "seconds", owns_slice=True)
    assert (run.id, run.state) == ("run-0001", RunState.SUCCEEDED)
    assert state_of(services) is SliceState.GONE
    assert left(services) == []


def test_a_slice_that_belongs_to_another_run_is_not_taken_over(services):
    owned(services, "big", "run-0001")
    submit(services, "big", "hours", owns_slice=True)
    assert owned(services, "big", "someone-else").run_id == "run-0001"
