"""Labs of every tier of simulated hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import TIERS, Lab, open_lab, populate, require_tier


@pytest.fixture(params=TIERS)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    require_tier(request.param)
    with open_lab(request.param, tmp_path) as lab:
        yield lab


@pytest.fixture
def lab(empty: Lab) -> Lab:
    return populate(empty)
