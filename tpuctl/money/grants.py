"""Grants: which chips may be used without paying, where, in which tier and until when.

TPU Research Cloud announces them by letter (`letters.py`, which few commands read: its patterns take 4 ms).
Everything outside of those zones and tiers is billed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from enum import StrEnum

from msgspec import Struct

from tpuctl.lib.text import counted
from tpuctl.model.accelerators import AcceleratorType
from tpuctl.model.cloud import Api, Tier


class AtEnd(StrEnum):
    """What happens to the slices that live on a grant when it ends."""

    KEEP = "keep"
    """They run on and cost money, but are not asked for again."""
    DOWN = "down"
    """Their runs are stopped and they are taken down."""


WARN_DAYS = (7, 1)
"""Days before the last day of a grant on which a pass warns."""


class Grant(Struct, frozen=True):
    """A grant as the store keeps it. `ends` is its last day, `YYYY-MM-DD`, or None if unknown."""

    zone: str
    tier: Tier
    generation: str
    chips: int
    ends: str | None = None
    at_end: AtEnd = AtEnd.KEEP

    @property
    def name(self) -> str:
        """One grant for each zone, tier and generation; importing a newer letter replaces it."""
        return f"{self.zone}/{self.tier}/{self.generation}"


class Coverage(Struct, frozen=True):
    """Whether a grant covers a create. `until` is the last covered day, if known; `reason` says what
    decided."""

    covered: bool
    until: date | None
    reason: str
    grantable: bool = True
    """Whether there could be a grant for it."""


def check_coverage(
    grants: Iterable[Grant],
    accelerator: AcceleratorType,
    zone: str,
    tier: Tier,
    chips_in_use: int,
    now: float,
    api: Api = Api.TPU,
) -> Coverage:
    """Whether `accelerator` in `zone` and `tier` is covered on top of `chips_in_use` chips of the same grant.

    `now` is in seconds since the epoch; days are UTC. Preemptible counts as spot: it is the older name for the
    same capacity. On-demand grants do not cover spot, nor the other way round. Grants are quota of the TPU API,
    which Compute Engine does not draw on.
    """
    if api is Api.COMPUTE:
        return Coverage(False, None, "no grant covers it: grants are for the Cloud TPU API", False)
    wanted = f"{_paid_as(tier)} {accelerator.generation} in {zone}"
    matching = [
        grant
        for grant in grants
        if grant.zone == zone
        and grant.generation == accelerator.generation
        and _paid_as(grant.tier) == _paid_as(tier)
    ]
    if not matching:
        return Coverage(False, None, f"no grant for {wanted}")
    today = datetime.fromtimestamp(now, UTC).date()
    live = [grant for grant in matching if _end(grant) is None or _last_day(grant) >= today]
    if not live:
        ended = max(_last_day(grant) for grant in matching)
        return Coverage(False, None, f"the grant for {wanted} ended on {ended}")
    total = sum(grant.chips for grant in live)
    if chips_in_use + accelerator.chips > total:
        used = f", {chips_in_use} in use" if chips_in_use else ""
        has = counted(total, "chip")
        return Coverage(
            False,
            None,
            f"the grant for {wanted} has {has}{used}; {accelerator.name} takes {accelerator.chips}",
        )
    ends = [end for end in map(_end, live) if end is not None]
    return Coverage(True, min(ends) if ends else None, f"covered by the grant for {wanted}")


def granted(grants: Sequence[Grant], generation: str, chips: int) -> list[Grant]:
    """The grants that are large enough for `chips` chips of a generation: safe defaults for tier and zone."""
    return [grant for grant in grants if grant.generation == generation and grant.chips >= chips]


def ended_on(grants: Iterable[Grant], generation: str, zone: str, tier: Tier, now: float) -> date | None:
    """The last day of the grants for such chips, if all are over; None while one lives, or without any."""
    matching = [
        grant
        for grant in grants
        if grant.zone == zone and grant.generation == generation and same_pool(grant.tier, tier)
    ]
    last = max((_last_day(grant) for grant in matching), default=None)
    today = datetime.fromtimestamp(now, UTC).date()
    return last if last is not None and last < today else None


def days_left(grant: Grant, now: float) -> int | None:
    """Days from today (UTC) until the grant's last day; negative when it is over, None when that is unknown."""
    end = _end(grant)
    return None if end is None else (end - datetime.fromtimestamp(now, UTC).date()).days


def due_warning(grant: Grant, now: float) -> int | None:
    """The smallest threshold of `WARN_DAYS` that is reached; None before the first, and when it is over."""
    left = days_left(grant, now)
    if left is None or left < 0:
        return None
    return min((days for days in WARN_DAYS if left <= days), default=None)


def same_pool(first: Tier, second: Tier) -> bool:
    """Whether two tiers draw on the same grant: preemptible counts as spot."""
    return _paid_as(first) is _paid_as(second)


def _paid_as(tier: Tier) -> Tier:
    return Tier.SPOT if tier is Tier.PREEMPTIBLE else tier


def _end(grant: Grant) -> date | None:
    return date.fromisoformat(grant.ends) if grant.ends else None


def _last_day(grant: Grant) -> date:
    return _end(grant) or date.max
