"""What a disk costs in a month, by list prices."""

from __future__ import annotations

from tpuctl.model.shipped_files import load_other_prices


def monthly_cost(kind: str, size_gib: int, throughput: int | None, iops: int | None = None) -> float | None:
    """USD; None for a type without a known price."""
    return load_other_prices().disk_month(kind, size_gib, throughput, iops)
