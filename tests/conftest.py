"""Fixtures of several domains; and the order of tests: files that may take longest begin first."""

from __future__ import annotations

from collections.abc import Iterator
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
