"""Records that are shown: those that are over are passed over unread, and a damaged one hides no other."""

from __future__ import annotations

from tests.support.builders import a_run
from tests.support.memory.services import MemoryPlace
from tpuctl.lib.codec import to_data
from tpuctl.model.records import RunState
from tpuctl.state.repository import runs_under_way


def test_only_runs_that_may_go_on_are_read(place: MemoryPlace) -> None:
    services = place.machine()
    for state in RunState:
        run = a_run(id=str(state), state=state)
        services.store.put(run.key, to_data(run), if_generation=0)
    services.store.put("runs/damaged", {"state": "running"}, if_generation=0)
    services.store.put("runs/strange", {"state": "to-come"}, if_generation=0)
    assert {run.state for run in runs_under_way(services)} == {state for state in RunState if not state.final}
