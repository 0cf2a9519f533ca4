"""Fifty fleets of forty slices, half a day each, in two files that run at once; more in `make soak`."""

from __future__ import annotations

import pytest

from tests.fleet.life import half_a_day, live


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 26))
def test_half_a_day_of_forty_slices(seed):
    assert live(half_a_day(seed, one_runs_in=8)).observer.creates > 400
