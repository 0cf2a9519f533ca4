"""How many hosts one pass connects to, over a fleet in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up, limit, submit
from tests.support.memory.host import MemoryHost
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace
from tpuctl.model.records import SliceState
from tpuctl.model.refs import MountRef
from tpuctl.model.timeouts import PASS_HOSTS_MAX
from tpuctl.runs.follow import start_run
from tpuctl.runs.request import request_stop
from tpuctl.slices.desired import request_down, request_slice
from tpuctl.state.repository import get_slice, list_slices, readable_runs, save
from tpuctl.watch.reconciler import run_pass

EIGHT_HOSTS = {"accelerator_type": "v4-64", "hosts": 8, "chips": 32}
SLICES = 12


def one_pass(place: MemoryPlace, number: int) -> set[str]:
    """The slices of which a pass in a process of its own reached hosts; then a minute passes."""
    met: set[str] = set()

    def notice(host: MemoryHost) -> bool:
        met.add(host.internal_ip)
        return True

    cron = place.machine(process=number, reaches=notice)
    run_pass(cron)
    assert len(met) <= PASS_HOSTS_MAX
    place.clock.advance(60.0)
    lives = [(each.name, each.incarnation) for each in list_slices(cron)]
    return {name for name, life in lives if life and met & {each.endpoint.internal_ip for each in life.workers}}


def after_passes(place: MemoryPlace, wanted: Callable[[], bool]) -> set[str]:
    """The slices met in passes until `wanted`."""
    met: set[str] = set()
    for number in range(2, 120):
        met |= one_pass(place, number)
        if wanted():
            return met
    raise AssertionError(f"not in two hours; met {sorted(met)}")


@pytest.mark.slow
def test_slices_that_idleness_ends_share_the_bound_with_runs_and_all_have_their_turn(place):
    laptop = place.machine()
    place.hosts.programs["main.py"] = scripted(86_400.0)
    for number in range(SLICES):
        bring_up(laptop, f"s{number}", **EIGHT_HOSTS)
        if number % 2:
            start_run(laptop, submit(laptop, f"s{number}", "as registered").id)
        else:
            limit(laptop, f"s{number}", idle_s=86_400.0)
    met: set[str] = set()
    for number in range(2, 40):
        met |= one_pass(place, number)
    assert met == {f"s{number}" for number in range(SLICES)}


def test_slices_that_boot_share_the_bound_and_all_become_ready(place):
    laptop = place.machine()
    spec = get_slice(laptop, bring_up(laptop, "first", **EIGHT_HOSTS).name).record.spec
    for number in range(SLICES):
        request_slice(laptop, f"s{number}", spec, pay=False, admit=lambda: None)
    after_passes(place, lambda: all(each.state is SliceState.READY for each in list_slices(laptop)))


def test_an_end_that_is_near_is_told_although_the_hosts_have_no_turn_yet(place):
    laptop = place.machine()
    for number in range(SLICES):
        bring_up(laptop, f"s{number}", **EIGHT_HOSTS)
    for number in range(SLICES):
        limit(laptop, f"s{number}", ttl_s=660.0, idle_s=86_400.0)
    lines = run_pass(laptop)
    assert sum(line.why.startswith("warned") for line in lines) == 0
    place.clock.advance(120.0)
    lines = run_pass(laptop)
    assert sum(line.why.startswith("warned") for line in lines) == SLICES


def test_a_fresh_request_is_told_by_what_it_waits_for(place):
    """Nothing boots yet, so nothing is said of turns: neither of a slice nor of a run on one."""
    laptop = place.machine()
    spec = get_slice(laptop, bring_up(laptop, "first", **EIGHT_HOSTS).name).record.spec
    for number in range(SLICES):
        request_slice(laptop, f"s{number}", spec, pay=False, admit=lambda: None)
        submit(laptop, f"s{number}", "as registered")
    lines = [line for line in run_pass(laptop) if line.subject != "first"]
    assert {line.result for line in lines} == {"waiting"}


def test_hosts_that_are_asked_before_their_slices_go_share_the_bound_and_all_go(place):
    """A night at whose end many slices with mounts are over: no pass asks more hosts than any other."""
    laptop = place.machine()
    for number in range(SLICES):
        bring_up(laptop, f"s{number}", **EIGHT_HOSTS)
        stored = get_slice(laptop, f"s{number}")
        spec = replace(stored.record.spec, mounts=(MountRef("sim-bucket", "/mnt/b", "train"),))
        save(laptop, stored, replace(stored.record, spec=spec))
        if number % 2:
            submit(laptop, f"s{number}", "as registered")
        else:
            request_down(laptop, f"s{number}")
    for run in readable_runs(laptop)[0]:
        request_stop(laptop, run.id)
        request_down(laptop, run.slice_name, run_first=True)
    met = after_passes(place, lambda: not laptop.cloud.list_nodes().items)
    assert met == {f"s{number}" for number in range(SLICES)}
    assert not any(each.incarnation and each.incarnation.unsaved for each in list_slices(laptop))
