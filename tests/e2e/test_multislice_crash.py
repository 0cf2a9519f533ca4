"""A crash, or a lost answer, at any call that changes the cloud while several slices come up and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import a_spec
from tests.support.crashing import CLOUD_CHANGES, Crash, Crashing, CrashPoint
from tests.support.services import sim_services
from tests.support.sim import RunningSim, running_sim
from tpuctl.model.records import SliceState
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice

SPEC = a_spec(accelerator_type="v4-8", hosts=2, chips=8, slices=2)


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSim]:
    with running_sim(tmp_path_factory.mktemp("sim")) as running:
        yield running


def live(sim: RunningSim, state: Path, name: str, point: CrashPoint) -> None:
    """`up` and `down`, each in a "process" of its own, typed again when it crashed."""
    for number, command in enumerate(("up", "up", "down", "down")):
        with sim_services(sim, state, process=number) as services:
            services.cloud = Crashing(services.cloud, point, lambda verb, _: verb in CLOUD_CHANGES)
            try:
                if command == "up":
                    request_slice(services, name, SPEC, pay=True, admit=lambda: None)
                    wait_for_slice(services, name)
                else:
                    take_down(services, name)
            except Crash:
                point.dead = False


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
def test_nothing_is_left_and_nothing_is_made_twice(
    sim: RunningSim, tmp_path: Path, at: int, after: bool
) -> None:
    name = f"m{at}{'a' if after else 'b'}"
    live(sim, tmp_path / "state", name, CrashPoint(at, after=after))
    with sim_services(sim, tmp_path / "state") as services:
        assert get_slice(services, name).record.state is SliceState.GONE
        found = [*services.cloud.list_nodes().items, *services.cloud.list_queued().items]
    assert [each.name for each in found if each.name.startswith(f"{name}-")] == []
    made = [
        entry
        for entry in sim.journal.entries()
        if entry.method == "queuedResources.create" and f"/{name}-" in entry.resource and entry.status == "OK"
    ]
    assert len(made) == 1
