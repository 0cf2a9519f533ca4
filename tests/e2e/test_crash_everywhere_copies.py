"""Killed at any changing call of what makes and removes copies of a disk that is written meanwhile, left
without an answer, or met by a rival: the same command comes to its end with one copy of one moment, and its
master goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.disk_cases import (
    COPY,
    DISK,
    ELSEWHERE,
    PATH,
    RULES,
    ZONE,
    check_copy,
    check_recorded,
    copy,
    disks,
    is_written,
    listed,
    make_written,
    mounted,
    snapshots,
)
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, Watched, make_ready, nodes, state_of
from tests.support.surviving import Repair, Story, cases, survive_all
from tpuctl.disks.clone import clone
from tpuctl.disks.make import find_record
from tpuctl.disks.remove import remove_disk, unused_copies
from tpuctl.disks.use import leave_disk, repair_disk
from tpuctl.model.records import SliceState
from tpuctl.model.requests import CloneRequest
from tpuctl.runs.take_down import take_down

OWN = "mine"


class Clone:
    """A slice of two hosts reads a copy."""

    watched = False
    lasting = True
    readers = 2
    made = (DISK, COPY)

    def prepare(self, place: MemoryPlace) -> None:
        make_written(place.machine())
        make_ready(place.machine(), "big")

    def command(self, services: MemoryServices) -> None:
        copy(services, to="big")

    def check(self, place: MemoryPlace) -> None:
        check_copy(place)
        assert is_written(place)
        assert (disks(place), snapshots(place)) == (sorted(self.made), [])
        assert sorted(listed(place)) == sorted(self.made if self.readers else [DISK])
        assert mounted(place) == [PATH] * (1 + self.readers)


class CrashConsistent(Clone):
    """Nothing is held still; the copy is repaired where its master is."""

    def command(self, services: MemoryServices) -> None:
        copy(services, to="big", crash_consistent=True)


class Apart(Clone):
    """A copy with a name, for no slice."""

    readers = 0
    made = (DISK, OWN)

    def prepare(self, place: MemoryPlace) -> None:
        make_written(place.machine())

    def command(self, services: MemoryServices) -> None:
        copy(services, zone=ZONE, name=OWN)

    def check(self, place: MemoryPlace) -> None:
        super().check(place) if self.made == (DISK, COPY) else self.check_own(place)

    def check_own(self, place: MemoryPlace) -> None:
        check_copy(place, OWN)
        assert is_written(place)
        assert (disks(place), snapshots(place), listed(place)) == (sorted(self.made), [], [DISK])


class Writable(Apart):
    """A master of its own."""

    def command(self, services: MemoryServices) -> None:
        copy(services, name=OWN, rw=True)


class Snapshot(Apart):
    """No disk, a snapshot alone; the same again makes another one, so it is asked for until there is one."""

    made = (DISK,)

    def command(self, services: MemoryServices) -> None:
        found = find_record(services, COPY)
        if found is None or not found.complete:
            copy(services, snapshot_only=True)

    def check(self, place: MemoryPlace) -> None:
        check_copy(place)
        assert is_written(place)
        assert (disks(place), snapshots(place), listed(place)) == ([DISK], [f"{COPY}-s"], [DISK])


class FarAway(Apart):
    """A copy of a copy in another zone, by a snapshot."""

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        copy(place.machine(), zone=ZONE)

    def command(self, services: MemoryServices) -> None:
        clone(services, RULES, CloneRequest(COPY, zone=ELSEWHERE))

    def check(self, place: MemoryPlace) -> None:
        there = f"{COPY}-{ELSEWHERE}"
        check_copy(place, there)
        assert (disks(place), snapshots(place)) == ([DISK, COPY, there], [f"{COPY}-s"])


class Collect(Apart):
    """Of two copies one goes, with its snapshot."""

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        copy(place.machine(), zone=ELSEWHERE)
        copy(place.machine(), zone=ZONE)

    def command(self, services: MemoryServices) -> None:
        for each in unused_copies(services, 1).records:
            remove_disk(services, each.name)

    def check(self, place: MemoryPlace) -> None:
        check_recorded(place)
        assert (disks(place), snapshots(place)) == ([DISK, "data-g2"], [])


class DetachCopy(Clone):
    """All hosts lose it, and it stays."""

    readers = 0
    made = (DISK, COPY)

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        copy(place.machine(), to="big")

    def command(self, services: MemoryServices) -> None:
        leave_disk(services, COPY, to="big", detached=True)


class RepairCopy(DetachCopy):
    """Its journal is replayed where its master is written."""

    lasting = False

    def prepare(self, place: MemoryPlace) -> None:
        make_written(place.machine())
        copy(place.machine(), zone=ZONE)

    def command(self, services: MemoryServices) -> None:
        repair_disk(services, RULES, COPY, on="dev", dry_run=False)


class DownOfReaders(DetachCopy):
    """Its slice goes."""

    watched = True

    def command(self, services: MemoryServices) -> None:
        take_down(services, "big", deadline=services.clock.now() + HOUR)

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        assert state_of(place, "big") is SliceState.GONE


class Recovery(Watched):
    """Its slice is preempted, and comes back with it."""

    minutes = 15

    def begin(self, place: MemoryPlace) -> None:
        make_written(place.machine())
        make_ready(place.machine(), "big")
        copy(place.machine(), to="big")
        place.world.preempt("big-1")

    def check(self, place: MemoryPlace) -> None:
        check_copy(place)
        assert is_written(place)
        assert state_of(place, "big") is SliceState.READY
        assert nodes(place) == ["big-2", "dev-1"]
        assert mounted(place) == [PATH] * 3


STORIES: dict[str, Callable[[], Story]] = {
    "clone": Clone,
    "clone --crash-consistent": CrashConsistent,
    "clone --name": Apart,
    "clone --rw": Writable,
    "clone of a clone": FarAway,
    "snapshot": Snapshot,
    "gc": Collect,
    "detach of a copy": DetachCopy,
    "repair": RepairCopy,
    "down of readers": DownOfReaders,
    "pass: recovery of readers": Recovery,
}
RARE = ("clone --crash-consistent", "clone --rw", "clone of a clone", "pass: recovery of readers")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "repair", "sample"), cases(STORIES, rare=RARE))
def test_every_accident_of_what_is_done_with_copies_is_survived(
    name: str, repair: Repair, sample: bool
) -> None:
    assert survive_all(STORIES[name], repair, sample=sample) == []
