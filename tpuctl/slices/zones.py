"""In which of several zones to ask next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from tpuctl.model.capacity import CapacityNote

REMEMBERED_S = 86_400.0
"""For a day the zone where capacity was last found comes first; after that the user's order counts again."""


class Choice(Struct, frozen=True):
    """The zone to ask, and from when on (epoch seconds; 0 for now)."""

    zone: str
    not_before: float
    why: str


def choose_zone(
    zones: Sequence[str],
    not_before: Mapping[str, float],
    notes: Mapping[str, CapacityNote],
    now: float,
) -> Choice:
    """The zone to ask next.

    Of those that are not backed off, the one where capacity was last found (within a day), else the one that
    failed longest ago, else the first in the user's order. When all are backed off, the one whose back-off ends
    first. `zones` must not be empty; `not_before` also holds back-offs that are over.
    """
    ready = [zone for zone in zones if not_before.get(zone, 0.0) <= now]
    if not ready:
        zone = min(zones, key=lambda each: not_before.get(each, 0.0))
        return Choice(zone, not_before.get(zone, 0.0), "every zone had no capacity a moment ago")
    found = {zone: _found_at(notes.get(zone), now) for zone in ready}
    best = max(ready, key=lambda zone: (found[zone], -not_before.get(zone, 0.0), -zones.index(zone)))
    return Choice(best, 0.0, "capacity was last found here" if found[best] else "first of the zones to try")


def _found_at(note: CapacityNote | None, now: float) -> float:
    recent = note is not None and note.last_ready_at is not None and now - note.last_ready_at < REMEMBERED_S
    return note.last_ready_at or 0.0 if recent and note is not None else 0.0
