"""What a copy that was killed, or made before, means for the command that comes next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.crashing import Crash, Crashing, CrashPoint, Sleep
from tests.support.disk_cases import (
    COPY,
    DISK,
    ONE_HOST,
    PATH,
    RULES,
    check_copy,
    copy,
    disks,
    listed,
    make_written,
    mounted,
    snapshots,
)
from tests.support.memory.services import MemoryPlace
from tests.support.stories import make_ready
from tpuctl.disks.follow import path_of
from tpuctl.disks.use import leave_disk, use_disk
from tpuctl.errors import UsageError
from tpuctl.state.repository import get_slice


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


def make_read_by_two(place: MemoryPlace) -> None:
    """A copy that two slices have, each at a path of its own."""
    make_written(place.machine())
    make_ready(place.machine(), "two", "three", **ONE_HOST)
    copy(place.machine(), zone="us-central2-b")
    for name in ("two", "three"):
        use_disk(
            place.machine(), RULES, COPY, to=name, rw=False, path=f"/mnt/{name}", mounted=True, dry_run=False
        )
    assert sorted(mounted(place)) == [PATH, "/mnt/three", "/mnt/two"]


def test_a_copy_whose_detach_was_killed_is_unmounted_before_its_hosts_lose_it(place: MemoryPlace) -> None:
    """The slice has forgotten by then where it has it, and another one has it elsewhere."""
    make_read_by_two(place)
    killed, point = place.machine(process=2), CrashPoint(1)
    killed.remote = Crashing(killed.remote, point, lambda *_: True)
    killed.store = Crashing(killed.store, point, lambda *_: point.dead)
    with pytest.raises(Crash):
        leave_disk(killed, COPY, to="two", detached=True)
    assert path_of(place.machine(), get_slice(place.machine(), "two").record, COPY) == ""
    leave_disk(place.machine(process=3), COPY, to="two", detached=True)
    assert place.hosts.disks.torn == []
    assert sorted(mounted(place)) == [PATH, "/mnt/three"]
    assert sorted(listed(place)) == [DISK, COPY]


def test_a_detach_that_somebody_interrupts_leaves_a_copy_where_the_slice_has_it(place: MemoryPlace) -> None:
    make_read_by_two(place)

    def interrupt() -> None:
        raise KeyboardInterrupt

    stopped = place.machine(process=2)
    stopped.remote = Crashing(stopped.remote, Sleep(1, interrupt), lambda *_: True)
    with pytest.raises(KeyboardInterrupt):
        leave_disk(stopped, COPY, to="two", detached=True)
    assert path_of(place.machine(), get_slice(place.machine(), "two").record, COPY) == "/mnt/two"
