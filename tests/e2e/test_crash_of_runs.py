"""Runs, and slices that go by themselves, with every accident at each of their changing calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.support.builders import a_bundle
from tests.support.jobs import SPEC, limit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import (
    HOUR,
    Up,
    Watched,
    begin_run,
    long_program,
    make_ready,
    nodes,
    programs_on,
    state_of,
)
from tests.support.surviving import Repair, Story, cases, survive_all
from tpuctl.model.records import LifetimeLimits, RunRecord, RunState, SliceState
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.provenance.parts import load_manifest
from tpuctl.provenance.verify import verify_manifest
from tpuctl.runs.follow import follow_run, start_run
from tpuctl.runs.request import request_run, request_stop
from tpuctl.runs.submit import check_request, freeze_run
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice, list_runs
from tpuctl.transfer.tree import make_tree


class Stop:
    """A run is stopped; its slice stays."""

    watched = True
    lasting = True

    def prepare(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        make_ready(services, "big")
        begin_run(services)

    def command(self, services: MemoryServices) -> None:
        [run] = list_runs(services)
        request_stop(services, run.id, grace_s=2.0)
        follow_run(services, run.id, deadline=services.clock.now() + HOUR)

    def check(self, place: MemoryPlace) -> None:
        [run] = list_runs(place.machine("server"))
        assert (run.state, run.failures, run.preemptions) == (RunState.STOPPED, 0, 0)
        assert programs_on(place) == 0
        assert state_of(place, "big") is SliceState.READY
        assert nodes(place) == ["big-1"]


class StopDeaf(Stop):
    """Its programs do not hear TERM."""

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        place.hosts.programs["main.py"] = scripted(6 * HOUR, deaf=True)


class StopUnstarted(Stop):
    """It waits for its slice, which comes later."""

    def prepare(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        request_slice(services, "big", SPEC, pay=True, admit=lambda: None)
        submit_up(services, "waiting", owns=False)

    def check(self, place: MemoryPlace) -> None:
        [run] = list_runs(place.machine("server"))
        assert run.state is RunState.STOPPED
        assert programs_on(place) == 0


def submit_up(services: MemoryServices, run_id: str, *, owns: bool, per: str = "host") -> RunRecord:
    """What `run` writes down of a run on slice `big`."""
    code = a_bundle(make_tree({"main.py": b"hours"}))
    request = RunSpec(
        "big", ("python3", "main.py"), ".", RestartPolicy(grace_s=1.0), {}, {}, no_checkpoint=True
    )
    request = replace(request, owns_slice=owns, per=per)
    check_request(services, request)
    return request_run(services, freeze_run(services, run_id, request, code))


class RunUp:
    """`run --up --detach`: a slice is asked for and a run on it, in one command."""

    watched = True
    lasting = True
    per, processes = "host", 1

    def prepare(self, place: MemoryPlace) -> None:
        long_program(place)

    def command(self, services: MemoryServices) -> None:
        start_run(services, self.ask(services).id, deadline=services.clock.now() + HOUR)

    def ask(self, services: MemoryServices) -> RunRecord:
        run_id = f"run-{services.lease_owner.replace('/', '-')}"
        request_slice(services, "big", SPEC, pay=True, run_id=run_id, admit=lambda: None)
        return submit_up(services, run_id, owns=True, per=self.per)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.READY
        assert nodes(place) == ["big-1"]
        server = place.machine("server")
        [run] = list_runs(server)
        assert run.attempt is not None
        assert (run.state, run.attempt.number, programs_on(place)) == (RunState.RUNNING, 1, 2)
        assert run.attempt.processes == self.processes
        for host in place.hosts.all():
            alive = [each.env.get("TPUCTL_LOCAL_RANK") for each in host.processes if each.alive]
            ranks = sorted(rank for rank in alive if rank is not None)
            assert ranks == [str(rank) for rank in range(self.processes)]
        assert get_slice(server, "big").record.run_id == run.id, "the slice would not go with its run"


class RunUpPerChip(RunUp):
    """Each chip has a process: none is begun twice, and none is left out."""

    per, processes = "chip", 4


class RunUpToItsEnd(RunUp):
    """`run --up`, followed: the slice goes with the run, also where the command is typed for another one."""

    lasting = False

    def prepare(self, place: MemoryPlace) -> None:
        place.hosts.programs["main.py"] = scripted(10.0, lines=["working"])

    def command(self, services: MemoryServices) -> None:
        follow_run(services, self.ask(services).id, deadline=services.clock.now() + HOUR)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.GONE
        assert nodes(place) == []
        server = place.machine("server")
        runs = list_runs(server)
        assert {run.state for run in runs} == {RunState.SUCCEEDED}
        for run in runs:
            assert verify_manifest(server, load_manifest(server, run.id), sealed=True) == []


class UpForATime(Up):
    """A slice whose end is told with the request: there is none without it at any time."""

    def command(self, services: MemoryServices) -> None:
        limits = LifetimeLimits(ttl_s=4 * HOUR, idle_s=HOUR)
        request_slice(services, "big", SPEC, pay=True, limits=limits, admit=lambda: None)
        super().command(services)

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        lifetime = get_slice(place.machine("server"), "big").record.lifetime
        assert lifetime is not None
        assert (lifetime.ttl_s, lifetime.idle_s) == (4 * HOUR, HOUR)


class WatchedIdleness(Watched):
    """Nobody uses a slice for as long as it was to wait; one that is used stays."""

    def begin(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        make_ready(services, "other")
        limit(services, "other", idle_s=1200.0)
        make_ready(services, "big")
        begin_run(services)
        limit(services, "big", idle_s=1200.0)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "other") is SliceState.GONE
        assert state_of(place, "big") is SliceState.READY
        assert nodes(place) == ["big-1"]


class WatchedRunUp(Watched):
    """The slice of a run that nobody follows goes with it."""

    def begin(self, place: MemoryPlace) -> None:
        place.hosts.programs["main.py"] = scripted(300.0, lines=["working"])
        RunUp().command(place.machine())

    def check(self, place: MemoryPlace) -> None:
        RunUpToItsEnd().check(place)


STORIES: dict[str, Callable[[], Story]] = {
    "stop": Stop,
    "stop of a deaf program": StopDeaf,
    "stop of what never ran": StopUnstarted,
    "run --up --detach": RunUp,
    "run --up --per chip": RunUpPerChip,
    "run --up": RunUpToItsEnd,
    "up --ttl --stop-when-idle": UpForATime,
    "pass: end of idleness": WatchedIdleness,
    "pass: end of run --up": WatchedRunUp,
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "repair", "sample"), cases(STORIES, rare={"run --up --per chip"}))
def test_every_accident_of_runs_and_their_slices_is_survived(name: str, repair: Repair, sample: bool) -> None:
    assert survive_all(STORIES[name], repair, sample=sample) == []


class Forgetful(RunUp):
    """What no command does: typed again, it asks for another slice."""

    def command(self, services: MemoryServices) -> None:
        before = services.cloud.list_queued().items
        request_slice(services, f"big-{len(before)}", SPEC, pay=True, admit=lambda: None)
        wait_for_slice(services, f"big-{len(before)}")

    def check(self, place: MemoryPlace) -> None:
        assert len(nodes(place)) == 1


def test_what_does_not_survive_an_accident_is_told() -> None:
    told = survive_all(Forgetful, Repair.AGAIN, sample=True)
    assert any(line.startswith("killed after call") and "AssertionError" in line for line in told)
