"""What was learnt about capacity: per zone, accelerator type and tier, how asking went.

Measurements, not decisions: one lost update costs a little accuracy. Times are epoch seconds, hours UTC.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.model import timeouts
from tpuctl.model.cloud import Tier

KEPT = 30
"""How many waits and lives are kept: enough for a median that follows the last days."""


class HourStat(Struct, frozen=True):
    """How often capacity was asked for in one hour of the day, and how often it came."""

    asked: int = 0
    granted: int = 0


class CapacityNote(Struct, frozen=True):
    """Everything known about one accelerator type in one zone and tier."""

    zone: str
    accelerator_type: str
    tier: Tier
    failures: int = 0
    """Requests in a row that got nothing."""
    not_before: float = 0.0
    last_error: str = ""
    last_error_at: float | None = None
    last_ready_at: float | None = None
    waits_s: tuple[float, ...] = ()
    lives_s: tuple[float, ...] = ()
    hours: Mapping[str, HourStat] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return note_name(self.zone, self.accelerator_type, self.tier)

    @property
    def median_wait_s(self) -> float | None:
        return statistics.median(self.waits_s) if self.waits_s else None

    @property
    def median_life_s(self) -> float | None:
        return statistics.median(self.lives_s) if self.lives_s else None

    @property
    def asked(self) -> int:
        return sum(hour.asked for hour in self.hours.values())

    @property
    def granted(self) -> int:
        return sum(hour.granted for hour in self.hours.values())


def note_name(zone: str, accelerator_type: str, tier: Tier) -> str:
    """Under which the store has a note."""
    return f"{zone}/{accelerator_type}/{tier}"


def note_request(note: CapacityNote, now: float) -> CapacityNote:
    """A create was called."""
    return replace(note, hours=_count(note.hours, now, HourStat(asked=1)))


def note_ready(note: CapacityNote, asked_at: float, now: float) -> CapacityNote:
    """The node asked for at `asked_at` became READY: the zone has capacity."""
    return replace(
        note,
        failures=0,
        not_before=0.0,
        last_ready_at=now,
        waits_s=(*note.waits_s, max(0.0, now - asked_at))[-KEPT:],
        hours=_count(note.hours, asked_at, HourStat(granted=1)),
    )


def note_came(note: CapacityNote, asked_at: float, now: float) -> CapacityNote:
    """The node asked for at `asked_at` was found READY long after: nobody saw when it came."""
    found = note_ready(note, asked_at, now)
    return replace(found, waits_s=note.waits_s)


def note_lost(note: CapacityNote, ready_at: float, now: float) -> CapacityNote:
    """A node that was READY since `ready_at` was taken away by the cloud."""
    return replace(note, lives_s=(*note.lives_s, max(0.0, now - ready_at))[-KEPT:])


def note_failed(note: CapacityNote, error: str, seed: str, now: float) -> CapacityNote:
    """A request got nothing; the zone is left alone for a while. `seed` spreads those that failed together."""
    failures = note.failures + 1
    return replace(
        note,
        failures=failures,
        not_before=now + timeouts.next_backoff(failures, seed),
        last_error=error,
        last_error_at=now,
    )


def _count(hours: Mapping[str, HourStat], at: float, more: HourStat) -> Mapping[str, HourStat]:
    hour = f"{datetime.fromtimestamp(at, UTC).hour:02d}"
    old = hours.get(hour, HourStat())
    return {**hours, hour: HourStat(old.asked + more.asked, old.granted + more.granted)}
