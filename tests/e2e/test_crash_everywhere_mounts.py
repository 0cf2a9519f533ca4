"""Killed at any changing call of what is done with mounts of buckets, left without an answer, or met by a
rival: the same command or a watchdog brings it to its end, and no host has a mount that nobody asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.disk_cases import check_recorded, make_written
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, Watched, make_ready, nodes, state_of
from tests.support.surviving import Repair, Story, cases, survive_all
from tpuctl.errors import NotFoundError
from tpuctl.model.records import SliceState
from tpuctl.mounts.spec import MountRequest
from tpuctl.mounts.use import add_mount, remove_mount
from tpuctl.runs.take_down import take_down
from tpuctl.state.repository import get_slice

PATH = "/mnt/b"


def add(services: MemoryServices, name: str = "big", **said: str) -> None:
    record = get_slice(services, name).record
    request = MountRequest(what=f"gs://bucket:{PATH}", **said)
    add_mount(services, record, request, program=None, dry_run=False)


def on_hosts(place: MemoryPlace) -> list[list[str]]:
    return [sorted(host.buckets) for host in place.hosts.all()]


class Add:
    """A bucket is mounted on both hosts."""

    watched = False
    lasting = True
    paths = (PATH,)

    def prepare(self, place: MemoryPlace) -> None:
        make_ready(place.machine(), "big")

    def command(self, services: MemoryServices) -> None:
        add(services)

    def check(self, place: MemoryPlace) -> None:
        mounts = get_slice(place.machine("server"), "big").record.spec.mounts
        assert [each.path for each in mounts] == list(self.paths)
        assert not any(each.leaving for each in mounts)
        assert on_hosts(place) == [list(self.paths)] * 2


class Change(Add):
    """It is mounted otherwise than before."""

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        add(place.machine())

    def command(self, services: MemoryServices) -> None:
        add(services, ttl="7")

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        assert len({str(host.buckets[PATH]["digest"]) for host in place.hosts.all()}) == 1


class Remove(Change):
    """It is unmounted."""

    paths = ()

    def command(self, services: MemoryServices) -> None:
        try:
            remove_mount(services, get_slice(services, "big").record, PATH, dry_run=False)
        except NotFoundError:
            assert get_slice(services, "big").record.spec.mounts == ()

    def check(self, place: MemoryPlace) -> None:
        Add.check(self, place)


class Down(Change):
    """Its slice goes; what was open is uploaded before."""

    watched = True

    def command(self, services: MemoryServices) -> None:
        take_down(services, "big", deadline=services.clock.now() + HOUR)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.GONE
        assert nodes(place) == []


class Recovery(Watched):
    """Its slice is preempted, and comes back with a bucket and a disk."""

    minutes = 15

    def begin(self, place: MemoryPlace) -> None:
        make_written(place.machine())
        add(place.machine(), "dev")
        place.world.preempt("dev-1")

    def check(self, place: MemoryPlace) -> None:
        check_recorded(place)
        assert state_of(place, "dev") is SliceState.READY
        assert nodes(place) == ["dev-2"]
        assert on_hosts(place) == [[PATH]]
        assert [len(host.mounts) for host in place.hosts.all()] == [1]


STORIES: dict[str, Callable[[], Story]] = {
    "mount add": Add,
    "mount add otherwise": Change,
    "mount rm": Remove,
    "down": Down,
    "pass: recovery": Recovery,
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "repair", "sample"), cases(STORIES, rare=["pass: recovery"]))
def test_every_accident_of_what_is_done_with_mounts_is_survived(
    name: str, repair: Repair, sample: bool
) -> None:
    assert survive_all(STORIES[name], repair, sample=sample) == []
