"""List prices from the accelerator table: a snapshot of unknown date, for a first idea, never for billing."""

from __future__ import annotations

from tpuctl.core.model import Tier
from tpuctl.core.naming import region_of
from tpuctl.core.topology import AcceleratorType, Catalog

_COLUMNS = {Tier.SPOT: "spot", Tier.PREEMPTIBLE: "spot", Tier.ON_DEMAND: "on_demand"}
"""Reserved capacity is priced by contract; preemptible is billed as spot."""


def price_per_hour(catalog: Catalog, accelerator: AcceleratorType, zone: str, tier: Tier) -> float | None:
    """USD per hour for the whole slice, or None where the table has no price."""
    prices = catalog.generations[accelerator.generation].prices.get(region_of(zone), {})
    column = _COLUMNS.get(tier)
    price = prices.get(column) if column else None
    return None if price is None else price * accelerator.chips
