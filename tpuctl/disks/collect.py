"""Garbage collection of copies: which nobody needs, and removing them with their snapshots."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tpuctl.disks.follow import followed_by
from tpuctl.disks.make import bring_about, get_record, kept_disks, list_records, perform, save_record
from tpuctl.engine.services import Services
from tpuctl.lib.names import label_value
from tpuctl.model.cloud import STORE_LABEL, USER_LABEL
from tpuctl.model.disks import ComputeOperation, DiskRecord
from tpuctl.model.verdict import Done, Verdict, Wait
from tpuctl.state.journal import record_decision


def unused_copies(services: Services, keep: int) -> list[DiskRecord]:
    """This user's copies that no host uses, but for the newest of each master, and for those that were begun
    and are to be gone on with."""
    there = {(each.zone, each.name): each for each in services.disks.list_disks().items}
    copies = sorted(
        (each for each in list_records(services) if each.generation), key=lambda each: -each.generation
    )
    found, kept = [], dict[str, set[int]]()
    held = kept_disks(services)
    for record in copies:
        kept.setdefault(record.master, set()).add(record.generation)
        disk = there.get((record.request.zone, record.name))
        used = (disk is not None and bool(disk.users)) or bool(followed_by(services, record.name))
        used = used or record.name in held
        if len(kept[record.master]) > keep and not used and record.complete and record.owner == services.user:
            found.append(record)
    return found


def collect(services: Services, records: Sequence[DiskRecord]) -> None:
    """Removes copies with the snapshots that were made for them alone."""
    for record in records:
        save_record(services, replace(get_record(services, record.name), wanted=False))
        bring_about(services, record.name)
        if record.snapshot == f"{record.name}-s":
            remove_snapshot(services, record)
        document = services.store.get(record.key)
        if document is not None:
            services.store.delete(record.key, if_generation=document.generation)


def remove_snapshot(services: Services, record: DiskRecord) -> None:
    """Only one that carries our labels goes."""
    ours = {STORE_LABEL: services.store.identity(), USER_LABEL: label_value(record.owner)}

    def observe() -> Verdict | None:
        found = services.disks.find_snapshot(record.snapshot)
        if found is None or any(found.labels.get(key) != value for key, value in ours.items()):
            return Done()
        return Wait(f"snapshot {record.snapshot} is DELETING") if found.status == "DELETING" else None

    def call() -> ComputeOperation | None:
        record_decision(services, record.key, f"delete snapshot {record.snapshot}", "its copy is gone")
        return services.disks.delete_snapshot(record.snapshot)

    perform(services, f"snapshot {record.snapshot}", observe, call)
