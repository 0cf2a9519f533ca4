"""When a slice is to go by itself: its time is over, or nobody used it for as long as its owner said.

Whatever is not certain counts as use. Nothing goes without a warning ten minutes before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.lib.time import render_duration, render_moment
from tpuctl.model.records import Lifetime, LifetimeLimits

WARN_BEFORE_S = 600.0
LOW_LOAD = 0.1
"""Runnable processes per processor, on average of five minutes: agents of an idle VM stay far below it."""
SEEN_EVERY_S = 300.0
"""How often it is written down that a slice is still idle."""
UNSEEN_MAX_S = 1200.0
"""A slice that nobody looked at for longer, and for more than half of the idle time, may have been used."""


class HostActivity(Struct, frozen=True):
    """How a worker is used, as its agent reported. `chips_unknown`: it could not be found out who has a chip
    open; `writers` have a file of a disk or a mounted bucket open for writing."""

    worker: int
    sessions: int
    chip_users: int
    chips_unknown: bool
    load_per_cpu: float
    writers: int = 0
    writers_unknown: bool = False


class IdleWatch(Struct, frozen=True):
    """What passes remember of one incarnation: since when it is idle, and when its hosts were warned."""

    incarnation: int
    idle_since: float | None = None
    warned_at: float | None = None
    seen_at: float | None = None
    """When it was last looked at, give or take `SEEN_EVERY_S`."""


class LifetimeAction(StrEnum):
    """What is to be done about a slice's lifetime now."""

    NONE = "none"
    WARN = "warn"
    STOP = "stop"


class LifetimeVerdict(Struct, frozen=True):
    """The step, what to remember, and the reason in words."""

    step: LifetimeAction
    watch: IdleWatch
    why: str


def extend_lifetime(old: Lifetime | None, limits: LifetimeLimits, now: float) -> Lifetime | None:
    """The lifetime after another `up` with `limits`: what it does not say stays as it was."""
    if limits == LifetimeLimits():
        return old
    found = old or Lifetime()
    if limits.ttl_s is not None:
        found = replace(found, expires_at=now + limits.ttl_s, ttl_s=limits.ttl_s)
    return found if limits.idle_s is None else replace(found, idle_s=limits.idle_s)


def replace_lifetime(old: Lifetime | None, limits: LifetimeLimits, now: float) -> Lifetime | None:
    """The lifetime that has `limits` and no others. A span that stays the same goes on, another begins now."""
    fresh = extend_lifetime(None, limits, now)
    if old is None or fresh is None or "ttl" in limit_differences(old, limits):
        return fresh
    return replace(fresh, expires_at=old.expires_at)


def limit_differences(lifetime: Lifetime | None, limits: LifetimeLimits) -> tuple[str, ...]:
    """Which limits a slice with `lifetime` has otherwise than in `limits`, as keys of a request."""
    found = lifetime or Lifetime()
    # An end whose span is not known was written down by an earlier release: it is none of `limits`.
    unknown = found.expires_at is not None and found.ttl_s is None
    differs = {"ttl": unknown or found.ttl_s != limits.ttl_s, "stop_when_idle": found.idle_s != limits.idle_s}
    return tuple(name for name, different in differs.items() if different)


def describe_limits(limits: LifetimeLimits) -> str:
    """When the slice goes by itself, in words; empty if it does not."""
    words = [
        f"after {render_duration(limits.ttl_s)}" if limits.ttl_s is not None else "",
        f"when unused for {render_duration(limits.idle_s)}" if limits.idle_s is not None else "",
    ]
    return " or ".join(word for word in words if word)


def parse_activity(worker: int, data: Mapping[str, Any]) -> HostActivity:
    """The answer of the agent's `activity`. Raises KeyError, TypeError or ValueError for nonsense."""
    return HostActivity(
        worker,
        int(data["sessions"]),
        int(data["chip_users"]),
        bool(data["chips_unknown"]),
        float(data["load"]) / max(1, int(data["cpus"])),
        int(data["writers"]),
        bool(data["writers_unknown"]),
    )


def find_use(run_id: str | None, activities: Sequence[HostActivity | None]) -> str:
    """What uses the slice, in words; empty when certainly nothing does. None: a worker that did not answer."""
    if run_id is not None:
        return f"run {run_id}"
    for worker, found in enumerate(activities):
        if found is None:
            return f"worker {worker} could not be asked"
        if found.sessions:
            return f"{found.sessions} logins or forwarded ports on worker {worker}"
        if found.chip_users:
            return f"{found.chip_users} processes with a chip open on worker {worker}"
        if found.chips_unknown:
            return f"worker {worker} cannot tell who has a chip open"
        if found.writers:
            return f"{found.writers} programs that write to disks or mounts on worker {worker}"
        if found.writers_unknown:
            return f"worker {worker} cannot tell who writes to its disks and mounts"
        if found.load_per_cpu > LOW_LOAD:
            return f"load {found.load_per_cpu:.2f} per processor on worker {worker}"
    return ""


def judge_lifetime(lifetime: Lifetime, watch: IdleWatch, use: str, now: float) -> LifetimeVerdict:
    """What follows from the request, what was remembered and what was seen now. `use` as of `find_use`."""
    since = None if use or lifetime.idle_s is None else _idle_since(lifetime, watch, now)
    due, why = _due(lifetime, since)
    fresh = watch.seen_at is not None and since == watch.idle_since and now < watch.seen_at + SEEN_EVERY_S
    seen_at = None if since is None else watch.seen_at if fresh else now
    seen = replace(watch, idle_since=since, seen_at=seen_at)
    if due is None or now < due - WARN_BEFORE_S:
        return LifetimeVerdict(LifetimeAction.NONE, replace(seen, warned_at=None), use or why)
    if watch.warned_at is None:
        return LifetimeVerdict(LifetimeAction.WARN, replace(seen, warned_at=now), why)
    if now >= due and now - watch.warned_at >= WARN_BEFORE_S:
        return LifetimeVerdict(LifetimeAction.STOP, seen, why)
    return LifetimeVerdict(LifetimeAction.NONE, seen, why)


def _idle_since(lifetime: Lifetime, watch: IdleWatch, now: float) -> float:
    """Since when it is idle, as far as passes looked: it begins anew after a gap in which none did."""
    if watch.idle_since is None:
        return now
    seen_at = watch.idle_since if watch.seen_at is None else watch.seen_at
    limit_s = max(UNSEEN_MAX_S, (lifetime.idle_s or 0.0) / 2)
    return now if now - seen_at > limit_s else watch.idle_since


def ends_soon(lifetime: Lifetime, now: float) -> bool:
    """Whether its time, used or not, is so near its end that the hosts are to be warned."""
    return lifetime.expires_at is not None and now >= lifetime.expires_at - WARN_BEFORE_S


def _due(lifetime: Lifetime, idle_since: float | None) -> tuple[float | None, str]:
    """When it goes, and why; None while nothing says so."""
    due: list[tuple[float, str]] = []
    if lifetime.expires_at is not None:
        due.append((lifetime.expires_at, f"its time ends at {render_moment(lifetime.expires_at)}"))
    if lifetime.idle_s is not None and idle_since is not None:
        text = f"idle since {render_moment(idle_since)}, wanted for {render_duration(lifetime.idle_s)} at most"
        due.append((idle_since + lifetime.idle_s, text))
    return min(due) if due else (None, "")
