"""What ends a slice that several runs share ends all of them in order, and then the slice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.support.builders import a_bundle
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, make_ready, passes, programs_on, state_of
from tpuctl.lib.time import render_time
from tpuctl.model.cloud import Tier
from tpuctl.model.records import RunRecord, RunState, SliceState
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.money.coverage import keep_grant
from tpuctl.money.grants import AtEnd, Grant
from tpuctl.runs.follow import start_run
from tpuctl.runs.request import request_run
from tpuctl.runs.submit import freeze_run
from tpuctl.state.repository import get_run, list_runs
from tpuctl.transfer.tree import make_tree
from tpuctl.views.decisions import decisions

DAY = 86_400.0
ZONE = "us-east1-d"


@pytest.fixture
def place() -> Iterator[MemoryPlace]:
    found = MemoryPlace(shared_ids=True)
    found.hosts.programs["main.py"] = scripted(100 * HOUR)
    yield found
    found.close()


def begin(services: MemoryServices, run_id: str) -> RunRecord:
    spec = RunSpec("big", ("python3", "main.py"), ".", RestartPolicy(grace_s=1.0), {}, {}, no_checkpoint=True)
    code = a_bundle(make_tree({"main.py": b"hours"}))
    run = freeze_run(services, run_id, replace(spec, chips="1"), code)
    return start_run(services, request_run(services, run, named=True).id)


@pytest.mark.parametrize("at_end", AtEnd)
def test_the_end_of_a_grant_ends_all_runs_of_its_slice_before_it_goes(
    place: MemoryPlace, at_end: AtEnd
) -> None:
    services = place.machine()
    last = (render_time(services.store.now() + DAY) or "")[:10]
    grant = Grant(ZONE, Tier.SPOT, "v6e", 8, ends=last, at_end=at_end)
    keep_grant(services, grant)
    v6e = {"accelerator_type": "v6e-8", "zone": ZONE, "runtime_version": "v2-alpha-tpuv6e"}
    make_ready(services, "big", hosts=1, chips=8, **v6e)
    runs = [begin(services, name) for name in ("one", "two", "three")]
    assert [run.chips for run in runs] == [(0,), (1,), (2,)]
    assert programs_on(place) == 3
    place.clock.advance(3 * DAY)
    passes(services, 1)
    if at_end is AtEnd.KEEP:
        passes(services, 10)
        assert state_of(place, "big") is SliceState.READY
        assert programs_on(place) == 3
        return
    asked = [get_run(services, run.id).record.stop_asked for run in runs]
    assert asked == [True] * 3
    assert state_of(place, "big") is SliceState.READY, "it stays until they have ended"
    passes(services, 10)
    assert state_of(place, "big") is SliceState.GONE
    assert {run.state for run in list_runs(services)} == {RunState.STOPPED}
    assert programs_on(place) == 0
    told = decisions(services, "big")
    down = next(number for number, each in enumerate(told) if each["action"] == "down")
    assert told[down]["reason"] == f"its grant ended on {last}"
    assert {each["subject"] for each in told[:down] if each["action"] == "ended"} == {"one", "two", "three"}
