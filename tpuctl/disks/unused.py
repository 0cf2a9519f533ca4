"""Disks and snapshots of this user that nobody uses, and what they cost while they are there."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tpuctl.disks.follow import followed_by
from tpuctl.disks.make import kept_disks, list_records
from tpuctl.disks.rules import monthly_cost
from tpuctl.engine.services import Services
from tpuctl.model.cloud import Listing, ResourceKind
from tpuctl.model.disks import DiskInfo, DiskRecord, SnapshotInfo
from tpuctl.model.shipped_files import load_other_prices


class UnusedDisk(Struct, frozen=True):
    """A disk, or a copy of one with its snapshot. `usd_per_month` is None without a known price; `command`
    removes a copy, and shows what is there once."""

    name: str
    kind: ResourceKind
    zone: str
    usd_per_month: float | None
    command: str


class UnusedDisks(Struct, frozen=True):
    """What nobody uses, and the zones with disks of ours that were not read: what is there is unknown."""

    found: tuple[UnusedDisk, ...] = ()
    unread: tuple[str, ...] = ()


def unused_disks(services: Services) -> UnusedDisks:
    """What no host has, no slice wants and no run is kept with, as far as zones were read. Nothing is asked of
    the cloud where nothing is recorded."""
    own = [each for each in list_records(services) if each.owner == services.user]
    records = [each for each in own if each.complete or each.is_leaving]
    if not records:
        return UnusedDisks()
    there = services.disks.list_disks()
    snapshots = {each.name: each for each in services.disks.list_snapshots()}
    kept = kept_disks(services)
    found = []
    for record in sorted(records, key=lambda each: (each.master, each.generation, each.name)):
        place = record.request.zone, record.name
        disk = there.find(*place)
        snapshot = snapshots.get(record.snapshot) if record.own_snapshot else None
        if disk is None and (snapshot is None or not there.absent(*place)):
            continue
        if (disk is not None and disk.users) or record.name in kept or followed_by(services, record.name):
            continue
        found.append(_judge(record, disk, snapshot, _command_for(record, records, there)))
    unread = {each.request.zone for each in records} & there.unreachable
    return UnusedDisks(tuple(found), tuple(sorted(unread)))


def _command_for(record: DiskRecord, records: Sequence[DiskRecord], there: Listing[DiskInfo]) -> str:
    """What to type about an unused disk. Deleting is proposed of what can be made again: a copy whose master is
    there, and what somebody began to remove."""
    if record.is_leaving:
        return f"tpuctl disk rm {record.name}"
    master = next((each for each in records if each.name == record.master and not each.generation), None)
    seen = master is not None and there.find(master.request.zone, master.name) is not None
    if record.generation and seen and not record.is_snapshot:
        return "tpuctl disk gc --keep 0"
    return f"tpuctl disk show {record.name}"


def _judge(
    record: DiskRecord, disk: DiskInfo | None, snapshot: SnapshotInfo | None, command: str
) -> UnusedDisk:
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
