"""What a copy that was killed, or made before, means for the command that comes next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.crashing import Crash, Crashing, CrashPoint
from tests.support.disk_cases import DISK, check_copy, copy, disks, listed, make_written, mounted, snapshots
from tests.support.memory.services import MemoryPlace
from tpuctl.disks.use import leave_disk
from tpuctl.errors import UsageError


@pytest.fixture
def place() -> Iterator[MemoryPlace]:
    made = MemoryPlace(shared_ids=True)
    yield made
    made.close()


@pytest.mark.parametrize("detached", [True, False])
def test_a_disk_leaves_its_host_at_once_although_a_clone_that_was_killed_holds_it(
    place: MemoryPlace, detached: bool
) -> None:
    make_written(place.machine())
    killed = place.machine(process=2)
    point = CrashPoint(1)
    killed.disks = Crashing(killed.disks, point, lambda name, _: name == "create_disk")
    killed.remote = Crashing(killed.remote, point, lambda *_: point.dead)
    killed.store = Crashing(killed.store, point, lambda *_: point.dead)
    with pytest.raises(Crash):
        copy(killed, zone="us-central2-b")
    assert len(place.hosts.disks.held()) == 1
    before = place.clock.now()
    leave_disk(place.machine(process=3), DISK, to="dev", detached=detached)
    assert place.clock.now() - before < 60.0
    assert place.hosts.disks.held() == []
    assert (listed(place), mounted(place)) == ([] if detached else [DISK], [])
    copy(place.machine(process=4), zone="us-central2-b")
    check_copy(place)


def test_a_snapshot_is_not_taken_for_an_older_one_that_has_its_name(place: MemoryPlace) -> None:
    make_written(place.machine())
    copy(place.machine(), snapshot_only=True, name="before")
    with pytest.raises(UsageError, match="there is a disk before already") as refused:
        copy(place.machine(), snapshot_only=True, name="before")
    assert refused.value.hint == "another --name"
    assert (disks(place), snapshots(place)) == ([DISK], ["before-s"])
