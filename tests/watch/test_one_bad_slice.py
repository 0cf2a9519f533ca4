"""Defects that other tools have in what they conclude for a fleet; each test shows that a pass does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.jobs import SPEC, bring_up, pass_until, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace
from tests.support.soak import soak
from tpuctl.errors import TransientError
from tpuctl.model.records import Desired, RunState, SliceState
from tpuctl.runs.request import request_stop
from tpuctl.slices.desired import request_slice
from tpuctl.state.repository import get_run, get_slice
from tpuctl.watch.heartbeat import TROUBLED
from tpuctl.watch.reconciler import run_pass


class FailingFor:
    """A cloud whose looks and creates of one incarnation raise `error`."""

    def __init__(self, inner: Any, name: str, error: Exception) -> None:
        self._inner, self._name, self._error = inner, name, error

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._inner, method)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            if method.startswith(("find_", "create_")) and self._name in repr((args, options)):
                raise self._error
            return found(*args, **options)

        return call


@pytest.mark.parametrize(
    "error", [TransientError("503 from the API"), KeyError("a field of the record")], ids=["api", "defect"]
)
def test_trouble_with_one_slice_is_told_and_the_others_have_their_turn(place, services, error):
    for name in ("bad", "good"):
        bring_up(services, name)
        place.world.preempt(f"{name}-1")
    truth = services.cloud
    services.cloud = FailingFor(truth, "bad-", error)
    told = []
    for _ in range(60):
        lines = run_pass(services)
        told += [line for line in lines if line.subject == "bad" and str(error) in line.why]
        good = get_slice(services, "good").record
        if good.incarnation.number == 2 and good.state is SliceState.READY:
            break
        services.clock.sleep(60.0)
    assert good.incarnation.number == 2
    assert good.state is SliceState.READY
    assert told, lines
    assert get_slice(services, "bad").record.incarnation.number == 1


def changes(place: MemoryPlace) -> list[str]:
    """Every call so far that changed something in the cloud."""
    verbs = ("create", "delete", "patch")
    return [entry.method for entry in place.world.journal.entries() if entry.method.endswith(verbs)]


def creates(place: MemoryPlace) -> int:
    return sum(method.endswith("create") for method in changes(place))


def test_a_record_that_cannot_be_read_is_told_and_the_others_have_their_turn(place, services):
    bring_up(services, "good")
    services.store.put("slices/bad", {"name": "bad", "state": "of the future"}, if_generation=0)
    place.world.preempt("good-1")
    lines = pass_until(services, lambda: get_slice(services, "good").record.last_incarnation == 2)
    (bad,) = [line for line in lines if line.subject == "bad"]
    assert bad.result in TROUBLED
    assert "slices/bad in the store is damaged" in bad.why


@pytest.mark.parametrize("method", ["*", soak("*.get"), soak("*.list")])
def test_reads_that_fail_for_half_an_hour_delete_nothing_and_start_no_second_run(place, services, method):
    bring_up(services, "big")
    place.hosts.programs["main.py"] = scripted(6 * 3600.0)
    run = submit(services, "big", "hours")
    pass_until(services, lambda: get_run(services, run.id).record.state is RunState.RUNNING)
    before = changes(place)
    place.world.faults.add(
        {
            "kind": "error",
            "method": method,
            "code": 14,
            "message": "Internal error. Please try again.",
            "times": 0,
        }
    )
    for _ in range(3):
        run_pass(services)
        services.clock.sleep(600.0)
    place.world.faults.clear()
    run_pass(services)
    assert changes(place) == before
    record = get_run(services, run.id).record
    assert (record.state, record.attempt.number) == (RunState.RUNNING, 1)
    request_stop(services, run.id)
    pass_until(services, lambda: get_run(services, run.id).record.state.final)


def test_a_stockout_after_the_delete_keeps_the_slice_wanted_also_in_another_process(place, services):
    bring_up(services, "big", queued=False)
    place.world.faults.add({"preset": "stockout-now", "times": 4})
    place.world.preempt("big-1")
    for process in range(2, 60):
        fresh = place.machine(process=process)
        run_pass(fresh)
        record = get_slice(fresh, "big").record
        assert record.desired is Desired.UP
        if record.state is SliceState.READY and record.last_incarnation > 1:
            break
        services.clock.sleep(120.0)
    assert record.state is SliceState.READY
    assert creates(place) == 6  # the first, four that met no capacity, the one that did


def test_a_request_that_waits_in_the_queue_is_not_made_again(place, services):
    place.world.set_capacity(SPEC.zone, 0)
    for _ in range(30):
        request_slice(services, "big", SPEC, pay=False, admit=lambda: None)
        run_pass(services)
        services.clock.sleep(60.0)
    assert creates(place) == 1
    assert get_slice(services, "big").record.state is SliceState.PROVISIONING


def test_a_queued_resource_that_fails_while_it_is_waited_for_is_replaced(place, services):
    place.world.faults.add({"preset": "queued-internal", "times": 2})
    record = bring_up(services, "big")
    assert record.incarnation.number == 3
    assert [queued.name for queued in services.cloud.list_queued().items] == ["big-3"]


def test_a_hiccup_of_ssh_does_not_keep_later_failures_from_counting(place, services):
    bring_up(services, "big")
    place.hosts.programs["main.py"] = scripted(300.0, exit_status=3)
    run = submit(services, "big", "minutes")
    pass_until(services, lambda: get_run(services, run.id).record.state is RunState.RUNNING)
    port, services.ssh_port = services.ssh_port, 1
    run_pass(services)
    services.ssh_port = port
    pass_until(services, lambda: get_run(services, run.id).record.state.final)
    record = get_run(services, run.id).record
    assert (record.state, record.failures, record.preemptions) == (RunState.FAILED, 1, 0)
