"""Fixtures of several domains; and the order of tests: files that may take longest begin first."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.memory.services import MemoryPlace, MemoryServices


@pytest.fixture
def place() -> Iterator[MemoryPlace]:
    """Machines, hosts and a cloud in memory."""
    from tests.support.memory.services import MemoryPlace

    made = MemoryPlace()
    yield made
    made.close()


@pytest.fixture
def services(place: MemoryPlace) -> MemoryServices:
    """A machine of `place`."""
    return place.machine()


def pytest_configure() -> None:
    """Whoever starts tests in the background of a shell has them ignore Ctrl-C, and all commands in which tests
    type it would, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All that is imported and collected stays: to look for garbage among it took a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before any fixture: a test that imports a module of the agent leaves its umask behind, with which no
    package is built and no host can read its own files."""
    os.umask(0o022)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """By the longest time-out in a file, then whether anything in it is slow; else as they were found."""
    longest: dict[Path, tuple[float, bool]] = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        slow = item.get_closest_marker("slow") is not None
        mine = (float(limit.args[0]) if limit is not None else 0.0, slow)
        longest[item.path] = max(mine, longest.get(item.path, mine))
    items.sort(key=lambda item: longest[item.path], reverse=True)
