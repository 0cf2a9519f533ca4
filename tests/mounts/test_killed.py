"""`mount add` and `mount rm` killed before and after each of their changes, on hosts in memory: no host has a
mount that nobody can name, and the opposite command or `mount check --heal` comes to its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.crashing import Crash, CrashPoint, make_crashing
from tests.support.jobs import bring_up
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.errors import NotFoundError, PartialError
from tpuctl.model.refs import MountRef
from tpuctl.mounts.spec import MountRequest
from tpuctl.mounts.use import add_mount, check_mounts, heal_mounts, remove_mount
from tpuctl.state.repository import get_slice

pytestmark = pytest.mark.slow

PATH = "/mnt/b"
FULL = "/mnt/full"
"""Has files on one host."""


class Lab:
    """A slice of two hosts, one process after the other on one machine, and what agents do about buckets."""

    def __init__(self) -> None:
        self.place = MemoryPlace(shared_ids=True)
        self._processes = itertools.count(1)
        bring_up(self.process(), "big")
        self.place.hosts.all()[1].full.add(FULL)

    def process(self) -> MemoryServices:
        return self.place.machine(process=next(self._processes))

    def on_hosts(self) -> list[set[tuple[str, str]]]:
        hosts = self.place.hosts.all()
        return [{(path, str(each["digest"])) for path, each in host.buckets.items()} for host in hosts]

    def known(self) -> tuple[MountRef, ...]:
        return get_slice(self.process(), "big").record.spec.mounts

    def is_settled(self) -> bool:
        """All hosts have what is known, as it is known, and nothing else."""
        services = self.process()
        rows = check_mounts(services, get_slice(services, "big").record)
        paths = {each.path for each in self.known()}
        return all(row["well"] for row in rows) and all({p for p, _ in has} == paths for has in self.on_hosts())


@contextmanager
def opened() -> Iterator[Lab]:
    lab = Lab()
    try:
        yield lab
    finally:
        lab.place.close()


Command = Callable[[MemoryServices], object]


def add(path: str, **said: str) -> Command:
    def command(services: MemoryServices) -> None:
        record = get_slice(services, "big").record
        request = MountRequest(what=f"gs://bucket:{path}", **said)
        add_mount(services, record, request, program=None, dry_run=False)

    return command


def rm(path: str) -> Command:
    return lambda services: remove_mount(services, get_slice(services, "big").record, path, dry_run=False)


def heal(services: MemoryServices) -> None:
    heal_mounts(services, get_slice(services, "big").record)


def refused(command: Command, *errors: type[Exception]) -> Command:
    def refuses(services: MemoryServices) -> None:
        with pytest.raises(errors):
            command(services)

    return refuses


def or_nothing_there(command: Command) -> Command:
    """The killed command came to its end, or had not begun."""

    def may_find_nothing(services: MemoryServices) -> None:
        try:
            command(services)
        except NotFoundError:
            assert paths_of(services) == set()

    return may_find_nothing


def paths_of(services: MemoryServices) -> set[str]:
    return {each.path for each in get_slice(services, "big").record.spec.mounts}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("first", "killed", "then", "left"),
    [
        ((), add(PATH), or_nothing_there(rm(PATH)), set()),
        ((add(PATH),), add(PATH, ttl="7"), heal, {PATH}),
        ((add(PATH),), rm(PATH), add(PATH), {PATH}),
        ((add(PATH),), refused(add(FULL), PartialError), heal, {PATH}),
    ],
    ids=["add-rm", "change-heal", "rm-add", "refused-heal"],
)
def test_killed_at_each_change_it_comes_to_its_end(
    first: tuple[Command, ...], killed: Command, then: Command, left: set[str], after: bool
) -> None:
    for at in itertools.count(1):
        with opened() as lab:
            for command in first:
                command(lab.process())
            services, point = lab.process(), CrashPoint(at, after=after)
            make_crashing(services, point)
            try:
                killed(services)
                break
            except Crash:
                stays = {each.path for each in lab.known() if not each.leaving}  # a pass brings these
                for has in lab.on_hosts():
                    assert stays <= {path for path, _ in has} <= {each.path for each in lab.known()}
            then(lab.process())
            assert {each.path for each in lab.known()} == left, at
            assert not any(each.leaving for each in lab.known())
            assert lab.is_settled(), (at, lab.on_hosts())
    assert at > 5


def test_hosts_that_have_it_otherwise_or_not_at_all_get_it_and_others_are_left_alone() -> None:
    with opened() as lab:
        add(PATH)(lab.process())
        otherwise = lab.on_hosts()[0]
        add(PATH, ttl="7")(lab.process())
        asked, [first, second] = lab.on_hosts()[0], lab.place.hosts.all()
        assert otherwise != asked
        for has, missing in ((first, second), (second, first)):
            missing.buckets.clear()
            jobs = len(has.commands_seen)
            add(PATH, ttl="7")(lab.process())
            assert lab.on_hosts() == [asked, asked]
            assert not any(" provision" in each for each in has.commands_seen[jobs:])
