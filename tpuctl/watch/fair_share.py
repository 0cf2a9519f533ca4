"""Fair share of the hosts that one watchdog pass may connect to: a bound on all, and in time some for each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct

from tpuctl.lib.time import draw_by_minute
from tpuctl.model.timeouts import PASS_HOSTS_MAX


class Demand(Struct, frozen=True):
    """Something whose hosts are to be connected to. `in_need`: it is not usable until they were."""

    key: str
    hosts: int
    in_need: bool = False


def share_hosts(waiting: Sequence[Demand], now: float) -> frozenset[str]:
    """The keys of those whose hosts may be connected to now: about `PASS_HOSTS_MAX` hosts in all.

    Those in need come first, but never at the cost of all others: half is the others' if they want it, and of
    each group there is at least one, however large.
    """
    needy = [demand for demand in waiting if demand.in_need]
    others = [demand for demand in waiting if not demand.in_need]
    kept = min(PASS_HOSTS_MAX // 2, sum(demand.hosts for demand in others))
    first = _round_robin(needy, PASS_HOSTS_MAX - kept, now)
    second = _round_robin(others, PASS_HOSTS_MAX - sum(demand.hosts for demand in first), now)
    return frozenset(demand.key for demand in (*first, *second))


def _round_robin(demands: Sequence[Demand], limit: int, now: float) -> list[Demand]:
    """Those of `demands` that fit into `limit` hosts, and at least one of them.

    Where the round begins is drawn by the minute. One draw in two is among hosts, so that a giant comes first
    in time among many small ones; the other among turns, so that a small one does among giants.
    """
    sizes = [max(1, demand.hosts) for demand in demands]
    if sum(sizes) <= limit:
        return list(demands)
    among_hosts, drawn = draw_by_minute(now) % 2, draw_by_minute(now) // 2
    start = _owner(sizes, drawn % sum(sizes)) if among_hosts else drawn % len(demands)
    chosen: list[Demand] = []
    hosts = 0
    for demand, size in zip(
        [*demands[start:], *demands[:start]], [*sizes[start:], *sizes[:start]], strict=True
    ):
        if chosen and hosts + size > limit:
            break
        chosen.append(demand)
        hosts += size
    return chosen


def _owner(sizes: Sequence[int], host: int) -> int:
    """Which of them a host belongs to, when the hosts of all are counted through."""
    return bisect_right(list(accumulate(sizes)), host)
