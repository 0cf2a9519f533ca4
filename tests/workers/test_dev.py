"""The loop of `tpuctl dev` on hosts in memory, by their clock: a slice that nobody uses goes, also while
somebody stays with it, and one that is used does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import make_ready
from tpuctl.engine.events import Note, Warn
from tpuctl.model.records import Desired, LifetimeLimits
from tpuctl.slices.desired import request_slice
from tpuctl.state.repository import get_slice
from tpuctl.watch.attendance import Attendance
from tpuctl.workers.dev import DevLoop


@pytest.fixture
def place() -> Iterator[MemoryPlace]:
    place = MemoryPlace()
    yield place
    place.close()


@pytest.fixture
def services(place: MemoryPlace) -> MemoryServices:
    services = place.machine()
    make_ready(services, "dev")
    return services


def limit(services: MemoryServices, **limits: float) -> None:
    spec = get_slice(services, "dev").record.spec
    request_slice(services, "dev", spec, pay=False, limits=LifetimeLimits(**limits), admit=lambda: None)


def test_the_loop_ends_with_a_slice_that_nobody_used_for_so_long(services: MemoryServices) -> None:
    limit(services, idle_s=1800.0)
    began = services.clock.now()
    DevLoop(services, "dev", Attendance(services, "dev").is_over).run()
    assert 1800 <= services.clock.now() - began < 1800 + 120
    assert get_slice(services, "dev").record.desired is Desired.DOWN
    warned = [event.text for event in services.events if isinstance(event, Warn)]
    assert any("takes slice dev down in ten minutes: idle since" in text for text in warned)
    assert any(
        isinstance(event, Note) and event.text.startswith("taken down: idle") for event in services.events
    )


def test_what_the_command_itself_uses_is_not_idle(services: MemoryServices) -> None:
    limit(services, idle_s=1800.0)
    attendance = Attendance(services, "dev")
    for _ in range(120):
        assert not attendance.is_over(used=True)
        services.clock.sleep(60.0)
    assert get_slice(services, "dev").record.desired is Desired.UP


def test_a_directory_that_is_gone_is_told_once_and_empties_no_worker(
    services: MemoryServices, tmp_path: Path
) -> None:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text("print(1)")
    looks = iter(range(40))

    def over(_used: bool) -> bool:
        number = next(looks)
        if number == 1:
            (directory / "train.py").unlink()
            directory.rmdir()
        return number == 3

    DevLoop(services, "dev", over, directory, limit_bytes=1 << 20).run()
    said = [event.text for event in services.events if isinstance(event, Note | Warn)]
    assert sum("have project" in text for text in said) == 1
    assert sum("nothing is sent" in text for text in said) == 1


def test_an_edit_after_a_preemption_brings_the_slice_back_with_everything(
    place: MemoryPlace, services: MemoryServices, tmp_path: Path
) -> None:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text("print(1)")
    looks = iter(range(100))

    def sent() -> int:
        return sum(isinstance(event, Note) and "have project" in event.text for event in services.events)

    def over(_used: bool) -> bool:
        number = next(looks)
        if number == 1:
            assert sent() == 1
            place.world.preempt("dev-1")
            (directory / "train.py").write_text("print(22)")
        return number == 99 or sent() == 2

    DevLoop(services, "dev", over, directory, limit_bytes=1 << 20).run()
    assert sent() == 2
    assert get_slice(services, "dev").record.last_incarnation == 2
