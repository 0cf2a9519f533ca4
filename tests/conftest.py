"""The order of the tests: files that may take longest begin first, so that no worker is left alone with one."""

from __future__ import annotations

from pathlib import Path

import pytest


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
