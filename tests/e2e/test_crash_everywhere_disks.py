"""Killed at any changing call of what is done with disks, left without an answer, or met by a rival: the same
command or a watchdog brings it to its end, and nothing is made twice, left attached, held or lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.disk_cases import (
    DISK,
    ONE_HOST,
    PATH,
    RULES,
    attach,
    check_recorded,
    content,
    disks,
    is_written,
    listed,
    make_disk,
    make_written,
    mounted,
)
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, Watched, make_ready, nodes, state_of
from tests.support.surviving import Repair, Story, cases, survive_all
from tpuctl.disks.make import find_record, get_record
from tpuctl.disks.remove import remove_disk
from tpuctl.disks.resize import resize_disk
from tpuctl.disks.throughput import set_throughput
from tpuctl.disks.use import leave_disk, mount_disk
from tpuctl.model.disks import DiskMode
from tpuctl.model.records import SliceState
from tpuctl.model.refs import DiskRef
from tpuctl.runs.take_down import take_down
from tpuctl.state.repository import get_slice


def wanted(place: MemoryPlace) -> tuple[DiskRef, ...]:
    return get_slice(place.machine("server"), "dev").record.spec.disks


class Create:
    """A disk is made."""

    watched = False
    lasting = True

    def prepare(self, place: MemoryPlace) -> None:
        """Nothing is there."""

    def command(self, services: MemoryServices) -> None:
        make_disk(services)

    def check(self, place: MemoryPlace) -> None:
        check_recorded(place)
        assert disks(place) == [DISK]


class Attach(Create):
    """A disk that is there is attached and mounted."""

    def prepare(self, place: MemoryPlace) -> None:
        services = place.machine()
        make_disk(services)
        make_ready(services, "dev", **ONE_HOST)

    def command(self, services: MemoryServices) -> None:
        attach(services)

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        assert (listed(place), mounted(place)) == ([DISK], [PATH])
        assert is_written(place)
        assert wanted(place) == (DiskRef(DISK, PATH, DiskMode.READ_WRITE),)


class Detach(Create):
    """It is taken from its host."""

    def prepare(self, place: MemoryPlace) -> None:
        make_written(place.machine())

    def command(self, services: MemoryServices) -> None:
        leave_disk(services, DISK, to="dev", detached=True)

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        assert (listed(place), mounted(place)) == ([], [])
        assert wanted(place) == ()


class Umount(Detach):
    """It is unmounted, and stays attached."""

    def command(self, services: MemoryServices) -> None:
        leave_disk(services, DISK, to="dev", detached=False)

    def check(self, place: MemoryPlace) -> None:
        Create.check(self, place)
        assert (listed(place), mounted(place)) == ([DISK], [])
        assert wanted(place) == ()


class Mount(Attach):
    """It was unmounted, and is mounted again."""

    def prepare(self, place: MemoryPlace) -> None:
        make_written(place.machine())
        leave_disk(place.machine(), DISK, to="dev", detached=False)

    def command(self, services: MemoryServices) -> None:
        mount_disk(services, DISK, to="dev", path="")


class Resize(Attach):
    """It becomes larger with its file system, while it is mounted."""

    def prepare(self, place: MemoryPlace) -> None:
        make_written(place.machine())

    def command(self, services: MemoryServices) -> None:
        resize_disk(services, DISK, 20, dry_run=False)

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        found = content(place, DISK)
        assert (found.size_gib, found.fs_gib) == (20, 20)
        record = get_record(place.machine("server"), DISK)
        assert record.request.size_gib == 20


class Throughput(Create):
    """It gives its readers more, which can be changed once in six hours."""

    def prepare(self, place: MemoryPlace) -> None:
        make_disk(place.machine(), kind="hyperdisk-ml", throughput_mib_s=400)
        place.clock.advance(7 * HOUR)

    def command(self, services: MemoryServices) -> None:
        set_throughput(services, RULES, DISK, 600, dry_run=False)

    def check(self, place: MemoryPlace) -> None:
        super().check(place)
        [disk] = place.machine("server").disks.list_disks().items
        record = get_record(place.machine("server"), DISK)
        assert (disk.throughput_mib_s, record.request.throughput_mib_s) == (600, 600)
        assert record.throughput_at > 0.0


class Remove(Create):
    """It is deleted."""

    def prepare(self, place: MemoryPlace) -> None:
        make_disk(place.machine())

    def command(self, services: MemoryServices) -> None:
        if find_record(services, DISK) is not None:
            remove_disk(services, DISK)

    def check(self, place: MemoryPlace) -> None:
        assert disks(place) == []
        assert find_record(place.machine("server"), DISK) is None


class Down(Detach):
    """Its slice goes, and it stays."""

    watched = True

    def command(self, services: MemoryServices) -> None:
        take_down(services, "dev", deadline=services.clock.now() + HOUR)

    def check(self, place: MemoryPlace) -> None:
        Create.check(self, place)
        assert (listed(place), mounted(place)) == ([], [])
        assert state_of(place, "dev") is SliceState.GONE
        assert nodes(place) == []


class Recovery(Watched):
    """Its slice is preempted, and comes back with it."""

    minutes = 15

    def begin(self, place: MemoryPlace) -> None:
        make_written(place.machine())
        place.world.preempt("dev-1")

    def check(self, place: MemoryPlace) -> None:
        check_recorded(place)
        assert state_of(place, "dev") is SliceState.READY
        assert nodes(place) == ["dev-2"]
        assert (listed(place), mounted(place)) == ([DISK], [PATH])


STORIES: dict[str, Callable[[], Story]] = {
    "create": Create,
    "attach": Attach,
    "detach": Detach,
    "umount": Umount,
    "mount": Mount,
    "resize": Resize,
    "throughput": Throughput,
    "rm": Remove,
    "down": Down,
    "pass: recovery": Recovery,
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "repair", "sample"), cases(STORIES))
def test_every_accident_of_what_is_done_with_disks_is_survived(name: str, repair: Repair, sample: bool) -> None:
    assert survive_all(STORIES[name], repair, sample=sample) == []
