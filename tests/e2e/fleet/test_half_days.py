"""Fleets of forty slices, half a day each, in `make soak`; a smaller one in `make test`."""

from __future__ import annotations

import pytest

from tests.e2e.fleet.life import SMALL, half_a_day, live
from tests.support.soak import soak
from tpuctl.model import timeouts


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 51))
def test_half_a_day_of_forty_slices(seed):
    life = live(half_a_day(seed, one_runs_in=8))
    assert life.observer.creates > 400
    assert life.results["blind"] > 0, "nothing happened while port 22 was blocked"
    if seed == 1:  # in the luck of other seeds there may be room all the time
        assert life.observer.longest_wait_s > timeouts.BACKOFF_MAX_S / 2, "nobody ever waited beside room"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [61, *(soak(seed) for seed in range(62, 64))])
def test_half_a_day_of_twelve_slices_of_which_every_third_has_a_run(seed):
    life = live(half_a_day(seed, SMALL))
    assert life.auditor.attempts > 10
