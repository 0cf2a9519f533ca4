"""`test_crash_everywhere` with slices of Compute Engine, which are up to three objects."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.compute_slices import GROUP, INSTANCE, SPECS, objects, objects_of, preempt
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, Up, Watched, begin_run, long_program, make_ready, state_of
from tests.support.surviving import Repair, Story, cases, survive_all
from tpuctl.model.records import RunState, SliceState
from tpuctl.runs.take_down import take_down
from tpuctl.state.repository import get_slice, list_runs


class UpCompute(Up):
    """One slice comes up, and every object of it is there once."""

    def __init__(self, kind: str) -> None:
        super().__init__(**(GROUP if kind == "group" else INSTANCE))

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.READY
        assert objects(place) == objects_of(current(place), self.spec.hosts)


class DownCompute:
    """A slice with a run on it goes, and nothing of it is left."""

    watched = True
    lasting = True

    def __init__(self, kind: str) -> None:
        self.spec = GROUP if kind == "group" else INSTANCE

    def prepare(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        make_ready(services, "big", **self.spec)
        begin_run(services)

    def command(self, services: MemoryServices) -> None:
        take_down(services, "big", deadline=services.clock.now() + HOUR)

    def check(self, place: MemoryPlace) -> None:
        assert (state_of(place, "big"), objects(place)) == (SliceState.GONE, {})
        [run] = list_runs(place.machine("server"))
        assert run.state is RunState.STOPPED


class RecoveryCompute(Watched):
    """A group of which a host was preempted comes back with its run."""

    minutes = 20

    def begin(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        make_ready(services, "big", **GROUP)
        begin_run(services)
        preempt(place, "big-1", "DELETE")

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.READY
        assert objects(place) == objects_of("big-2", SPECS["group"].hosts)
        [run] = list_runs(place.machine("server"))
        assert (run.state, run.preemptions, run.failures) == (RunState.RUNNING, 1, 0)


def current(place: MemoryPlace) -> str:
    life = get_slice(place.machine("server"), "big").record.incarnation
    return "" if life is None else life.cloud_name


STORIES: dict[str, Callable[[], Story]] = {
    "up a group": lambda: UpCompute("group"),
    "up an instance": lambda: UpCompute("instance"),
    "down a group": lambda: DownCompute("group"),
    "down an instance": lambda: DownCompute("instance"),
    "pass: recovery of a group": RecoveryCompute,
}


SAMPLED = ("up a group", "down a group")
"""Of which CI lives through a sample; an instance is one object, as a node is."""
CASES = [each for each in cases(STORIES, rare=STORIES) if each.values[0] in SAMPLED or not each.values[2]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "repair", "sample"), CASES)
def test_every_accident_with_compute_engine_is_survived(name: str, repair: Repair, sample: bool) -> None:
    assert survive_all(STORIES[name], repair, sample=sample) == []
