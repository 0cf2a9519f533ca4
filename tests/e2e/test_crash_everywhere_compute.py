"""`test_crash_everywhere` with slices of Compute Engine, which are up to three objects."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.compute_slices import GROUP, INSTANCE, SPECS, ZONE, objects, objects_of, preempt
from tests.support.crashing import Crash, CrashPoint
from tests.support.disk_cases import RULES
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, Up, Watched, begin_run, long_program, make_ready, state_of
from tests.support.surviving import Repair, Story, cases, survive_all
from tpuctl.disks.clone import clone, create_master
from tpuctl.disks.use import leave_disk, use_disk
from tpuctl.model.disks import DataDisk, DiskMode, DiskRequest
from tpuctl.model.records import RunState, SliceState
from tpuctl.model.requests import CloneRequest
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
    """A slice of which a host was preempted comes back with its run."""

    minutes = 20

    def __init__(self, kind: str, action: str) -> None:
        self.kind = kind
        self.action = action

    def begin(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        make_ready(services, "big", **(GROUP if self.kind == "group" else INSTANCE))
        begin_run(services)
        preempt(place, "big-1", self.action)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.READY
        assert objects(place) == objects_of("big-2", SPECS[self.kind].hosts)
        [run] = list_runs(place.machine("server"))
        assert (run.state, run.preemptions, run.failures) == (RunState.RUNNING, 1, 0)


class AttachToGroup:
    """The copy of a disk is attached to each host of a group, one after the other, and mounted."""

    watched = False
    lasting = True

    def prepare(self, place: MemoryPlace) -> None:
        services = place.machine()
        make_ready(services, "dev", **INSTANCE)
        make_ready(services, "big", **GROUP)
        create_master(services, RULES, DiskRequest("data", ZONE, "hyperdisk-balanced", 10, {}), "data")
        use_disk(services, RULES, "data", to="dev", rw=True, path="", mounted=True, dry_run=False)
        clone(services, RULES, CloneRequest("data", type="hyperdisk-ml"))

    def command(self, services: MemoryServices) -> None:
        use_disk(services, RULES, "data-g1", to="big", rw=False, path="", mounted=True, dry_run=False)

    def check(self, place: MemoryPlace) -> None:
        assert attached(place, "big-1") == (DataDisk(ZONE, "data-g1", DiskMode.READ_ONLY),)
        assert [len(host.mounts) for host in place.hosts.all() if host.hostname != "dev-1"] == [1, 1]


class DetachFromGroup(AttachToGroup):
    """It is taken from each host."""

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        super().command(place.machine())

    def command(self, services: MemoryServices) -> None:
        leave_disk(services, "data-g1", to="big", detached=True)

    def check(self, place: MemoryPlace) -> None:
        assert attached(place, "big-1") == ()
        assert [host.mounts for host in place.hosts.all() if host.hostname != "dev-1"] == [[], []]


def attached(place: MemoryPlace, name: str) -> tuple[DataDisk, ...]:
    """The data disks of a slice; one that not all hosts have says which do."""
    found = place.machine("server").compute_tpus.find_node(ZONE, name)
    return () if found is None else found.data_disks


def current(place: MemoryPlace) -> str:
    life = get_slice(place.machine("server"), "big").record.incarnation
    return "" if life is None else life.cloud_name


STORIES: dict[str, Callable[[], Story]] = {
    "up a group": lambda: UpCompute("group"),
    "up an instance": lambda: UpCompute("instance"),
    "down a group": lambda: DownCompute("group"),
    "down an instance": lambda: DownCompute("instance"),
    "attach to a group": AttachToGroup,
    "detach from a group": DetachFromGroup,
    "pass: recovery of a group": lambda: RecoveryCompute("group", "DELETE"),
    "pass: recovery of an instance": lambda: RecoveryCompute("instance", "STOP"),
}


SAMPLED = ("up a group", "down a group")
"""Of which CI lives through a sample; an instance is one object, as a node is."""
CASES = [each for each in cases(STORIES, rare=STORIES) if each.values[0] in SAMPLED or not each.values[2]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "repair", "sample"), CASES)
def test_every_accident_with_compute_engine_is_survived(name: str, repair: Repair, sample: bool) -> None:
    assert survive_all(STORIES[name], repair, sample=sample) == []


@pytest.mark.parametrize("story", [AttachToGroup, DetachFromGroup])
def test_a_disk_that_a_kill_left_on_one_host_of_two_is_shown_there_and_the_same_command_goes_on(
    story: type[AttachToGroup],
) -> None:
    place, asked = MemoryPlace(), story()
    asked.prepare(place)
    killed, second = place.machine(process=2), CrashPoint(2)
    killed.compute_tpus.put_around(second.around)
    with pytest.raises(Crash):
        asked.command(killed)
    having = ("0",) if story is AttachToGroup else ("1",)
    assert attached(place, "big-1") == (DataDisk(ZONE, "data-g1", DiskMode.READ_ONLY, having),)
    asked.command(place.machine(process=3))
    asked.check(place)
    place.close()
