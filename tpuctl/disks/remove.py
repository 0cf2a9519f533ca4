"""`disk rm`: a disk of this user that nobody uses, needs or keeps.

A copy goes with the snapshot that was made for it alone, or the next copy of that name would be made of it.
Killed in between, the record says that it is being removed, and `disk rm` or `disk gc` goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.disks.follow import followed_by
from tpuctl.disks.leases import alone_with_disk
from tpuctl.disks.make import bring_about, get_record, kept_disks, list_records, remove_snapshot, save_record
from tpuctl.engine.services import Services
from tpuctl.errors import UsageError
from tpuctl.lib.text import counted
from tpuctl.model.cloud import Listing
from tpuctl.model.disks import DiskInfo, DiskRecord
from tpuctl.state.repository import DISKS


def check_removable(services: Services, name: str) -> None:
    """Raises UsageError for a disk that somebody uses, or that is another user's. Changes nothing."""
    record = get_record(services, name)
    if record.owner != services.user:
        raise UsageError(f"{name} is {record.owner}'s; you are {services.user}", hint="ask them")
    disk = services.disks.find_disk(record.request.zone, name)
    if disk is not None and disk.users:
        who = ", ".join(sorted(disk.users)[:8]) + (", …" if len(disk.users) > 8 else "")
        users = counted(len(disk.users), "host")
        raise UsageError(f"{name} is attached to {users}: {who}", hint=f"tpuctl disk detach {name}")
    run = kept_disks(services).get(name)
    if run is not None:
        raise UsageError(f"{name} is kept for run {run}", hint=f"tpuctl keep {run} --release")
    wanted = followed_by(services, name)
    if wanted:
        raise UsageError(f"{name} is a disk of slice {wanted[0]}", hint=f"tpuctl down {wanted[0]}")


@alone_with_disk
def remove_disk(services: Services, name: str) -> None:
    """Until it is gone, with its record and its own snapshot. Raises UsageError for one that is used, and then
    the record is as it was."""
    check_removable(services, name)
    record = get_record(services, name)
    save_record(services, replace(record, wanted=False, complete=False))
    try:
        bring_about(services, name)
    except UsageError:  # somebody has taken it since the look
        save_record(services, record)
        raise
    if record.own_snapshot:
        remove_snapshot(services, record)
    DISKS.delete(services, record.name)


class Collectable(Struct, frozen=True):
    """Copies that can go, newest first, and the zones that were not read: what is there stays."""

    records: tuple[DiskRecord, ...]
    unread: tuple[str, ...]


def unused_copies(services: Services, keep: int) -> Collectable:
    """This user's copies that no host uses, no slice wants and no run is kept with, but for the `keep` newest
    of each master that are there."""
    there = services.disks.list_disks()
    records = list_records(services)
    held = kept_disks(services)
    found = [
        each
        for each in judge_copies(records, there, keep)
        if each.owner == services.user and each.name not in held and not followed_by(services, each.name)
    ]
    zones = {each.request.zone for each in records if each.generation}
    return Collectable(tuple(found), tuple(sorted(zones & there.unreachable)))


def judge_copies(records: Sequence[DiskRecord], there: Listing[DiskInfo], keep: int) -> list[DiskRecord]:
    """The copies that are not among the `keep` newest of their master that exist. Pure.

    A copy counts where its disk is seen and it was completed. A snapshot that was asked for as such stays, and
    so does what an unfinished copy is made of. What was not read, is used or is unfinished stays, too; what is
    being removed already goes.
    """
    named = _sources_of(each for each in records if each.wanted and not each.complete)
    exist: dict[str, set[int]] = {}
    for each in records:
        if each.wanted and each.complete and there.find(each.request.zone, each.name) is not None:
            exist.setdefault(each.master, set()).add(each.generation)
    copies = sorted((each for each in records if each.generation), key=lambda each: -each.generation)
    return [each for each in copies if _may_go(each, there, exist.get(each.master, set()), named, keep)]


def _may_go(
    record: DiskRecord,
    there: Listing[DiskInfo],
    exist: Collection[int],
    named: Collection[str],
    keep: int,
) -> bool:
    disk = there.find(record.request.zone, record.name)
    unclear = disk is None and not there.absent(record.request.zone, record.name)
    if unclear or (disk is not None and disk.users) or record.name in named:
        return False
    if record.is_leaving:
        return True
    newer = sum(each > record.generation for each in exist)
    return record.wanted and record.complete and newer >= keep


def _sources_of(records: Iterable[DiskRecord]) -> set[str]:
    """The disks that these are made from, and those whose snapshots they are made from."""
    found: set[str] = set()
    for each in records:
        snapshots = (each.snapshot, each.request.source_snapshot)
        found |= {each.parent, each.request.source_disk, *(name.removesuffix("-s") for name in snapshots)}
    return found
