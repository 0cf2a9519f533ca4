"""A command sleeps for longer than its lease lasts, as on a laptop that is closed, and another machine works on
its disk meanwhile: whoever is late takes nothing from the other one, and says why it ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.support.crashing import Sleep, make_crashing
from tests.support.disk_cases import (
    COPY,
    DISK,
    ONE_HOST,
    PATH,
    RULES,
    attach,
    check_copy,
    copy,
    is_written,
    listed,
    make_written,
    mounted,
)
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.soak import soak
from tests.support.stories import make_ready
from tpuctl.disks.leases import lease_master
from tpuctl.disks.use import leave_disk, use_disk
from tpuctl.errors import TpuctlError
from tpuctl.model.timeouts import LEASE_TTL_S
from tpuctl.slices.enrollment import enroll_machine
from tpuctl.state.leases import acquire, take_lease

Command = Callable[[MemoryServices], None]
LATE = "another tpuctl has worked on disk data meanwhile"
pytestmark = pytest.mark.slow


def detach(services: MemoryServices) -> None:
    leave_disk(services, DISK, to="dev", detached=True)


def clone(services: MemoryServices) -> None:
    copy(services, to="big")


def attach_again(services: MemoryServices) -> None:
    detach(services)
    attach(services)


def move(services: MemoryServices) -> None:
    """Now another host writes it."""
    if listed_at(services, "dev-1"):
        detach(services)
    use_disk(services, RULES, DISK, to="two", rw=True, path="", mounted=True, dry_run=False)


def take_out(services: MemoryServices) -> None:
    """The copy is made and left again."""
    clone(services)
    leave_disk(services, COPY, to="big", detached=True)


def listed_at(services: MemoryServices, node: str) -> list[str]:
    found = services.cloud.find_node("us-central2-b", node)
    return [each.name for each in found.data_disks]


def sleeping(place: MemoryPlace, command: Command, other: Command, at: int) -> tuple[bool, str]:
    """Whether a process of `command` slept after its changing call number `at`, while another machine did
    something else; and how it ended."""
    slept: list[float] = []

    def meanwhile() -> None:
        place.clock.advance(LEASE_TTL_S + 1.0)
        try:
            other(place.machine("server"))
        except TpuctlError as error:
            raise AssertionError("the other one is not alone") from error
        slept.append(place.clock.now())

    services = place.machine(process=2)
    make_crashing(services, Sleep(at, meanwhile, after=True))
    try:
        command(services)
    except TpuctlError as error:
        return bool(slept), error.message
    return bool(slept), ""


def each_sleep(
    command: Command, other: Command, check: Callable[[MemoryPlace, bool], None], *, every: int = 1
) -> list[str]:
    """How the late one ended, for each call after which it sleeps. `check` hears whether it was too late."""
    ends = []
    for at in itertools.count(1, every):
        place = MemoryPlace(shared_ids=True)
        try:
            enroll_machine(place.machine("server"))
            make_written(place.machine())
            make_ready(place.machine(), "two", **ONE_HOST)
            make_ready(place.machine(), "big")
            slept, said = sleeping(place, command, other, at)
            if not slept:
                return ends
            ends.append(said)
            assert LATE in said or "is not attached to dev, but to two" in said or not said
            assert place.hosts.disks.torn == [], f"after call {at}"
            assert place.hosts.disks.held() == [], f"after call {at}"
            check(place, bool(said))
        finally:
            place.close()
    raise AssertionError("it never ends")


def test_a_late_detach_leaves_what_another_machine_has_mounted_again() -> None:
    def check(place: MemoryPlace, late: bool) -> None:
        if late:
            assert (listed(place), mounted(place)) == ([DISK], [PATH])
            assert is_written(place)

    ends = each_sleep(detach, attach_again, check)
    assert sum(LATE in each for each in ends) >= 8


def test_a_late_detach_leaves_what_another_machine_has_given_to_another_slice() -> None:
    def check(place: MemoryPlace, late: bool) -> None:
        del late
        assert listed(place) == listed_at(place.machine(), "two-1") == [DISK]
        assert is_written(place)

    each_sleep(detach, move, check)


@pytest.mark.parametrize("every", [9, soak(1)])
def test_a_late_clone_leaves_the_copy_that_another_machine_has_made(every: int) -> None:
    def check(place: MemoryPlace, late: bool) -> None:
        del late
        check_copy(place)
        assert is_written(place)
        assert mounted(place) == [PATH] * 3

    ends = each_sleep(clone, clone, check, every=every)
    assert any(LATE in each for each in ends)


@pytest.mark.parametrize("every", [9, soak(1)])
def test_a_late_clone_attaches_nothing_that_another_machine_has_taken_out(every: int) -> None:
    def check(place: MemoryPlace, late: bool) -> None:
        check_copy(place)
        if late:
            assert listed(place) == [DISK]

    ends = each_sleep(clone, take_out, check, every=every)
    assert any(LATE in each for each in ends)


def fall_asleep(place: MemoryPlace, services: MemoryServices) -> None:
    with lease_master(services, DISK) as held, take_lease(held, "dev"):
        place.clock.advance(LEASE_TTL_S + 1.0)
        acquire(place.machine("server"), f"disks/{DISK}")
        with pytest.raises(TpuctlError, match=LATE):
            held.store.get("slices/dev")
        raise TpuctlError("what failed first")


def test_who_was_late_lets_its_slice_go_and_says_what_failed_first() -> None:
    place = MemoryPlace()
    try:
        services = place.machine()
        with pytest.raises(TpuctlError, match="what failed first"):
            fall_asleep(place, services)
        assert services.store.get("leases/dev").data["owner"] == ""
    finally:
        place.close()
