"""Disks as rows: what is recorded, what is there, who uses it and what it costs."""

from __future__ import annotations

from typing import Any

from tpuctl.disks.make import get_record, list_records
from tpuctl.disks.rules import monthly_cost
from tpuctl.engine.services import Services
from tpuctl.model.disks import MASTER_LABEL, DiskInfo, DiskRecord


def list_rows(services: Services) -> tuple[list[dict[str, Any]], list[str]]:
    """Every recorded disk, masters followed by their copies; and the zones that were not read."""
    there = services.disks.list_disks()
    records = sorted(list_records(services), key=lambda each: (each.master, each.generation, each.name))
    alone = any(each.is_snapshot for each in records)
    snapshots = {each.name for each in services.disks.list_snapshots()} if alone else set()
    rows = []
    for each in records:
        place = each.request.zone, each.name
        disk = there.find(*place)
        absent = there.absent(*place)
        rows.append(_row(each, disk, _status(each, absent=absent, snapshot=each.snapshot in snapshots)))
    return rows, sorted({each.request.zone for each in records} & there.unreachable)


def _status(record: DiskRecord, *, absent: bool, snapshot: bool) -> str:
    """What is said of a record whose disk was not seen."""
    if not absent:
        return "not read"
    if record.is_leaving:
        return "being removed"
    return "snapshot only" if record.is_snapshot and snapshot else "not there"


def _row(record: DiskRecord, disk: DiskInfo | None, unseen: str) -> dict[str, Any]:
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
        "status": disk.status if disk is not None else unseen,
        "snapshot": record.snapshot,
        "used_by": list(disk.users) if disk is not None else [],
        "usd_per_month": None if price is None else round(price, 2),
    }


def describe(services: Services, name: str) -> dict[str, Any]:
    """One disk, its copies and its snapshots."""
    record = get_record(services, name)
    disk = services.disks.find_disk(record.request.zone, name)
    copies = [each.name for each in list_records(services) if each.master == name and each.generation]
    every = services.disks.list_snapshots()
    snapshots = [each.name for each in every if each.labels.get(MASTER_LABEL) == name]
    own = any(each.name == record.snapshot for each in every)
    return {
        **_row(record, disk, _status(record, absent=True, snapshot=own)),
        "created": disk.create_time if disk is not None else "",
        "label": record.fs_label,
        "copies": copies,
        "snapshots": snapshots,
    }
