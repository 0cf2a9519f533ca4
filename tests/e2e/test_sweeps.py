"""Sweeps: every row of a grid runs once, on slices that are taken and given back, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.support.builders import a_bundle
from tests.support.crashing import Crash, CrashPoint, make_crashing
from tests.support.jobs import SPEC
from tests.support.memory.buckets import NearBuckets
from tests.support.memory.process import Process, Steps
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, make_ready, nodes, passes
from tests.support.surviving import check_fleet
from tpuctl.engine.events import Note
from tpuctl.errors import ConflictError, PartialError, TpuctlError
from tpuctl.model.hosts import Api
from tpuctl.model.quota import ComputeQuota, ProjectInfo, TpuQuota
from tpuctl.model.records import RunState, SliceState
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.model.verdict import Wait
from tpuctl.runs.follow import follow_run
from tpuctl.runs.matrix import parse_matrix
from tpuctl.runs.request import request_run
from tpuctl.runs.submit import freeze_run
from tpuctl.runs.sweep import (
    advance_sweep,
    follow_sweep,
    get_sweep,
    progress_of,
    request_sweep,
    stop_sweep,
)
from tpuctl.runs.sweep_record import SweepRecord, SweepRow, find_sweep
from tpuctl.runs.take_down import take_down
from tpuctl.state.gc import find_old, prune
from tpuctl.state.repository import get_run, get_slice, list_runs, list_slices
from tpuctl.transfer.tree import make_tree
from tpuctl.views.decisions import decisions
from tpuctl.watch.reconciler import run_pass

SMALL: SliceSpec = replace(SPEC, accelerator_type="v4-8", hosts=1, chips=4)
V6E: SliceSpec = replace(
    SPEC, accelerator_type="v6e-8", zone="us-east1-d", runtime_version="v2-alpha-tpuv6e", hosts=1, chips=8
)


class Project(NearBuckets):
    """What the project's quotas are: of TPUs those that are said, of all else none."""

    def __init__(self, *tpus: TpuQuota) -> None:
        self._tpus = tpus

    def region_quotas(self, _region: str) -> tuple[ComputeQuota, ...]:
        return ()

    def project_info(self) -> ProjectInfo:
        return ProjectInfo({}, ())

    def tpu_quotas(self, _api: Api) -> tuple[TpuQuota, ...]:
        return self._tpus


def machine(place: MemoryPlace, name: str = "laptop", *tpus: TpuQuota, process: int = 1) -> MemoryServices:
    services = place.machine(name, process=process)
    services.project_api = Project(*tpus)
    return services


def train(process: Process) -> Steps:
    """Five minutes of work; the seed 13 brings bad luck."""
    process.print(f"seed {process.env['SEED']}")
    yield 300.0
    return 3 if process.env["SEED"] == "13" else 0


@pytest.fixture
def place() -> Iterator[MemoryPlace]:
    found = MemoryPlace(shared_ids=True)
    found.hosts.programs["main.py"] = train
    yield found
    found.close()


def a_sweep(
    services: MemoryServices,
    rows: int,
    slices: tuple[str, ...],
    *,
    specs: tuple[SliceSpec, ...] = (),
    parallel: int | None = None,
    share: int = 0,
) -> SweepRecord:
    """With `share` each run has a chip of its own, of so many that a slice has."""
    policy = RestartPolicy(max_failures=0, grace_s=1.0)
    spec = RunSpec("x", ("python3", "main.py"), ".", policy, {}, {}, no_checkpoint=True, group="lr")
    spec = replace(spec, chips="1") if share else spec
    grid = parse_matrix(f"SEED: {list(range(1, rows + 1))}", "grid.yaml")
    found = tuple(
        SweepRow(f"lr-{number:02d}", spec.argv, row.variables, row.tags) for number, row in enumerate(grid, 1)
    )
    template = freeze_run(services, "lr", spec, a_bundle(make_tree({"main.py": b"main"})))
    return request_sweep(
        services,
        SweepRecord(
            "lr",
            "asked",
            template,
            found,
            parallel or len(slices) * max(share, 1),
            slices,
            specs=specs,
            chips=share or 4,
            pay=True,
        ),
    )


def ready(services: MemoryServices) -> list[str]:
    """Names of the nodes of all slices that are ready."""
    records = [record for record in list_slices(services) if record.state is SliceState.READY]
    return [record.incarnation.cloud_name for record in records if record.incarnation]


def outcomes(services: MemoryServices) -> dict[str, RunState]:
    return {run.id: run.state for run in list_runs(services)}


def test_rows_without_chips_run_one_after_another_on_one_slice(place: MemoryPlace) -> None:
    services = machine(place)
    make_ready(services, "big")
    sweep = a_sweep(services, 3, ("big",))
    began = services.clock.now()
    follow_sweep(services, "lr", deadline=services.clock.now() + 2 * HOUR)
    assert outcomes(services) == {f"lr-{n:02d}": RunState.SUCCEEDED for n in (1, 2, 3)}
    assert services.clock.now() - began >= 3 * 300
    assert [run.spec.tags for run in list_runs(services)] == [("SEED=1",), ("SEED=2",), ("SEED=3",)]
    assert get_sweep(services, "lr") == replace(sweep, over=True)
    assert get_slice(services, "big").record.state is SliceState.READY, "it was there before, and stays"


def test_eight_rows_share_one_host_by_a_chip_each(place: MemoryPlace) -> None:
    services = machine(place)
    make_ready(services, "big", **{name: getattr(V6E, name) for name in V6E.__struct_fields__})
    a_sweep(services, 8, ("big",), share=8)
    began = services.clock.now()
    follow_sweep(services, "lr", deadline=began + HOUR)
    assert set(outcomes(services).values()) == {RunState.SUCCEEDED}
    assert sorted(run.chips for run in list_runs(services)) == [(chip,) for chip in range(8)]
    assert services.clock.now() - began < 2 * 300


def test_rows_run_once_through_preemptions_a_killed_client_and_a_row_that_fails(place: MemoryPlace) -> None:
    """24 rows on six slices; the command is killed, and passes on another machine do the rest."""
    services, server = machine(place), machine(place, "server")
    names = tuple(f"lr-{number}" for number in range(1, 7))
    a_sweep(services, 24, names, specs=(SMALL,))
    killed = machine(place, process=2)
    make_crashing(killed, CrashPoint(120))
    with pytest.raises(Crash):
        follow_sweep(killed, "lr", deadline=killed.clock.now() + HOUR)
    for minute in range(200):
        passes(server, 1)
        if minute in (12, 18):
            place.world.preempt(ready(server)[minute % 3])
        if get_sweep(server, "lr").over:
            break
    assert get_sweep(server, "lr").over, progress_of(server, get_sweep(server, "lr")).said
    states = outcomes(server)
    assert states.pop("lr-13") is RunState.FAILED
    assert set(states.values()) == {RunState.SUCCEEDED}
    assert len(states) == 23
    assert sum(run.preemptions for run in list_runs(server)) == 2
    assert place.world.census() == []
    assert {get_slice(server, name).record.state for name in names} == {SliceState.GONE}
    check_fleet(place)
    told = decisions(server, "lr")
    began = [each for each in told if each["action"] == "run"]
    assert [each["subject"] for each in began] == [f"lr-{number:02d}" for number in range(1, 25)]
    assert began[12]["reason"].startswith("SEED=13 of sweep lr, on lr-")
    ends = [f"{each['subject']}: {each['reason']}" for each in told if each["action"] == "ended"]
    assert sum("run is waiting" in each for each in ends) == 2
    assert [each.partition(":")[0] for each in ends if "run is failed" in each] == ["lr-13"]
    assert sum("run is succeeded" in each for each in ends) == 23
    assert {each["subject"] for each in told if each["action"] == "up"} == set(names)
    given_back = {each["subject"] for each in told if each["reason"] == "sweep lr has no more rows for it"}
    assert given_back == set(names)
    assert [each["action"] for each in told if each["subject"] == "lr"] == ["sweep", "over"]
    with pytest.raises(PartialError, match="1 of 24 rows failed: lr-13"):
        follow_sweep(machine(place, process=3), "lr")


def test_slices_are_taken_as_far_as_quotas_allow(place: MemoryPlace) -> None:
    quota = TpuQuota("PreemptibleTPUV4CoresPerProjectPerZone", SPEC.zone, 8, "v4", preemptible=True)
    services = machine(place, "laptop", quota)
    a_sweep(services, 3, ("lr-1", "lr-2"), specs=(SMALL,))
    follow_sweep(services, "lr", deadline=services.clock.now() + 2 * HOUR)
    [waits] = [each for each in decisions(services, "lr") if each["action"] == "waits"]
    assert "lr-2 needs more than the quota of preemptible v4" in waits["reason"]
    assert {run.slice_name for run in list_runs(services)} == {"lr-1"}
    assert set(outcomes(services).values()) == {RunState.SUCCEEDED}
    assert len(outcomes(services)) == 3


def test_slices_are_given_back_as_soon_as_no_row_needs_them(place: MemoryPlace) -> None:
    services = machine(place)
    a_sweep(services, 3, ("lr-1", "lr-2"), specs=(SMALL,))
    seen = set()
    for _ in range(60):
        passes(services, 1)
        seen.add(tuple(nodes(place)))
        if place.world.census() == [] and get_slice(services, "lr-1").record.state is SliceState.GONE:
            break
    assert ("lr-1-1", "lr-2-1") in seen
    assert len({run.slice_name for run in list_runs(services)}) == 2
    assert any(len(each) == 1 for each in seen), "the slice without a row goes before the other has ended"
    assert set(outcomes(services).values()) == {RunState.SUCCEEDED}


def test_a_stopped_sweep_begins_nothing_and_gives_its_slices_back(place: MemoryPlace) -> None:
    services = machine(place)
    a_sweep(services, 6, ("lr-1", "lr-2"), specs=(SMALL,))
    passes(services, 8)
    assert len(outcomes(services)) == 2
    stop_sweep(services, "lr")
    follow_sweep(services, "lr", deadline=services.clock.now() + HOUR)
    assert [each["action"] for each in decisions(services, "lr") if each["subject"] == "lr"] == [
        "sweep",
        "stop",
        "over",
    ]
    assert set(outcomes(services).values()) == {RunState.STOPPED}
    assert len(outcomes(services)) == 2
    assert place.world.census() == []


def test_a_slice_that_a_person_took_down_is_not_brought_up_again(place: MemoryPlace) -> None:
    services = machine(place)
    a_sweep(services, 6, ("lr-1",), specs=(SMALL,))
    passes(services, 8)
    take_down(services, "lr-1")
    [line] = [line for line in run_pass(services) if line.subject == "sweep lr"]
    assert line.result == "blocked"
    assert "slice lr-1 was taken down" in line.why
    passes(services, 5)
    assert place.world.census() == []
    stop_sweep(services, "lr")
    follow_sweep(services, "lr")
    assert get_sweep(services, "lr").over


def test_a_watchdog_of_another_user_asks_for_no_slices(place: MemoryPlace) -> None:
    services, other = machine(place), machine(place, "server")
    a_sweep(services, 1, ("lr-1",), specs=(SMALL,))
    other.user = "grace"
    passes(other, 3)
    assert place.world.census() == []
    passes(services, 3)
    passes(other, 20)  # what is asked for, anybody goes on with
    assert outcomes(other) == {"lr-01": RunState.SUCCEEDED}
    assert place.world.census() == []


def test_runs_of_a_sweep_are_kept_until_it_is_over(place: MemoryPlace) -> None:
    """Else their rows would run again."""
    services = machine(place)
    a_sweep(services, 2, ("lr-1",), specs=(SMALL,))
    passes(services, 14)
    assert outcomes(services)["lr-01"] is RunState.SUCCEEDED
    take_down(services, "lr-1")
    services.clock.sleep(90 * 86_400.0)
    assert find_old(services.store, 60 * 86_400.0).runs == ()
    stop_sweep(services, "lr")
    follow_sweep(services, "lr")
    assert set(find_old(services.store, 60 * 86_400.0).runs) == {"lr-01", "lr-02"}
    assert progress_of(services, get_sweep(services, "lr")).pending == ()
    assert prune(services.store, HOUR, 60 * 86_400.0).old.sweeps == ("sweeps/lr",)
    assert find_sweep(services, "lr") is None
    assert services.store.list("journal/sweeps/") == []


def test_another_sweep_of_the_same_name_is_refused(place: MemoryPlace) -> None:
    services = machine(place)
    sweep = a_sweep(services, 2, ("big",))
    assert request_sweep(services, sweep) == sweep
    with pytest.raises(ConflictError, match="another grid"):
        request_sweep(services, replace(sweep, asked="other"))


def another_run(services: MemoryServices, run_id: str, slice_name: str) -> None:
    policy = RestartPolicy(max_failures=0, grace_s=1.0)
    spec = RunSpec(slice_name, ("python3", "main.py"), ".", policy, {"SEED": "99"}, {}, no_checkpoint=True)
    bundle = a_bundle(make_tree({"main.py": b"main"}))
    request_run(services, freeze_run(services, run_id, spec, bundle), named=True)


def test_a_slice_that_another_run_uses_goes_after_that(place: MemoryPlace) -> None:
    services = machine(place)
    a_sweep(services, 1, ("lr-s1",), specs=(SMALL,))
    advance_sweep(services, "lr")
    follow_run(services, "lr-01")
    another_run(services, "mine", "lr-s1")
    assert advance_sweep(services, "lr").verdict == Wait("the end of run mine, then lr-s1 goes")
    assert not get_sweep(services, "lr").over
    follow_run(services, "mine")
    follow_sweep(services, "lr", deadline=services.clock.now() + HOUR)
    assert get_sweep(services, "lr").over
    assert place.world.census() == []


def test_a_slice_that_a_person_brought_up_is_neither_used_nor_deleted(place: MemoryPlace) -> None:
    services = machine(place)
    make_ready(services, "lr-s1")
    make_ready(services, "lr-s2")
    take_down(services, "lr-s2")  # gone before: that is no word of a person against this sweep
    a_sweep(services, 1, ("lr-s1", "lr-s2"), specs=(SMALL,))
    follow_sweep(services, "lr", deadline=services.clock.now() + HOUR)
    assert [(run.slice_name, run.state) for run in list_runs(services)] == [("lr-s2", RunState.SUCCEEDED)]
    assert get_slice(services, "lr-s1").record.state is SliceState.READY
    assert get_slice(services, "lr-s2").record.state is SliceState.GONE


def test_a_run_that_has_the_id_of_a_row_is_not_that_row(place: MemoryPlace) -> None:
    services = machine(place)
    make_ready(services, "big")
    make_ready(services, "other")
    another_run(services, "lr-02", "other")
    a_sweep(services, 2, ("big",))
    with pytest.raises(PartialError, match="not to be had: lr-02"):
        follow_sweep(services, "lr", deadline=services.clock.now() + HOUR)
    assert outcomes(services)["lr-01"] is RunState.SUCCEEDED
    stop_sweep(services, "lr")
    assert not get_run(services, "lr-02").record.stop_asked


def test_a_sweep_whose_slices_are_all_refused_ends_and_says_why_once(place: MemoryPlace) -> None:
    services = machine(place)
    a_sweep(services, 3, ("lr-s1", "lr-s2"), specs=(SMALL,))
    place.world.faults.add({"kind": "error", "method": "*.create", "code": 3, "message": "no such", "times": 0})
    with pytest.raises(TpuctlError, match=r"lr-01: .*no such"):
        follow_sweep(services, "lr", deadline=services.clock.now() + HOUR)
    said = [each.text for each in services.events if isinstance(each, Note) and "no such" in each.text]
    assert len(said) == len(set(said)) > 0


def lived_through(at: int, *, after: bool) -> bool:
    """A sweep whose command is killed at the changing call of this number, and typed again. Whether it was."""
    place = MemoryPlace(shared_ids=True)
    place.hosts.programs["main.py"] = train
    try:
        first = machine(place, process=2)
        make_crashing(first, CrashPoint(at, after=after))
        killed = False
        try:
            a_sweep(first, 3, ("lr-1", "lr-2"), specs=(SMALL,))
            follow_sweep(first, "lr", deadline=first.clock.now() + 2 * HOUR)
        except Crash:
            killed = True
        again = machine(place, process=3)
        a_sweep(again, 3, ("lr-1", "lr-2"), specs=(SMALL,))
        follow_sweep(again, "lr", deadline=again.clock.now() + 2 * HOUR)
        assert outcomes(again) == {f"lr-{n:02d}": RunState.SUCCEEDED for n in (1, 2, 3)}, f"killed at {at}"
        assert place.world.census() == []
        check_fleet(place)
        return killed
    finally:
        place.close()


KILLS_EVERY = 61


@pytest.mark.long
def test_a_command_that_is_killed_at_any_call_goes_on_when_it_is_typed_again() -> None:
    at = 5
    while lived_through(at, after=at % 2 == 0):
        at += KILLS_EVERY
    assert at > 5 * KILLS_EVERY
