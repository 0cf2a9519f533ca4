"""The name of a run that was pruned is free: the new run's output is whole, and the old one's is kept apart.
That of a run whose damaged record was removed is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.builders import a_run
from tests.support.jobs import bring_up, run_to_end
from tests.support.memory.process import Process, Steps
from tests.support.memory.services import MemoryPlace
from tpuctl.doctor.damage import check_damaged, remove_damaged
from tpuctl.errors import ConflictError
from tpuctl.model import timeouts
from tpuctl.model.records import RunState
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.runs.request import check_new_id
from tpuctl.runs.take_down import take_down
from tpuctl.state.gc import prune
from tpuctl.state.repository import RUNS
from tpuctl.state.run_logs import LogFiles


class OneName:
    def new_id(self) -> str:
        return "exp"


def test_output_of_a_new_run_does_not_begin_where_that_of_a_pruned_one_ended(tmp_path: Path) -> None:
    place = MemoryPlace()
    said = ["a long line of the first run", "second"]

    def program(process: Process) -> Steps:
        process.print(said[0])
        yield 60.0
        return 0

    place.hosts.programs["main.py"] = program
    services = place.machine()
    services.ids, services.logs = OneName(), LogFiles(tmp_path)
    bring_up(services, "big")
    assert run_to_end(services, "big", "first", policy=RestartPolicy()).state is RunState.SUCCEEDED
    take_down(services, "big")
    place.clock.advance(2 * timeouts.RUNS_KEPT_LEAST_S)
    done = prune(services.store, timeouts.PRUNE_AFTER_LEAST_S, runs_after_s=timeouts.RUNS_KEPT_LEAST_S)
    assert done.old.runs == ("exp",)
    old = said.pop(0)
    bring_up(services, "big")
    assert run_to_end(services, "big", "again", policy=RestartPolicy()).state is RunState.SUCCEEDED
    for worker in range(2):
        name = f"1/worker-{worker}.stdout.log"
        assert (tmp_path / "exp" / name).read_text() == "second\n"
        assert (tmp_path / "exp.old-1" / name).read_text() == f"{old}\n"
    place.close()


def test_a_new_run_does_not_take_over_the_attempts_of_one_whose_record_was_removed(place: MemoryPlace) -> None:
    place.hosts.programs["main.py"] = lambda process: iter(())
    services = place.machine()
    services.ids = OneName()
    bring_up(services, "big")
    run_to_end(services, "big", "first", policy=RestartPolicy())
    stored = services.store.get("runs/exp")
    assert stored is not None
    services.store.put("runs/exp", {"id": "exp"}, if_generation=stored.generation)
    remove_damaged(services, "runs/exp", check_damaged(services, "runs/exp"))
    with pytest.raises(ConflictError, match="1 attempt of an earlier run called exp") as refused:
        run_to_end(services, "big", "again", policy=RestartPolicy())
    assert "another --name" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("state", "hint"), [("running", "tpuctl attach exp"), ("succeeded", "tpuctl logs exp")]
)
def test_the_name_of_another_run_is_refused_with_what_shows_that_one(place: MemoryPlace, state, hint) -> None:
    services = place.machine()
    RUNS.put(services, "exp", a_run(id="exp", state=RunState(state)), 0)
    with pytest.raises(ConflictError, match=f"it is {state}") as refused:
        check_new_id(services, "exp", again=False)
    assert hint in (refused.value.hint or "")
