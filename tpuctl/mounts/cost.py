"""What the operations of a mount cost: look-ups, reads and listings for a ttl, hosts and files. Pure.

What gcsfuse asks the bucket for when a name is looked up is in internal/fs/inode/dir.go of v3.11.3
(lookUpUnknownType): the object, and with implicit directories a listing of what is below that name. Classes of
operations: https://cloud.google.com/storage/pricing#operations-by-class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tpuctl.mounts.render import cache_of

DAY_S = 86_400
MONTH_DAYS = 30
PROBE_EVERY_S = 30
"""ASK_EVERY_S of templates/mount_keeper.py, which asks for a name that is not there."""


class Use(Struct, frozen=True):
    """How a mount is used: each of `hosts` lists all of `files` and opens each of them `passes` times a day."""

    hosts: int
    files: int
    passes: float


class Row(Struct, frozen=True):
    """Operations of one class for one purpose: on the first day, and on each day after it."""

    what: str
    operations: str
    first_day: int
    later_day: int
    usd_month: float


def operation_costs(options: Mapping[str, Any], use: Use, usd_per_1000: Mapping[str, float]) -> list[Row]:
    """At most, by list. `usd_per_1000`: for `class_a` and `class_b`. What is remembered is assumed to fit into
    the caches, and nothing to change."""
    ttl, lists = int(options["metadata-cache.ttl-secs"]), int(options["file-system.kernel-list-cache-ttl-secs"])
    looks, names = _times(use.passes, ttl), use.hosts * use.files
    listings = _times(use.passes, lists)
    pages = use.hosts * math.ceil(use.files / 1000)
    once = (1.0, 0.0)
    reads = once if cache_of(options) else (use.passes, use.passes)
    probes = (DAY_S / PROBE_EVERY_S,) * 2
    below = "class_a" if options.get("implicit-dirs") else "class_b"
    rows = [
        ("look-ups of names", "class_b", names, looks),
        ("look-ups, of folders of that name", below, names, looks),
        ("reads", "class_b", names, reads),
        ("listings", "class_a", pages, listings),
        ("health, looked at by hosts", "class_a", use.hosts, probes),
        ("health, looked at by hosts", "class_b", use.hosts, probes),
    ]
    return [_row(what, kind, count, times, usd_per_1000[kind]) for what, kind, count, times in rows]


def total_usd(rows: list[Row]) -> float:
    """Of a month."""
    return sum(row.usd_month for row in rows)


def _times(passes: float, ttl_s: int) -> tuple[float, float]:
    """How often a thing is asked for on the first day and on later ones, if it is remembered for `ttl_s`."""
    if ttl_s < 0:
        return min(passes, 1.0), 0.0
    daily = passes if ttl_s == 0 else min(passes, DAY_S / ttl_s)
    return daily, daily


def _row(what: str, kind: str, count: int, times: tuple[float, float], usd_per_1000: float) -> Row:
    first, later = (math.ceil(count * each) for each in times)
    usd = (first + (MONTH_DAYS - 1) * later) * usd_per_1000 / 1000
    return Row(what, "A" if kind == "class_a" else "B", first, later, usd)
