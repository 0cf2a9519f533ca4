"""Several runs on one slice, each on a chip of its own, when something happens to the slice that they share."""

from __future__ import annotations

from tests.support.jobs import bring_up, limit, pass_until, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.model.records import RunState, SliceState
from tpuctl.model.refs import MountRef
from tpuctl.runs.follow import start_run
from tpuctl.state.repository import get_run, get_slice
from tpuctl.telemetry.observe import Observer
from tpuctl.views.top import take_frame

MOUNT = MountRef("sim-bucket", "/mnt/data", "train")


def begin_two(place: MemoryPlace, services: MemoryServices) -> list[str]:
    """The ids of two runs that go on for hours beside each other."""
    place.hosts.programs["main.py"] = scripted(36_000.0, lines=["working"])
    bring_up(services, "big", accelerator_type="v4-8", hosts=1, chips=4)
    return [start_run(services, submit(services, "big", "hours", chips="1", tags=(tag,)).id).id for tag in "ab"]


def states(services: MemoryServices, runs: list[str]) -> set[RunState]:
    return {get_run(services, run).record.state for run in runs}


def test_the_time_of_a_slice_ends_all_its_runs_before_it_goes(
    place: MemoryPlace, services: MemoryServices
) -> None:
    runs = begin_two(place, services)
    limit(services, "big", ttl_s=1800.0)
    pass_until(services, lambda: get_slice(services, "big").record.state is SliceState.GONE)
    assert states(services, runs) == {RunState.STOPPED}
    ends = [get_run(services, run).record.ended_at for run in runs]
    assert all(end is not None and end >= get_run(services, runs[0]).record.created_at + 1800.0 for end in ends)


def test_top_shows_the_newest_run_unless_another_is_named(place: MemoryPlace, services: MemoryServices) -> None:
    first, _ = begin_two(place, services)
    place.clock.advance(60.0)
    newest = start_run(services, submit(services, "big", "hours", chips="1", tags=("c",)).id).id
    with Observer(services) as observer:
        frames = [take_frame(services, observer, name) for name in ("big", first)]
    assert [(frame.run and frame.run.id, frame.others) for frame in frames] == [(newest, 2), (first, 2)]
    assert [len(frame.hosts) for frame in frames] == [1, 1]


def test_a_mount_that_a_slice_gets_disturbs_none_of_its_runs(
    place: MemoryPlace, services: MemoryServices
) -> None:
    runs = begin_two(place, services)
    bring_up(services, "big", accelerator_type="v4-8", hosts=1, chips=4, mounts=(MOUNT,))
    slice_ = get_slice(services, "big").record
    assert (slice_.state, slice_.spec.mounts) == (SliceState.READY, (MOUNT,))
    pass_until(services, lambda: services.clock.now() > slice_.created_at + 600.0)
    records = [get_run(services, run).record for run in runs]
    assert {(run.state, run.attempt.number if run.attempt else 0) for run in records} == {(RunState.RUNNING, 1)}
    third = start_run(services, submit(services, "big", "hours", chips="1", tags=("c",)).id)
    assert third.chips == (2,)


def test_a_preemption_is_charged_to_all_and_each_comes_back_on_its_own_chip(
    place: MemoryPlace, services: MemoryServices
) -> None:
    runs = begin_two(place, services)
    place.world.preempt("big-1")
    pass_until(
        services,
        lambda: all(
            (attempt := get_run(services, run).record.attempt) and attempt.number == 2 and attempt.started_at
            for run in runs
        ),
    )
    records = [get_run(services, run).record for run in runs]
    assert [(each.chips, each.preemptions, each.failures) for each in records] == [((0,), 1, 0), ((1,), 1, 0)]
