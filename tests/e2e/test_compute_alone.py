"""A project with Compute Engine alone, where the Cloud TPU API is off: all that slices of it need works."""

from __future__ import annotations

import pytest

from tests.support.compute_slices import SPECS, objects, objects_of, preempt
from tests.support.jobs import bring_up as bring_up_node
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, begin_run, long_program, passes, state_of
from tpuctl.engine.events import Warn
from tpuctl.errors import DeniedError
from tpuctl.inventory.listing import TPUS_OF
from tpuctl.inventory.reap import caller_of, reap, survey
from tpuctl.inventory.resources import Fate
from tpuctl.model.cloud import Api
from tpuctl.model.records import RunState, SliceState
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice, list_runs
from tpuctl.views.slices import fleet_rows
from tpuctl.watch.reconciler import run_pass

OFF = {"kind": "service-off", "name": "tpu.googleapis.com"}
UNREAD = TPUS_OF[Api.TPU]


def bring_up(services: MemoryServices) -> None:
    request_slice(services, "big", SPECS["group"], pay=True, admit=lambda: None)
    wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)


def warned(services: MemoryServices) -> str:
    return "\n".join(event.text for event in services.events if isinstance(event, Warn))


def test_a_slice_comes_up_and_back_with_its_run_and_goes(place: MemoryPlace):
    place.world.faults.add(OFF)
    services, hosts = place.machine(), SPECS["group"].hosts
    long_program(place)
    bring_up(services)
    begin_run(services)
    lines = {line.subject: line for line in run_pass(services)}
    assert lines[UNREAD].result == "waiting"
    assert "not read: " in lines[UNREAD].why
    assert "fleet" not in lines
    preempt(place, "big-1", "DELETE")
    for _ in range(20):
        passes(services, 1)
        if objects(place) == objects_of("big-2", hosts) and state_of(place, "big") is SliceState.READY:
            break
    passes(services, 3)
    [run] = list_runs(services)
    assert (run.state, run.preemptions, run.failures) == (RunState.RUNNING, 1, 0)
    take_down(services, "big", deadline=services.clock.now() + HOUR)
    assert (state_of(place, "big"), objects(place)) == (SliceState.GONE, {})


def test_lists_say_what_is_not_read_and_what_is_left_over_is_removed(place: MemoryPlace):
    place.world.faults.add(OFF)
    services = place.machine()
    bring_up(services)
    rows, _ = fleet_rows(services)
    assert [(row["name"], row["state"], row["cloud"]) for row in rows] == [("big", "ready", "READY")]
    assert f"{UNREAD} could not be listed" in warned(services)
    services.store.delete("slices/big", if_generation=services.store.get("slices/big").generation)
    found = survey(services)
    assert UNREAD in found.unread
    caller = caller_of(services, all_users=False)
    reap(services, found.of(Fate.DELETE), caller, deadline=services.clock.now() + HOUR)
    assert objects(place) == {}


def test_nothing_of_the_tpu_api_is_taken_for_gone_while_it_refuses(place: MemoryPlace):
    services = place.machine()
    bring_up_node(services, "dev")
    place.world.faults.add(OFF)
    lines = run_pass(services)
    assert [(line.subject, line.result) for line in lines] == [("fleet", "failed")]
    assert get_slice(services, "dev").record.state is SliceState.READY
    [row], _ = fleet_rows(services)
    assert (row["name"], row["state"], row["cloud"]) == ("dev", "ready", "unread")


def test_where_both_apis_refuse_there_is_nothing_to_list(place: MemoryPlace):
    services = place.machine()
    place.world.faults.add(OFF)
    place.world.faults.add({**OFF, "name": "compute.googleapis.com"})
    with pytest.raises(DeniedError):
        fleet_rows(services)
