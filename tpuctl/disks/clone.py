"""`disk clone`: a copy of a disk of one moment, read-only on every host of a slice.

Every step looks at what is there: the intent, the snapshot, the disk, the node's list, the mounts. The same
command again goes on where the last one stopped. What makes a copy trustworthy is the word that its master's
file system held while it was still, and a journal without anything to recover; hosts check both.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from tpuctl.disks.attach import attach
from tpuctl.disks.clone_request import CloneRequest, Plan, plan_clone
from tpuctl.disks.follow import note_mounted, remember
from tpuctl.disks.hosts import Mounted, Once
from tpuctl.disks.make import (
    ask_for,
    bring_about,
    get_record,
    new_record,
    save_record,
    take_snapshot,
    wait_snapshot,
)
from tpuctl.disks.remove import remove_snapshot
from tpuctl.disks.restore import Restore, restore
from tpuctl.disks.rules import DiskRules, refuse
from tpuctl.disks.slices import holders, place_of, writer_of
from tpuctl.disks.use import repair_disk
from tpuctl.engine.events import Note, Warn
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.model.disks import DataDisk, DiskMode, DiskRecord, DiskRequest
from tpuctl.model.records import SliceRecord
from tpuctl.model.slice_spec import DiskRef
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import despite_others
from tpuctl.transfer.bring_hosts import bring_hosts


def clone(
    services: Services,
    rules: DiskRules,
    request: CloneRequest,
    plan: Plan | None = None,
    *,
    deadline: float | None = None,
) -> DiskRecord:
    """The whole journey; the record of the copy at its end. `plan`: what `plan_clone` made of the request just
    now."""
    plan = plan or plan_clone(services, rules, request)
    for each in filter(None, plan.said):
        services.emit(Warn(plan.record.name, each))
    if plan.master.generation:
        return restore(services, Restore(plan.master, plan.record), deadline=deadline)
    record, master = save_record(services, plan.record), plan.master

    def copy(make: Callable[[], object]) -> None:
        if request.crash_consistent:
            make()
        else:
            _still(services, master, record, make)

    def snapshot() -> None:
        take_snapshot(services, master, record.snapshot, record.generation)

    if request.snapshot_only:
        copy(snapshot)
        return _complete(services, get_record(services, record.name), wanted=False)
    made = services.disks.find_disk(record.request.zone, record.name)
    if made is None and not request.from_snapshot:
        if record.snapshot:
            if services.disks.find_snapshot(record.snapshot) is None:
                copy(snapshot)
            wait_snapshot(services, record.snapshot, deadline=deadline)
        else:
            copy(lambda: bring_about(services, record.name, deadline=deadline))
    if made is not None:
        _let_go(services, master, record)
    record = get_record(services, record.name)
    bring_about(services, record.name, deadline=deadline)
    if request.rw:
        return _independent(services, get_record(services, record.name))
    if plan.on and not record.token:
        repair_disk(services, rules, record.name, on=plan.on, dry_run=False)
        record = get_record(services, record.name)
    if plan.target is not None:
        attach_copy(services, record, plan.target, plan.path, deadline=deadline)
    return _complete(services, get_record(services, record.name))


def _independent(services: Services, record: DiskRecord) -> DiskRecord:
    """A master that needs nothing any more of what it was made from; its word is that of its next clone."""
    if record.own_snapshot:
        remove_snapshot(services, record)
    return _complete(services, replace(record, token="", snapshot=""))


def _complete(services: Services, record: DiskRecord, *, wanted: bool = True) -> DiskRecord:
    return save_record(services, replace(record, complete=True, wanted=wanted))


def attach_copy(
    services: Services, record: DiskRecord, target: SliceRecord, path: str, *, deadline: float | None = None
) -> None:
    """Attaches a copy to all nodes of a slice and mounts it on every host."""
    place = place_of(services, target)
    record = save_record(services, replace(get_record(services, record.name), path=path))
    entry = DataDisk(record.request.zone, record.name, DiskMode.READ_ONLY)
    attach(services, place.zone, place.nodes, entry, deadline=deadline)
    kind = Mounted(
        record.name,
        path,
        record.fs_label,
        read_only=True,
        word=record.token,
        asked_by=services.ids.new_id(),
    )
    ref = DiskRef(record.name, path, DiskMode.READ_ONLY)
    unseen = entry not in place.disks
    note_mounted(services, (ref,), bring_hosts(services, target, [kind], deadline=deadline, unseen=unseen))
    remember(services, target.name, ref)
    services.emit(Note(target.name, f"disk {record.name} is at {path} on {place.hosts} hosts, read-only"))


def _still(services: Services, master: DiskRecord, record: DiskRecord, copy: Callable[[], object]) -> None:
    """Does `copy` while the file system of the master is held still, and lets it go on at once. A master that
    nobody writes needs no holding, and its copies hold no word."""
    writer = writer_of(services, master)
    if writer is None:
        disk = services.disks.find_disk(master.request.zone, master.name)
        if disk is not None and disk.users and not holders(services, master.request.zone, master.name):
            raise TpuctlError(
                f"disk {master.name} is used by {disk.users[0]}, which is no host of a slice of ours",
                hint="unmount it there and detach it, then clone",
            )
        save_record(services, replace(get_record(services, record.name), token=""))
        copy()
        return
    label, word, this_time = master.fs_label, record.token, services.ids.new_id()
    record_decision(services, master.key, "hold", f"for {record.name}, on {writer.name}")
    [row] = bring_hosts(services, writer, [Once("hold_disk", label, word, this_time)], workers=[0])
    how = row.get("how", "")
    services.emit(Note(master.name, f"held still on {writer.name}: {how}"))
    if how == "it is not mounted":
        save_record(services, replace(get_record(services, record.name), token=""))
    try:
        copy()
    finally:
        _let_go(services, master, record)


def _let_go(services: Services, master: DiskRecord, record: DiskRecord) -> None:
    """Ends what is held for this copy, also by a command that died before it did."""
    writer = writer_of(services, master)
    if writer is not None and record.token:
        once = Once("release_disk", master.fs_label, record.token, services.ids.new_id())
        bring_hosts(services, writer, [once], workers=[0], unseen=True)


def create_master(services: Services, rules: DiskRules, request: DiskRequest, label: str) -> DiskRecord:
    """Writes the intent of a new disk and makes it. One that is there already with the labels of this fleet is
    taken over, and what is on it is never formatted."""
    refuse(rules.check_new(request.type, request.size_gib, request.throughput_mib_s))
    blank = services.disks.find_disk(request.zone, request.name) is None
    record = new_record(services, request, master=request.name, generation=0, label=label, blank=blank)
    despite_others(services, lambda: ask_for(services, record))
    bring_about(services, request.name)

    def complete() -> DiskRecord:
        return save_record(services, replace(get_record(services, request.name), complete=True))

    return despite_others(services, complete)
