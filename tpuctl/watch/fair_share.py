"""Whose hosts a pass of the watchdog connects to: a bound on all of them, and in time a turn for everybody."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct

from tpuctl.model.timeouts import PASS_HOSTS_MAX


class Turn(Struct, frozen=True):
    """Something whose hosts are to be connected to. `in_need`: it is not usable until they were."""

    key: str
    hosts: int
    in_need: bool = False


def take_turns(waiting: Sequence[Turn], now: float) -> frozenset[str]:
    """The keys of those that have their turn now: about `PASS_HOSTS_MAX` hosts in all.

    Those in need come first, but never at the cost of all others: half is the others' if they want it, and of
    each group there is at least one, however large.
    """
    needy = [turn for turn in waiting if turn.in_need]
    others = [turn for turn in waiting if not turn.in_need]
    kept = min(PASS_HOSTS_MAX // 2, sum(turn.hosts for turn in others))
    first = _round_robin(needy, PASS_HOSTS_MAX - kept, now)
    second = _round_robin(others, PASS_HOSTS_MAX - sum(turn.hosts for turn in first), now)
    return frozenset(turn.key for turn in (*first, *second))


def _round_robin(turns: Sequence[Turn], limit: int, now: float) -> list[Turn]:
    """Those of `turns` that fit into `limit` hosts, and at least one of them.

    Where the round begins is drawn by the minute: no pass needs to remember where the last one stopped, and no
    interval between passes leaves one out for ever. One draw in two is among hosts, so that a giant comes first
    in time among many small ones; the other among turns, so that a small one does among giants.
    """
    sizes = [max(1, turn.hosts) for turn in turns]
    if sum(sizes) <= limit:
        return list(turns)
    minute = hashlib.sha256(str(int(now / 60)).encode()).digest()
    drawn = int.from_bytes(minute[:8])
    start = _owner(sizes, drawn % sum(sizes)) if minute[-1] % 2 else drawn % len(turns)
    chosen: list[Turn] = []
    hosts = 0
    for turn, size in zip([*turns[start:], *turns[:start]], [*sizes[start:], *sizes[:start]], strict=True):
        if chosen and hosts + size > limit:
            break
        chosen.append(turn)
        hosts += size
    return chosen


def _owner(sizes: Sequence[int], host: int) -> int:
    """Which of them a host belongs to, when the hosts of all are counted through."""
    return bisect_right(list(accumulate(sizes)), host)
