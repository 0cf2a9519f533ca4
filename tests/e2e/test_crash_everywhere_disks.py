"""Killed at any changing call of what is done with disks, left without an answer, or met by a rival: the same
command or a watchdog brings it to its end, and nothing is made twice or left attached."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.jobs import SPEC
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, Watched, make_ready, nodes, state_of
from tests.support.surviving import Repair, Story, cases, survive_all
from tpuctl.disks.clone import create_master
from tpuctl.disks.rules import DiskRules
from tpuctl.disks.use import leave_disk, use_disk
from tpuctl.model.disks import DiskMode, DiskRequest
from tpuctl.model.records import SliceState
from tpuctl.model.shipped_files import load_disk_rules
from tpuctl.model.slice_spec import DiskRef
from tpuctl.runs.take_down import take_down
from tpuctl.state.repository import get_slice

DISK, PATH = "data", "/mnt/data"
ONE_HOST = {"accelerator_type": "v4-8", "hosts": 1, "chips": 4}
RULES = DiskRules(load_disk_rules())


def make_disk(services: MemoryServices) -> None:
    create_master(services, RULES, DiskRequest(DISK, SPEC.zone, "pd-balanced", 10, {}), DISK)


def attach(services: MemoryServices) -> None:
    use_disk(services, RULES, DISK, to="dev", rw=True, path="", mounted=True, dry_run=False)


def listed(place: MemoryPlace) -> list[str]:
    """Disks in the lists of all nodes."""
    services = place.machine("server")
    return [disk.name for node in services.cloud.list_nodes().items for disk in node.data_disks]


def mounted(place: MemoryPlace) -> list[str]:
    return [str(row["path"]) for host in place.hosts.all() for row in host.mounts]


def check_one(place: MemoryPlace) -> None:
    """There is the one disk, and a record of it."""
    services = place.machine("server")
    assert [each.name for each in services.disks.list_disks().items] == [DISK]


class Attach:
    """A disk that is there is attached and mounted."""

    watched = False
    lasting = True

    def prepare(self, place: MemoryPlace) -> None:
        services = place.machine()
        make_disk(services)
        make_ready(services, "dev", **ONE_HOST)

    def command(self, services: MemoryServices) -> None:
        attach(services)

    def check(self, place: MemoryPlace) -> None:
        check_one(place)
        assert listed(place) == [DISK]
        assert mounted(place) == [PATH]
        assert get_slice(place.machine("server"), "dev").record.spec.disks == (
            DiskRef(DISK, PATH, DiskMode.READ_WRITE),
        )


class Detach(Attach):
    """It is taken from its host."""

    lasting = False

    def prepare(self, place: MemoryPlace) -> None:
        super().prepare(place)
        attach(place.machine())

    def command(self, services: MemoryServices) -> None:
        leave_disk(services, DISK, to="dev", detached=True)

    def check(self, place: MemoryPlace) -> None:
        check_one(place)
        assert listed(place) == []
        assert mounted(place) == []
        assert get_slice(place.machine("server"), "dev").record.spec.disks == ()


class Down(Detach):
    """Its slice goes, and it stays."""

    watched = True
    lasting = True

    def command(self, services: MemoryServices) -> None:
        take_down(services, "dev", deadline=services.clock.now() + HOUR)

    def check(self, place: MemoryPlace) -> None:
        check_one(place)
        assert state_of(place, "dev") is SliceState.GONE
        assert nodes(place) == []


class Recovery(Watched):
    """Its slice is preempted, and comes back with it."""

    minutes = 15

    def begin(self, place: MemoryPlace) -> None:
        services = place.machine()
        make_disk(services)
        make_ready(services, "dev", **ONE_HOST)
        attach(services)
        place.world.preempt("dev-1")

    def check(self, place: MemoryPlace) -> None:
        check_one(place)
        assert state_of(place, "dev") is SliceState.READY
        assert nodes(place) == ["dev-2"]
        assert (listed(place), mounted(place)) == ([DISK], [PATH])


STORIES: dict[str, Callable[[], Story]] = {
    "attach": Attach,
    "down": Down,
    "pass: recovery": Recovery,
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "repair", "sample"), cases(STORIES))
def test_every_accident_of_what_is_done_with_disks_is_survived(name: str, repair: Repair, sample: bool) -> None:
    assert survive_all(STORIES[name], repair, sample=sample) == []
