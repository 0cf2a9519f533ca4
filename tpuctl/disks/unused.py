"""Disks and snapshots of this user that nobody uses, and what they cost while they are there."""

from __future__ import annotations

from msgspec import Struct

from tpuctl.disks.costs import monthly_cost
from tpuctl.disks.follow import followed_by
from tpuctl.disks.make import kept_disks, list_records
from tpuctl.engine.services import Services
from tpuctl.model.cloud import ResourceKind
from tpuctl.model.disks import DiskInfo, DiskRecord, SnapshotInfo
from tpuctl.model.shipped_files import load_other_prices


class UnusedDisk(Struct, frozen=True):
    """A disk, or a copy of one with its snapshot. `usd_per_month` is None without a known price; `command`
    removes it."""

    name: str
    kind: ResourceKind
    zone: str
    usd_per_month: float | None
    command: str


def unused_disks(services: Services) -> tuple[UnusedDisk, ...]:
    """What no host has, no slice wants and no run is kept with. Nothing is asked of the cloud where nothing is
    recorded."""
    records = [each for each in list_records(services) if each.owner == services.user and each.complete]
    if not records:
        return ()
    disks = {(each.zone, each.name): each for each in services.disks.list_disks().items}
    snapshots = {each.name: each for each in services.disks.list_snapshots()}
    kept = kept_disks(services)
    found = []
    for record in sorted(records, key=lambda each: (each.master, each.generation, each.name)):
        disk = disks.get((record.request.zone, record.name))
        snapshot = snapshots.get(record.snapshot) if record.snapshot == f"{record.name}-s" else None
        if (disk is None and snapshot is None) or (disk is not None and disk.users) or record.name in kept:
            continue
        if not followed_by(services, record.name):
            found.append(_judge(record, disk, snapshot))
    return tuple(found)


def _judge(record: DiskRecord, disk: DiskInfo | None, snapshot: SnapshotInfo | None) -> UnusedDisk:
    command = "tpuctl disk gc --keep 0" if record.generation else f"tpuctl disk rm {record.name}"
    stored = snapshot.stored_bytes if snapshot is not None else 0
    kept = load_other_prices().snapshot_month(stored)
    if disk is None:
        return UnusedDisk(record.snapshot, ResourceKind.SNAPSHOT, "", kept, command)
    price = monthly_cost(disk.type, disk.size_gib, disk.throughput_mib_s, disk.iops)
    month = None if price is None else price + kept
    return UnusedDisk(record.name, ResourceKind.DISK, disk.zone, month, command)


def cost_in_words(found: tuple[UnusedDisk, ...]) -> str:
    """`about $12.00 a month`, with what has no known price."""
    cost = sum(each.usd_per_month or 0.0 for each in found)
    unknown = sum(each.usd_per_month is None for each in found)
    return f"about ${cost:.2f} a month" + (f" and {unknown} of unknown price" if unknown else "")
