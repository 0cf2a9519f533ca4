"""`disk rm`: a disk of this user that nobody uses, needs or keeps.

A copy goes with the snapshot that was made for it alone, or the next copy of that name would be made of it.
Killed in between, the record says that it is being removed, and `disk rm` or `disk gc` goes on.
"""

from __future__ import annotations

from msgspec.structs import replace

from tpuctl.disks.follow import followed_by
from tpuctl.disks.leases import alone_with_disk
from tpuctl.disks.make import bring_about, get_record, kept_disks, remove_snapshot, save_record
from tpuctl.engine.services import Services
from tpuctl.errors import UsageError
from tpuctl.lib.text import counted


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
    document = services.store.get(record.key)
    if document is not None:
        services.store.delete(record.key, if_generation=document.generation)
