"""In which zones a slice may be, and in which of them to ask next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct

from tpuctl.config.settings import Config
from tpuctl.errors import UsageError, with_field
from tpuctl.lib.names import check_zone_name
from tpuctl.model.accelerators import AcceleratorType, Catalog
from tpuctl.model.capacity import CapacityNote
from tpuctl.model.hosts import Tier
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.money.grants import Grant, same_pool

AUTO = "auto"
"""As a zone: every one in which the slice may be."""
REMEMBERED_S = 86_400.0
"""For a day the zone where capacity was last found comes first; after that the user's order counts again."""


def choose_zones(
    request: SliceRequest,
    config: Config,
    catalog: Catalog,
    found: AcceleratorType,
    tier: Tier,
    usable: Sequence[Grant],
) -> tuple[str, ...]:
    """Every zone that was named, else that of the only grant or the only one that has the type; for `auto` all
    that the grants cover or, where the user pays, all that have the type."""
    named = tuple(dict.fromkeys(request.zone or config.zone))
    covering = tuple(sorted({grant.zone for grant in usable if same_pool(grant.tier, tier)}))
    if AUTO in named:
        return _automatic(request, named, found, tier, covering)
    if not named and len(covering) == 1:
        named = covering
    if not named and len(found.zones) == 1:
        named = tuple(found.zones)
    if not named:
        others = ", ".join(found.zones[1:])
        hint = f"--zone {found.zones[0]}; also {others}, or --zone {AUTO} for all that is allowed"
        raise UsageError.of("zone", f"no zone for {found.name}", hint)
    for zone in named:
        with_field("zone", partial(check_zone, catalog, found, zone))
    return named


def _automatic(
    request: SliceRequest, named: Sequence[str], found: AcceleratorType, tier: Tier, covering: tuple[str, ...]
) -> tuple[str, ...]:
    if len(named) > 1:
        raise UsageError.of("zone", f"{AUTO} stands for every zone", f"--zone {AUTO}")
    having = found.flex_start_zones if tier is Tier.FLEX_START else found.zones
    zones = tuple(having) if request.pay else tuple(zone for zone in covering if zone in having)
    if not zones:
        hint = "tpuctl grant import LETTER, or name a --zone and add --pay"
        raise UsageError.of("zone", f"no grant covers {tier} {found.name} in any zone", hint)
    return zones


def check_zone(catalog: Catalog, found: AcceleratorType, zone: str) -> None:
    catalog.check_zone(found, check_zone_name(zone))


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
