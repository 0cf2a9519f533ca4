"""List prices from the accelerator table: read on one day, for a first idea, never for billing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from tpuctl.lib.names import region_of
from tpuctl.model.accelerators import AcceleratorType, Catalog
from tpuctl.model.cloud import CloudResource, ResourceKind, Tier

_COLUMNS = {Tier.SPOT: "spot", Tier.PREEMPTIBLE: "spot", Tier.ON_DEMAND: "on_demand"}
"""Reserved capacity is priced by contract; preemptible is billed as spot."""


def price_per_hour(catalog: Catalog, accelerator: AcceleratorType, zone: str, tier: Tier) -> float | None:
    """USD per hour for the whole slice, or None where the table has no price."""
    return chips_per_hour(catalog, accelerator.generation, accelerator.chips, region_of(zone), tier)


def chips_per_hour(catalog: Catalog, generation: str, chips: int, region: str, tier: Tier) -> float | None:
    """USD per hour for so many chips, or None where the table has no price."""
    known = catalog.generations.get(generation)
    column = _COLUMNS.get(tier)
    price = known.prices.get(region, {}).get(column) if known is not None and column else None
    return None if price is None else price * chips


HOURS_PER_MONTH = 730.0


class OtherPrices(Struct, frozen=True):
    """The content of `manifests/tables/other_prices.yaml`, USD."""

    data: Mapping[str, Any]

    @property
    def note(self) -> str:
        return str(self.data["prices_note"])

    def disk_month(
        self, kind: str, size_gib: int, throughput: int | None, iops: int | None = None
    ) -> float | None:
        """About what a disk costs in a month; None for a type that the table does not have."""
        row = self.data["disk"].get(kind)
        if row is None:
            return None
        return _disk_month(row, size_gib, throughput, iops)

    def snapshot_month(self, stored_bytes: int) -> float:
        """About what so much stored in snapshots costs in a month."""
        return float(self.data["snapshot"]["gib"]) * stored_bytes / (1 << 30)

    def per_hour(self, asset: CloudResource) -> float | None:
        """About what a resource costs per hour; None where the table or the resource does not tell."""
        table = self.data.get(str(asset.kind))
        if table is None:
            return None
        if asset.kind is ResourceKind.ADDRESS:
            found = table.get(asset.state)
            return None if found is None else float(found)
        row = table if "gib" in table else table.get(asset.type)
        if row is None or asset.size_gib is None or asset.at_least:
            return None
        return _disk_month(row, asset.size_gib, asset.throughput_mib_s, asset.iops) / HOURS_PER_MONTH


def _disk_month(row: Mapping[str, Any], size_gib: float, throughput: int | None, iops: int | None) -> float:
    """What is provisioned beyond what the type includes is paid for."""
    month = row["gib"] * size_gib
    month += row.get("throughput", 0.0) * max(0, (throughput or 0) - row.get("free_throughput", 0))
    month += row.get("iops", 0.0) * max(0, (iops or 0) - row.get("free_iops", 0))
    return float(month)
