"""The other half of `test_half_days`, so that two workers share them."""

from __future__ import annotations

import pytest

from tests.fleet.life import half_a_day, live


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(26, 51))
def test_half_a_day_of_forty_slices(seed):
    assert live(half_a_day(seed, one_runs_in=8)).observer.creates > 400
