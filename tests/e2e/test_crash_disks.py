"""Commands of disks, killed with kill -9 before and after each of their changes, on isolated hosts.

The same command typed again comes to its end, nothing is left without an owner, and no byte is lost.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from tests.support.disk_lab import DISK, ZONE, DiskLab, check_lists, open_lab

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]
WRITERS = ("plain", "sqlite")
Words = tuple[str, ...]
TO_DEV = ("--to", "dev")
ATTACH, DETACH = ("disk", "attach", DISK, *TO_DEV), ("disk", "detach", DISK, *TO_DEV)
MOUNT, UMOUNT = ("disk", "mount", DISK, *TO_DEV), ("disk", "umount", DISK, *TO_DEV)
CLONE = ("disk", "clone", DISK, "--zone", ZONE)


@dataclass(frozen=True)
class Journey:
    """`words` are killed and typed again after `before`; `check` says that they came to their end, and `after`
    brings all back to where it was. `again`: typed once more they change nothing."""

    words: Words
    check: Callable[[DiskLab], object]
    before: Sequence[Words] = ()
    after: Sequence[Words] = ()
    again: bool = True


def mounted(lab: DiskLab) -> None:
    assert lab.is_mounted()
    lab.check_mounted("dev", orderly=True)


def left(lab: DiskLab) -> None:
    assert not lab.is_mounted()
    lab.check_image(orderly=True)


def unmounted(lab: DiskLab) -> None:
    assert not lab.is_mounted()


def collected(lab: DiskLab) -> None:
    assert copies(lab) == []
    mounted(lab)


def copies(lab: DiskLab) -> list[str]:
    return [str(row["name"]) for row in lab.session.json("disk", "ls") if row["generation"]]


GC = ("disk", "gc", "--keep", "0", "--yes")
JOURNEYS: dict[str, Journey] = {
    "attach": Journey(ATTACH, mounted, before=[DETACH]),
    "detach": Journey(DETACH, left, after=[ATTACH]),
    "mount": Journey(MOUNT, mounted, before=[UMOUNT]),
    "umount": Journey(UMOUNT, unmounted, after=[MOUNT]),
    "gc": Journey(GC, collected, before=[CLONE]),
    "down": Journey(
        ("down", "dev", "--yes"), lambda lab: lab.check_image(orderly=True), after=[("apply", "--yes")]
    ),
}


@pytest.fixture(scope="module")
def lab() -> Iterator[DiskLab]:
    with open_lab() as made:
        yield made


def kill_at(lab: DiskLab, journey: Journey, at: int, when: str) -> bool:
    """One kill, the same command again, and back; whether it was killed."""
    for words in journey.before:
        lab.type(*words)
    if lab.is_mounted():
        lab.write(*WRITERS, count=20)
    done = lab.session.type_killed(at, when, *journey.words)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    lab.type(*journey.words)
    journey.check(lab)
    check_owned(lab)
    if journey.again:
        before = len(lab.session.sim_journal())
        lab.type(*journey.words, status=None)
        assert len(lab.session.sim_journal()) == before, "typed once more, it changes the cloud"
    for words in journey.after:
        lab.type(*words)
    return done.returncode != 0


def check_owned(lab: DiskLab) -> None:
    """Whatever is in the cloud is in the list of disks."""
    rows = lab.session.json("disk", "ls")
    project = "/compute/v1/projects/sim-project"
    disks = lab.call("GET", f"{project}/zones/{ZONE}/disks").get("items", [])
    snapshots = lab.call("GET", f"{project}/global/snapshots").get("items", [])
    assert {each["name"] for each in disks} == {row["name"] for row in rows if row["status"] == "READY"}
    assert {each["name"] for each in snapshots} <= {row["snapshot"] for row in rows}


@pytest.mark.parametrize(
    ("name", "at", "when"),
    [("detach", 2, "after"), ("attach", 2, "before")],
)
def test_a_command_that_was_killed_comes_to_its_end(lab: DiskLab, name: str, at: int, when: str) -> None:
    assert kill_at(lab, JOURNEYS[name], at, when)


@pytest.mark.soak
@pytest.mark.parametrize("name", list(JOURNEYS))
def test_a_command_that_is_killed_anywhere_comes_to_its_end(name: str) -> None:
    with open_lab() as lab:
        for at in itertools.count(1):
            alive = [when for when in ("before", "after") if not kill_at(lab, JOURNEYS[name], at, when)]
            if alive:
                assert at > 1
                break
        check_lists(lab)
