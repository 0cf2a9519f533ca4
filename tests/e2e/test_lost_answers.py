"""Every change of the cloud takes effect and its answer is lost, once: no command ends for that.

`up`, `run`, a preemption with its recovery, and `down` of one slice, made directly and queued; for every create
and every delete in that life, and for all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.jobs import bring_up, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.model.records import RunState, SliceState
from tpuctl.runs.follow import follow_run, start_run
from tpuctl.runs.take_down import take_down
from tpuctl.state.repository import get_run, get_slice, list_runs
from tpuctl.watch.reconciler import run_pass

CHANGES = ("create", "delete")


@pytest.fixture
def place(place: MemoryPlace) -> MemoryPlace:
    place.hosts.programs["main.py"] = scripted(300.0, lines=["working"])
    return place


class Story:
    """The life of one slice and its run, every command typed once."""

    def __init__(self, place: MemoryPlace, *, queued: bool) -> None:
        self.place = place
        self.queued = queued
        self._processes = 0

    def live(self) -> None:
        self._type(lambda services: bring_up(services, "big", queued=self.queued))
        self._type(self._run)
        self.place.world.preempt("big-1")
        self._type(lambda services: follow_run(services, list_runs(services)[0].id))
        self._type(lambda services: take_down(services, "big"))

    def _run(self, services: MemoryServices) -> None:
        runs = list_runs(services)
        run = runs[0] if runs else submit(services, "big", "some minutes")
        start_run(services, run.id)

    def _type(self, command: Callable[[MemoryServices], Any]) -> None:
        self._processes += 1
        command(self.place.machine(process=self._processes))

    def calls(self, verb: str) -> list[str]:
        """Resources of all calls that took effect."""
        return [
            entry.resource.rsplit("/", 1)[-1]
            for entry in self.place.world.journal.entries()
            if entry.method.endswith(f".{verb}") and entry.status in ("OK", "DROPPED")
        ]

    def check(self) -> None:
        services = self.place.machine(process=0)
        assert get_slice(services, "big").record.state is SliceState.GONE
        [run] = list_runs(services)
        assert (run.state, run.attempt.number, run.preemptions) == (RunState.SUCCEEDED, 2, 1), run.reason
        assert self.calls("create") == ["big-1", "big-2"]
        assert set(self.calls("delete")) == {"big-1", "big-2"}
        assert self.place.world.census() == []


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "direct"])
def test_a_cloud_that_answers_no_change_at_all_is_used_all_the_same(place, queued):
    for verb in CHANGES:
        place.world.faults.add({"kind": "drop", "method": f"*.{verb}", "times": 0})
    story = Story(place, queued=queued)
    story.live()
    story.check()
    changes = [entry for entry in place.world.journal.entries() if entry.method.endswith(CHANGES)]
    assert "DROPPED" in {entry.status for entry in changes}
    assert "OK" not in {entry.status for entry in changes}


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "direct"])
def test_a_watchdog_recovers_although_no_answer_arrives(place, queued):
    services = place.machine()
    bring_up(services, "big", queued=queued)
    run = submit(services, "big", "some minutes")
    start_run(services, run.id)
    for verb in CHANGES:
        place.world.faults.add({"kind": "drop", "method": f"*.{verb}", "times": 0})
    place.world.preempt("big-1")
    for _ in range(30):
        place.clock.advance(60.0)
        run_pass(place.machine())
    assert get_run(services, run.id).record.state is RunState.SUCCEEDED
    assert [each.path.id for each in place.world.census() if each.kind == "node"] == ["big-2"]
