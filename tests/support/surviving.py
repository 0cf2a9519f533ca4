"""Stories, every accident that can happen to them at every call that changes something, and their repair.

`survive` lives through one story with one accident and repairs it, either by the same command typed again or by
passes of a watchdog on another machine alone; `accidents` names every accident there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Protocol

import pytest

from tests.support.crashing import Crash, CrashPoint, LostAnswer, Sleep, lose_answers, make_crashing
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.soak import long, soak
from tests.support.stories import Watched
from tpuctl.errors import PartialError, StaleRecordError, TransientError
from tpuctl.model.cloud import OWNER_LABEL
from tpuctl.model.records import Desired, SliceState
from tpuctl.slices.enrollment import enroll_machine
from tpuctl.state.repository import list_slices
from tpuctl.watch.reconciler import run_pass

PASSES_MIN, PASSES_MAX = 12, 90
"""A pass a minute: what looks settled may have something coming, and what is not settled after so many will not
be."""


class Story(Protocol):
    """One command, or the passes that take its place, and how to tell that it came to its end."""

    @property
    def watched(self) -> bool:
        """Whether a watchdog alone leaves nothing behind."""
        ...

    @property
    def lasting(self) -> bool:
        """Whether what it brings about stays, so that the command typed once more has nothing left to do."""
        ...

    def prepare(self, place: MemoryPlace) -> None:
        """What was before; nothing happens to it."""
        ...

    def command(self, services: MemoryServices) -> None:
        """What may be interrupted and typed again."""
        ...

    def check(self, place: MemoryPlace) -> None:
        """Asserts that everything is as the command promises."""
        ...


class Accident(StrEnum):
    BEFORE = "killed before"
    AFTER = "killed after"
    LOST = "answer lost"
    RIVAL = "a rival's pass in between"
    ASLEEP = "asleep while a rival is at work"
    """A laptop that is closed: longer than a lease lasts."""


class Repair(StrEnum):
    AGAIN = "typed again"
    PASSES = "passes only"
    """Nothing else repairs what a process did that woke up too late."""


KILLS_EVERY, OTHERS_EVERY = 5, 24
"""Of the kills before a call, and of the other accidents, a sample has one in so many."""
KILLS_MAX, OTHERS_MAX = 2, 1
"""So many of a kind are enough of a long story: most of its calls are those of one pass, again and again, and
stories that differ in one thing have their samples elsewhere; `make soak` has all."""


@dataclass(frozen=True)
class Place:
    """Where an accident happens: at the k-th changing call."""

    accident: Accident
    at: int


def accidents(make: Callable[[], Story], sample_of: Repair | None = None) -> Iterator[Place]:
    """Every accident that can happen to a story at each of its changing calls.

    The sample of a repair has the kills before every fifth call at most, and that of the other repair before
    others; killed after a call is, but for the time, killed before the next, so that of these it has the last
    one. Lost answers take turns between the repairs; both have everything at the last call, and a share of the
    others.
    """
    turn = None if sample_of is None else list(Repair).index(sample_of)
    calls, cloud_calls = _count(make)
    kills_every = max(KILLS_EVERY, calls // KILLS_MAX)
    others_every = max(OTHERS_EVERY, calls // OTHERS_MAX)
    for at in range(1, calls + 1):
        if turn is None or at == calls or (at + turn) % kills_every == 0:
            yield Place(Accident.BEFORE, at)
        if turn is None or at == calls:
            yield Place(Accident.AFTER, at)
        for number, accident in enumerate((Accident.RIVAL, Accident.ASLEEP), start=1):
            if turn is None or at == calls or (at + 2 * number + turn) % others_every == 0:
                yield Place(accident, at)
    for at in range(1, cloud_calls + 1):
        if turn is None or at == cloud_calls or (at + turn) % 2 == 0:
            yield Place(Accident.LOST, at)


@cache
def _count(make: Callable[[], Story]) -> tuple[int, int]:
    """How many changing calls a story has, and how many of them to the cloud; lived through once for both."""
    changes, answers = CrashPoint(), LostAnswer()
    place = MemoryPlace(shared_ids=True)
    try:
        enroll_machine(place.machine("server"))
        story = make()
        story.prepare(place)
        services = place.machine(process=2)
        make_crashing(services, changes)
        lose_answers(services, answers)
        story.command(services)
        story.check(place)
        return changes.count, answers.count
    finally:
        place.close()


def cases(stories: Mapping[str, Callable[[], Story]], *, rare: Collection[str] = ()) -> list[Any]:
    """(name, repair, sample) for a test of `stories`: a sample of their accidents, and in `make soak` all. Only
    CI has a sample of those that are `rare`.

    Passes of a watchdog are the same who ever types them: their sample has one repair.
    """
    found = []
    for name, make in stories.items():
        for repair in Repair:
            if repair is Repair.PASSES or not isinstance(make(), Watched):
                param = long if name in rare else pytest.param
                found.append(param(name, repair, True, id=f"{name}-{repair}"))
            found.append(soak(name, repair, False, id=f"{name}-{repair}-all"))
    return found


def survive_all(make: Callable[[], Story], repair: Repair, *, sample: bool = False) -> list[str]:
    """What went wrong, accident by accident: all of them are told, not the first."""
    failed = []
    for where in accidents(make, repair if sample else None):
        if where.accident is Accident.ASLEEP and repair is Repair.AGAIN:
            continue
        try:
            survive(make(), where, repair)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are tried, too
            failed.append(f"{where.accident} call {where.at}: {type(error).__name__}: {error}")
    return failed


def survive(story: Story, where: Place, repair: Repair) -> None:
    """Lives through a story with one accident, repairs it, and checks what came of it."""
    place = MemoryPlace(shared_ids=True)
    try:
        enroll_machine(place.machine("server"))
        story.prepare(place)
        first = place.machine(process=2)
        _endanger(place, first, where)
        with suppress(Crash, TransientError, PartialError, StaleRecordError):
            story.command(first)
        if repair is Repair.PASSES:
            pass_until_settled(place)
            if story.watched:
                check_fleet(place, overslept=where.accident is Accident.ASLEEP)
        story.command(place.machine(process=3))
        story.check(place)
        check_fleet(place, overslept=where.accident is Accident.ASLEEP)
        if story.lasting:
            before = changes_of(place)
            story.command(place.machine(process=4))
            assert changes_of(place) == before, "typed once more, it changes the cloud"
        check_left(place, dead=first.lease_owner)
    finally:
        place.close()


def _endanger(place: MemoryPlace, services: MemoryServices, where: Place) -> None:
    """Puts the accident in the way of this process."""

    def rival() -> None:
        for _ in range(5 if where.accident is Accident.ASLEEP else 1):
            if where.accident is Accident.ASLEEP:
                place.clock.advance(60.0)
            run_pass(place.machine("server"))

    if where.accident is Accident.LOST:
        lose_answers(services, LostAnswer(where.at))
    elif where.accident in {Accident.RIVAL, Accident.ASLEEP}:
        make_crashing(services, Sleep(where.at, rival))
    else:
        make_crashing(services, CrashPoint(where.at, after=where.accident is Accident.AFTER))


def pass_until_settled(place: MemoryPlace) -> None:
    """Passes of a watchdog on another machine, once a minute, until every slice is where it is to be; then
    nothing may be wrong although nobody types anything."""
    for number in range(PASSES_MAX):
        place.clock.advance(60.0)
        run_pass(place.machine("server"))
        if number >= PASSES_MIN and settled(place):
            break
    else:
        states = [(record.name, record.state) for record in list_slices(place.machine("server"))]
        raise AssertionError(f"passes do not settle it: {states}")


def settled(place: MemoryPlace) -> bool:
    """Whether every slice is ready, or gone, or waits for a person."""
    resting = {SliceState.REMOVED, SliceState.REFUSED}
    ends = {Desired.UP: {SliceState.READY} | resting, Desired.DOWN: {SliceState.GONE}}
    return all(record.state in ends[record.desired] for record in list_slices(place.machine("server")))


def check_fleet(place: MemoryPlace, *, overslept: bool = False) -> None:
    """Nothing billable without intent, nothing twice, and nothing deleted that was wanted and alive.

    `overslept`: a process fell asleep between its last look at the store and a create, which nothing can take
    back: what it makes is made twice over time, and must be gone again.
    """
    records = {record.name: record for record in list_slices(place.machine("server"))}
    for each in place.world.census():
        name = each.labels.get(OWNER_LABEL)
        if name is None:
            continue
        record = records.get(name)
        assert record is not None, f"{each.path.id} has no intent"
        assert record.state is not SliceState.GONE, f"{each.path.id} outlives its slice"
        assert record.incarnation is not None
        current = record.incarnation.cloud_name, record.incarnation.queued_name
        assert each.path.id.startswith(current), f"{each.path.id} stands beside {current[0]}"
    made = [entry for entry in place.world.journal.entries() if _made(entry)]
    names = [entry.resource for entry in made]
    assert overslept or len(names) == len(set(names)), f"made twice: {names}"


def check_left(place: MemoryPlace, *, dead: str) -> None:
    """Nobody waits for what is over: no lease has an owner but the process that died, whose lease nobody heeds;
    nothing is held still, and no disk was taken from a host that had it mounted."""
    store = place.machine("server").store
    leases = [each for each in store.list("leases/") if each.data["expires"] > store.now()]
    held = [each.key for each in leases if each.data["owner"] not in ("", dead)]
    assert held == [], f"leases are held: {held}"
    assert place.hosts.disks.held() == [], "a file system is held still"
    assert place.hosts.disks.torn == [], "a disk was taken from a host that had it mounted"


def _made(entry: Any) -> bool:
    return entry.method.endswith(".create") and entry.status in ("OK", "DROPPED")


def changes_of(place: MemoryPlace) -> list[tuple[str, str]]:
    """All calls that changed the cloud."""
    return [
        (entry.method, entry.resource)
        for entry in place.world.journal.entries()
        if entry.status in ("OK", "DROPPED") and not entry.method.startswith("sim.")
    ]
