"""A running simulator and the services of one machine that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.services import SimServices, sim_services
from tests.support.sim import RunningSim, running_sim


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[RunningSim]:
    with running_sim(tmp_path) as running:
        yield running


@pytest.fixture
def services(sim: RunningSim, tmp_path: Path) -> Iterator[SimServices]:
    with sim_services(sim, tmp_path / "state") as made:
        yield made
