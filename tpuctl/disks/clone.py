"""`disk clone`: a copy of a disk of one moment, read-only on every host of a slice.

Every step looks at what is there: the intent, the snapshot, the disk, the node's list, the mounts. The same
command again goes on where the last one stopped. What makes a copy trustworthy is that it began while the file
system of its master was held, the word that this held, and a journal without anything to recover; hosts check
both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tpuctl.disks.attach import attach
from tpuctl.disks.clone_request import ClonePlan, check_rate, plan_clone
from tpuctl.disks.follow import mount_on
from tpuctl.disks.hold import Hold, make_under, note_over, take_hold
from tpuctl.disks.leases import has_waited, lease_master, master_of
from tpuctl.disks.make import (
    ask_for,
    bring_about,
    get_record,
    new_record,
    no_disk,
    remove_snapshot,
    save_record,
    take_snapshot,
    wait_snapshot,
)
from tpuctl.disks.restore import Restore, restore
from tpuctl.disks.rules import DiskRules, refuse
from tpuctl.disks.slices import place_of, writer_of
from tpuctl.disks.use import repair_disk
from tpuctl.engine.events import Note, Warn
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.model.disks import DataDisk, DiskMode, DiskRecord, DiskRequest
from tpuctl.model.records import SliceRecord
from tpuctl.model.refs import DiskRef
from tpuctl.model.requests import CloneRequest
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import DISKS


def clone(
    services: Services,
    rules: DiskRules,
    request: CloneRequest,
    plan: ClonePlan | None = None,
    *,
    deadline: float | None = None,
) -> DiskRecord:
    """The whole journey; the record of the copy at its end, alone with its master. `plan`: what `plan_clone`
    made of the request just now, which it is not any more if another command had to end first."""
    with lease_master(services, master_of(services, request.master), deadline=deadline) as held:
        return _clone(held, rules, request, None if has_waited(held) else plan, deadline)


def _clone(
    services: Services, rules: DiskRules, request: CloneRequest, plan: ClonePlan | None, deadline: float | None
) -> DiskRecord:
    plan = plan or plan_clone(services, rules, request)
    if plan.done:
        return plan.record
    for each in filter(None, plan.said):
        services.emit(Warn(plan.record.name, each))
    if plan.master.generation:
        return restore(services, Restore(plan.master, plan.record), deadline=deadline)
    record = save_record(services, plan.record)
    if not request.from_snapshot:
        _copy(services, rules, plan, request, deadline)
    record = get_record(services, record.name)
    if request.snapshot_only:
        return _complete(services, record, wanted=False)
    if record.snapshot and services.disks.find_disk(record.request.zone, record.name) is None:
        wait_snapshot(services, record.snapshot, deadline=deadline)
    bring_about(services, record.name, deadline=deadline)
    if request.rw:
        return _independent(services, get_record(services, record.name), deadline)
    record = get_record(services, record.name)
    if plan.on and not record.token:
        repair_disk(services, rules, record.name, on=plan.on, dry_run=False, deadline=deadline)
        record = get_record(services, record.name)
    if plan.target is not None:
        attach_copy(services, record, plan.target, plan.path, deadline=deadline)
    return _complete(services, get_record(services, record.name))


def _copy(
    services: Services, rules: DiskRules, plan: ClonePlan, request: CloneRequest, deadline: float | None
) -> None:
    """Until the copy, or the snapshot that it is made of, has begun while its master was held still. One that
    began later is deleted and made again, once."""
    name, snapshot, master = plan.record.name, plan.record.snapshot, plan.master

    def make(meanwhile: Callable[[], None]) -> None:
        more: dict[str, Any] = {"deadline": deadline, "meanwhile": meanwhile}
        try:
            if snapshot:
                take_snapshot(services, master, snapshot, plan.record.generation, **more)
            else:
                bring_about(services, name, **more)
        except BaseException:
            note_over(services, get_record(services, name))  # what begins yet, begins after the hold
            raise

    for last in (False, True):
        record = get_record(services, name)
        exists = _exists(services, record)
        if exists and not record.hold:
            return
        if request.crash_consistent and not exists:
            make(lambda: None)
            return
        if exists:
            # What a command that died holds for this copy, or did.
            writer = writer_of(services, master)
            hold: Hold | None = Hold(services, master, writer, record.hold, deadline)
        else:
            hold = take_hold(services, master, record, unmount=request.unmount, deadline=deadline)
        if make_under(hold, make):
            save_record(services, replace(get_record(services, name), hold=""))
            return
        what = f"snapshot {snapshot}" if snapshot else f"disk {name}"
        why = f"{what} began after {master.name} had gone on: what it has is of no one moment"
        _discard(services, get_record(services, name), why, deadline)
        if last:
            raise TpuctlError(f"{why}, twice", hint="the same later, or with --unmount or --crash-consistent")
        services.emit(Warn(name, f"{why}; it is made again"))
        check_rate(services, rules, plan.disk, snapshot, gone=1)


def _exists(services: Services, record: DiskRecord) -> bool:
    made = services.disks.find_disk(record.request.zone, record.name) is not None
    return made or (record.snapshot != "" and services.disks.find_snapshot(record.snapshot) is not None)


def _discard(services: Services, record: DiskRecord, why: str, deadline: float | None) -> None:
    """Deletes a copy that began too late, as what is ours; its record wants another one."""
    record_decision(services, record.key, "discard", why)
    if record.snapshot:
        remove_snapshot(services, record, deadline=deadline)
    else:
        save_record(services, replace(record, wanted=False))
        bring_about(services, record.name, deadline=deadline)
    save_record(services, replace(record, hold="", created_at=services.store.now()))


def _independent(services: Services, record: DiskRecord, deadline: float | None) -> DiskRecord:
    """A master that needs nothing any more of what it was made from; its word is that of its next clone."""
    if record.own_snapshot:
        remove_snapshot(services, record, deadline=deadline)
    return _complete(services, replace(record, token="", snapshot=""))


def _complete(services: Services, record: DiskRecord, *, wanted: bool = True) -> DiskRecord:
    return save_record(services, replace(record, complete=True, wanted=wanted))


def attach_copy(
    services: Services, record: DiskRecord, target: SliceRecord, path: str, *, deadline: float | None = None
) -> None:
    """Attaches a copy to all nodes of a slice and mounts it on every host."""
    place = place_of(services, target)
    ref = DiskRef(record.name, path, DiskMode.READ_ONLY)
    entry = DataDisk(record.request.zone, record.name, ref.mode)
    attach(services, place.zone, place.nodes, entry, api=place.api, deadline=deadline)
    mount_on(services, record, target, ref, unseen=entry not in place.disks, deadline=deadline)
    services.emit(Note(target.name, f"disk {record.name} is at {path} on {place.hosts} hosts, read-only"))


def create_master(services: Services, rules: DiskRules, request: DiskRequest, label: str) -> DiskRecord:
    """Writes the intent of a new disk and makes it. One that is there already with the labels of this fleet is
    taken over, and what is on it is never formatted."""
    refuse(rules.check_new(request.type, request.size_gib, request.throughput_mib_s))
    blank = services.disks.find_disk(request.zone, request.name) is None
    record = new_record(services, request, master=request.name, generation=0, label=label, blank=blank)
    ask_for(services, record)
    bring_about(services, request.name)

    def complete(there: DiskRecord | None) -> DiskRecord:
        if there is None:
            raise no_disk(services, request.name)
        return replace(there, complete=True)

    return DISKS.update(services, request.name, complete)
