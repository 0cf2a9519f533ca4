"""Whose hosts a pass connects to: bounded, and fair in time."""

from __future__ import annotations

import pytest

from tpuctl.model.timeouts import PASS_HOSTS_MAX
from tpuctl.watch.fair_share import Demand, share_hosts


def demands(count: int, hosts: int, kind: str, *, in_need: bool = False) -> list[Demand]:
    return [Demand(f"{kind}/{number}", hosts, in_need) for number in range(count)]


def hosts_of(waiting: list[Demand], now: float) -> int:
    chosen = share_hosts(waiting, now)
    return sum(demand.hosts for demand in waiting if demand.key in chosen)


def test_all_have_their_turn_at_once_where_they_fit():
    waiting = [*demands(8, 4, "runs"), *demands(8, 4, "slices", in_need=True)]
    assert share_hosts(waiting, 0.0) == {demand.key for demand in waiting}


@pytest.mark.parametrize("interval", [60.0, 120.0, 300.0])
@pytest.mark.parametrize("needy", [0, 3, 40])
@pytest.mark.parametrize("hosts", [1, 8, PASS_HOSTS_MAX, 4 * PASS_HOSTS_MAX])
def test_each_has_its_turn_in_time_whatever_the_interval_between_passes(interval, needy, hosts):
    waiting = [
        *demands(6, hosts, "runs"),
        *demands(6, 8, "slices"),
        *demands(needy, hosts, "doubts", in_need=True),
    ]
    served: set[str] = set()
    for number in range(600):
        served |= share_hosts(waiting, number * interval)
    assert served == {demand.key for demand in waiting}


def test_no_pass_connects_to_more_than_the_bound_while_each_fits_into_half_of_it():
    waiting = [*demands(100, 2, "runs"), *demands(50, 8, "slices"), *demands(30, 8, "doubts", in_need=True)]
    assert max(hosts_of(waiting, number * 60.0) for number in range(200)) <= PASS_HOSTS_MAX


HALF = PASS_HOSTS_MAX // 2


@pytest.mark.parametrize(
    ("runs", "doubts", "hosts", "served"),
    [
        pytest.param(100, 5, 4, (5, (PASS_HOSTS_MAX - 20) // 4), id="few leave the rest to others"),
        pytest.param(10, 100, 4, (HALF // 4, HALF // 4), id="a crowd leaves half to others"),
        pytest.param(10, 1, 256, (1, 1), id="a giant leaves one turn to others"),
    ],
)
@pytest.mark.parametrize("now", [0.0, 60.0, 2940.0])
def test_those_in_need_come_first_but_not_at_the_cost_of_all_others(runs, doubts, hosts, served, now):
    chosen = share_hosts([*demands(runs, 4, "runs"), *demands(doubts, hosts, "doubts", in_need=True)], now)
    found = [sum(key.startswith(kind) for key in chosen) for kind in ("doubts/", "runs/")]
    assert tuple(found) == served


def test_a_small_one_among_giants_and_a_giant_among_small_ones_have_their_turn_within_hours():
    giants = [*demands(2, 8 * PASS_HOSTS_MAX, "giants"), *demands(1, 1, "small")]
    crowd = [*demands(40 * PASS_HOSTS_MAX, 1, "small"), *demands(1, 4 * PASS_HOSTS_MAX, "giant")]
    for waiting, key in ((giants, "small/0"), (crowd, "giant/0")):
        served = [number for number in range(180) if key in share_hosts(waiting, number * 60.0)]
        assert served, key
