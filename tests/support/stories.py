"""What stories of interrupted commands are made of: two that others begin with, and what is looked at."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.support.jobs import SPEC, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.model.records import SliceState
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.runs.follow import start_run
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice, list_slices
from tpuctl.watch.reconciler import run_pass

HOUR = 3600.0
QUIET_PASSES = 3
"""What changes nothing in so many passes is taken to be at its end."""


def nodes(place: MemoryPlace) -> list[str]:
    return sorted(each.path.id for each in place.world.census() if each.kind == "node")


def state_of(place: MemoryPlace, name: str) -> SliceState:
    return get_slice(place.machine("server"), name).record.state


def passes(services: MemoryServices, minutes: int) -> None:
    """What a watchdog does in that time."""
    for _ in range(minutes):
        services.clock.sleep(60.0)
        run_pass(services)


def long_program(place: MemoryPlace) -> None:
    place.hosts.programs["main.py"] = scripted(6 * HOUR, lines=["working"])


def make_ready(services: MemoryServices, *names: str, **spec: Any) -> None:
    """Slices that are up, by passes: fewer steps than to wait for each."""
    for name in names:
        request_slice(services, name, replace(SPEC, **spec), pay=False, admit=lambda: None)
    while any(record.state is not SliceState.READY for record in list_slices(services)):
        passes(services, 1)


def begin_run(services: MemoryServices) -> None:
    start_run(services, submit(services, "big", "hours", policy=RestartPolicy(grace_s=1.0)).id)


def programs_on(place: MemoryPlace) -> int:
    """How many workers have a program of a run alive."""
    return sum(len(host.running()) for host in place.hosts.all())


class Up:
    """One slice comes up."""

    watched = True
    lasting = True

    def __init__(self, zones: tuple[str, ...] = (), **spec: object) -> None:
        self.spec: SliceSpec = replace(SPEC, **spec)  # type: ignore[arg-type]
        self.zones = zones

    def prepare(self, place: MemoryPlace) -> None:
        """A fleet without slices."""

    def command(self, services: MemoryServices) -> None:
        request_slice(services, "big", self.spec, pay=True, zones=self.zones, admit=lambda: None)
        wait_for_slice(services, "big", deadline=services.clock.now() + 3 * HOUR)

    def check(self, place: MemoryPlace) -> None:
        assert state_of(place, "big") is SliceState.READY
        assert len(nodes(place)) == self.spec.slices


class Watched:
    """What a watchdog does by itself: the command is its passes, and one dies in the middle."""

    watched = True
    lasting = True

    minutes = 45
    """How long it may take at most."""
    place: MemoryPlace

    def prepare(self, place: MemoryPlace) -> None:
        self.place = place
        self.begin(place)

    def begin(self, place: MemoryPlace) -> None:
        long_program(place)
        services = place.machine()
        make_ready(services, "other", "big")
        begin_run(services)

    def command(self, services: MemoryServices) -> None:
        """Passes until all is as it is to be, and some more that leave it so."""
        quiet = 0
        for _ in range(self.minutes):
            passes(services, 1)
            quiet = quiet + 1 if self._over() else 0
            if quiet == QUIET_PASSES:
                break

    def _over(self) -> bool:
        try:
            self.check(self.place)
        except AssertionError:
            return False
        return True

    def check(self, place: MemoryPlace) -> None:
        raise NotImplementedError
