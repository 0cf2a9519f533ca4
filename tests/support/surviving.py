"""Stories, every accident that can happen to them at every call that changes something, and what repairs them.

A story is lived through once. At each of its changing calls the test process forks, once for every accident that
can happen there: the child has the accident, repairs it, either by the same command typed again or by passes of
a watchdog on another machine alone, checks what came of it, and tells its parent, which goes on to the next call
without any. So what was before a call is lived through once, however many accidents happen at it.
"""

from __future__ import annotations

import gc
import os
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from tests.support.crashing import CLOUD_CHANGES, Crash, CrashPoint, LostAnswer, Point, Sleep, make_crashing
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.core.model import OWNER_LABEL
from tpuctl.core.records import Desired, SliceState
from tpuctl.errors import PartialError, StaleRecordError, TransientError
from tpuctl.workflows.documents import list_slices
from tpuctl.workflows.fleet import run_pass
from tpuctl.workflows.intents import enroll_machine

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


@dataclass(frozen=True)
class Ending:
    """What came of an accident at the `at`-th changing call; `trouble` is empty when all is well."""

    accident: Accident
    at: int
    call: str
    trouble: str

    def __str__(self) -> str:
        return f"{self.accident} call {self.at} ({self.call}): {self.trouble}"


def survive_all(make: Callable[[], Story], repair: Repair) -> list[Ending]:
    """Lives through a story with every accident at each of its changing calls."""
    place, story = MemoryPlace(cut_cable=True), make()
    roads = _Crossroads(place)
    try:
        enroll_machine(place.machine("server"))
        story.prepare(place)
        first = place.machine(process=2)
        make_crashing(first, roads)
        with suppress(Crash, TransientError, PartialError, StaleRecordError):
            story.command(first)
        if roads.accident is not None:
            _repair(place, story, roads.accident, repair)
        story.check(place)
    except BaseException:
        if roads.accident is None:
            raise
        roads.report(traceback.format_exc(limit=-4))
    finally:
        place.close()
    if roads.accident is not None:
        roads.report("")
    return roads.endings


def _repair(place: MemoryPlace, story: Story, accident: Accident, repair: Repair) -> None:
    overslept = accident is Accident.ASLEEP
    if repair is Repair.PASSES or overslept:
        # What a process did that woke up too late is found by the next pass of its rival.
        pass_until_settled(place)
        if story.watched:
            check_fleet(place, overslept=overslept)
    story.command(place.machine(process=3))
    story.check(place)
    check_fleet(place, overslept=overslept)
    if story.lasting:
        before = changes_of(place)
        story.command(place.machine(process=4))
        assert changes_of(place) == before, "typed once more, it changes the cloud"


class _Crossroads:
    """At each changing call the process goes on as several: one for each accident, and one without any."""

    def __init__(self, place: MemoryPlace) -> None:
        self.accident: Accident | None = None
        """What happened to this process; None in the one that nothing happens to."""
        self.endings: list[Ending] = []
        self._place = place
        self._count = 0
        self._fate: Point | None = None
        self._reply = -1
        self._threads = threading.active_count()

    def around(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._fate is None:
            self._count += 1
            self._branch(call.__name__)
        return call(*args, **kwargs) if self._fate is None else self._fate.around(call, *args, **kwargs)

    def _branch(self, call: str) -> None:
        """Forks once for each accident. Returns in the children with their fate, and then in the parent."""
        assert threading.active_count() == self._threads, f"a thread that no child has runs beside {call}"
        for accident in Accident:
            if accident is Accident.LOST and call not in CLOUD_CHANGES:
                continue
            reading, writing = os.pipe()
            child = _fork()
            if not child:
                os.close(reading)
                self.accident, self._reply, self._fate = accident, writing, self._fate_of(accident)
                return
            os.close(writing)
            with os.fdopen(reading, "rb") as answer:
                trouble = answer.read().decode()
            _, status = os.waitpid(child, 0)
            trouble = trouble if status == 0 else f"its process ended with {status}: {trouble}"
            self.endings.append(Ending(accident, self._count, call, trouble))

    def _fate_of(self, accident: Accident) -> Point:
        if accident is Accident.LOST:
            return LostAnswer()
        if accident in {Accident.RIVAL, Accident.ASLEEP}:
            return Sleep(lambda: self._rival(asleep=accident is Accident.ASLEEP))
        return CrashPoint(1, after=accident is Accident.AFTER)

    def _rival(self, *, asleep: bool) -> None:
        for _ in range(5 if asleep else 1):
            if asleep:
                self._place.clock.advance(60.0)
            run_pass(self._place.machine("server"))

    def report(self, trouble: str) -> None:
        """Tells the parent what came of it. Does not return: what is above on the stack is the parent's."""
        with os.fdopen(self._reply, "wb") as answer:
            answer.write(trouble.encode())
        os._exit(0)


def _fork() -> int:
    """A child like this process; without its other threads, which are the test runner's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        gc.disable()  # it lives shortly, and a collection would touch, and so copy, every page
    return child


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


def _made(entry: Any) -> bool:
    return entry.method.endswith(".create") and entry.status in ("OK", "DROPPED")


def changes_of(place: MemoryPlace) -> list[tuple[str, str]]:
    """All calls that changed the cloud."""
    return [
        (entry.method, entry.resource)
        for entry in place.world.journal.entries()
        if entry.status in ("OK", "DROPPED") and not entry.method.startswith("sim.")
    ]
