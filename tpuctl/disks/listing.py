"""Disks as rows: what is recorded, what is there, who uses it and what it costs."""

from __future__ import annotations

from typing import Any

from tpuctl.disks.costs import monthly_cost
from tpuctl.disks.make import get_record, list_records
from tpuctl.engine.services import Services
from tpuctl.model.disks import MASTER_LABEL, DiskInfo, DiskRecord


def list_rows(services: Services) -> list[dict[str, Any]]:
    """Every recorded disk, masters followed by their copies."""
    there = {(each.zone, each.name): each for each in services.disks.list_disks().items}
    records = sorted(list_records(services), key=lambda each: (each.master, each.generation, each.name))
    return [_row(each, there.get((each.request.zone, each.name))) for each in records]


def _row(record: DiskRecord, disk: DiskInfo | None) -> dict[str, Any]:
    kind = disk.type if disk is not None else record.request.type
    size = disk.size_gib if disk is not None else record.request.size_gib
    price = monthly_cost(kind, size, disk.throughput_mib_s, disk.iops) if disk is not None else None
    return {
        "name": record.name,
        "master": record.master,
        "generation": record.generation,
        "parent": record.parent,
        "zone": record.request.zone,
        "type": kind,
        "size_gib": size,
        "status": disk.status if disk is not None else ("snapshot only" if not record.wanted else "not there"),
        "snapshot": record.snapshot,
        "used_by": list(disk.users) if disk is not None else [],
        "usd_per_month": None if price is None else round(price, 2),
    }


def describe(services: Services, name: str) -> dict[str, Any]:
    """One disk, its copies and its snapshots."""
    record = get_record(services, name)
    disk = services.disks.find_disk(record.request.zone, name)
    copies = [each.name for each in list_records(services) if each.master == name and each.generation]
    snapshots = [each.name for each in services.disks.list_snapshots() if each.labels.get(MASTER_LABEL) == name]
    return {
        **_row(record, disk),
        "created": disk.create_time if disk is not None else "",
        "label": record.fs_label,
        "copies": copies,
        "snapshots": snapshots,
    }
