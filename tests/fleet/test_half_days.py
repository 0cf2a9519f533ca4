"""Fifty fleets of twelve slices, each for half a day; forty slices and more seeds live in `make soak`."""

from __future__ import annotations

import pytest

from tests.fleet.life import SMALL, half_a_day, live

SEEDS = range(1, 51)
SEEDS_AT_ONCE = 5


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, SEEDS_AT_ONCE))
def test_half_a_day_of_a_smaller_fleet(first):
    for seed in range(first, first + SEEDS_AT_ONCE):
        life = live(half_a_day(seed, SMALL))
        assert life.observer.creates > 50, seed
