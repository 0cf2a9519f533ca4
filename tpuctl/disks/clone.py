"""`disk clone`: a copy of a disk of one moment, read-only on every host of a slice.

Every step looks at what is there: the intent, the snapshot, the disk, the node's list, the mounts. The same
command again goes on where the last one stopped. What makes a copy trustworthy is the word that its master's
file system held while it was still, and a journal without anything to recover; hosts check both.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.disks.attach import attach
from tpuctl.disks.follow import note_mounted, remember
from tpuctl.disks.hosts import Mounted, Once
from tpuctl.disks.make import (
    ask_for,
    bring_about,
    find_record,
    get_record,
    list_records,
    new_record,
    save_record,
    take_snapshot,
    wait_snapshot,
)
from tpuctl.disks.mount import bring_hosts
from tpuctl.disks.restore import Restore, plan_restore, restore
from tpuctl.disks.rules import DiskRules, refuse, warnings
from tpuctl.disks.slices import holders, place_of
from tpuctl.engine.events import Note, Warn
from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.lib.time import parse_timestamp
from tpuctl.model.disks import DataDisk, DiskInfo, DiskMode, DiskRecord, DiskRequest
from tpuctl.model.records import SliceRecord
from tpuctl.model.slice_spec import DiskRef
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import get_slice


class CloneRequest(Struct, frozen=True):
    """What `disk clone` was told. Empty and None: what follows from the slice and the master. A copy that goes
    `to` no slice is attached nowhere."""

    master: str
    to: str | None = None
    name: str = ""
    path: str = ""
    zone: str = ""
    type: str = ""
    throughput_mib_s: int | None = None
    snapshot_only: bool = False
    from_snapshot: str = ""


class Plan(Struct, frozen=True):
    """What comes of it, before anything is changed. `target` is None where the copy is attached nowhere."""

    record: DiskRecord
    master: DiskRecord
    disk: DiskInfo
    target: SliceRecord | None
    path: str
    said: tuple[str, ...] = ()


def plan_clone(services: Services, rules: DiskRules, request: CloneRequest) -> Plan:
    """Reads and decides; changes nothing. Raises UsageError for what cannot be."""
    master = get_record(services, request.master)
    disk = services.disks.find_disk(master.request.zone, master.name)
    if disk is None:
        raise NotFoundError(f"disk {master.name} is not in {master.request.zone}", hint="tpuctl disk ls")
    if master.generation:
        return _plan_elsewhere(services, rules, master, disk, request)
    target = None if request.to is None else get_slice(services, request.to).record
    place = place_of(services, target) if target is not None else None
    zone = place.zone if place is not None else request.zone or disk.zone
    generation = place.generation if place is not None else ""
    kind = request.type or rules.shared_type(disk.type, generation)
    if kind is None:
        raise UsageError(f"no copy of a {disk.type} disk can be shared on {generation}", hint="--type")
    readers = place.hosts if place is not None else 1
    throughput = request.throughput_mib_s or rules.throughput_for(kind, disk.size_gib, readers)
    by_snapshot = kind != disk.type or zone != disk.zone or request.snapshot_only or bool(request.from_snapshot)
    record = _unfinished(services, master, zone) or _new(services, master, request, zone)
    snapshot = request.from_snapshot or (f"{record.name}-s" if by_snapshot else "")
    wanted = DiskRequest(
        record.name,
        zone,
        kind,
        disk.size_gib,
        {},
        throughput,
        rules.access_mode_for(kind),
        "" if snapshot else disk.name,
        snapshot,
    )
    record = replace(record, request=wanted, snapshot=snapshot)
    findings = rules.check_new(kind, disk.size_gib, throughput)
    if place is not None:
        born = DiskInfo(record.name, zone, "", kind, disk.size_gib, "READY", wanted.access_mode)
        findings += rules.check_attach(born, DiskMode.READ_ONLY, place)
    refuse(findings)
    _check_rate(services, rules, disk, snapshot if not request.from_snapshot else "")
    path = request.path or f"/mnt/{master.name}"
    return Plan(record, master, disk, target, path, tuple(warnings(findings)))


def _plan_elsewhere(
    services: Services, rules: DiskRules, copy: DiskRecord, disk: DiskInfo, request: CloneRequest
) -> Plan:
    """The same clone in another zone: all that can be made of a clone."""
    if not request.zone or request != CloneRequest(copy.name, zone=request.zone):
        hint = f"tpuctl disk clone {copy.master}; for another zone: tpuctl disk clone {copy.name} --zone ZONE"
        raise UsageError(f"{copy.name} is a copy of {copy.master}", hint=hint)
    found = plan_restore(services, rules, copy, request.zone)
    refuse(found.findings)
    return Plan(found.record, copy, disk, None, copy.path, (*warnings(found.findings), found.said))


def _unfinished(services: Services, master: DiskRecord, zone: str) -> DiskRecord | None:
    """A copy that was begun and did not come to its end."""
    return next(
        (
            each
            for each in list_records(services)
            if each.master == master.name
            and each.generation
            and each.wanted
            and not each.complete
            and not each.parent
            and each.request.zone == zone
        ),
        None,
    )


def _new(services: Services, master: DiskRecord, request: CloneRequest, zone: str) -> DiskRecord:
    known = [each.generation for each in list_records(services) if each.master == master.name]
    generation = max(known, default=0) + 1
    name = request.name or f"{master.name}-g{generation}"
    found = find_record(services, name)
    if found is not None and found[0].wanted:
        raise UsageError(f"there is a disk {name} already", hint="another --name")
    record = new_record(
        services,
        DiskRequest(name, zone, "", 0, {}),
        master=master.name,
        generation=generation,
        label=master.fs_label,
    )
    return replace(record, blank=False, token=f"{name}-{int(record.created_at)}")


def _check_rate(services: Services, rules: DiskRules, disk: DiskInfo, snapshot: str) -> None:
    """Raises UsageError where a snapshot would be one too many, and says until when."""
    if not snapshot or services.disks.find_snapshot(snapshot) is not None:
        return
    now = services.clock.now()
    times = [
        parse_timestamp(each.create_time)
        for each in services.disks.list_snapshots()
        if each.source_uid == disk.uid
    ]
    wait_s = rules.copy_wait_s([at for at in times if at is not None], now)
    if wait_s > 0:
        minutes = int(wait_s // 60) + 1
        raise UsageError(
            f"disk {disk.name} was copied six times within an hour, as often as it can be",
            hint=f"in {minutes} min; or --from-snapshot with one of `tpuctl disk show {disk.name}`",
        )


def clone(
    services: Services, rules: DiskRules, request: CloneRequest, *, deadline: float | None = None
) -> DiskRecord:
    """The whole journey; the record of the copy at its end."""
    plan = plan_clone(services, rules, request)
    for each in filter(None, plan.said):
        services.emit(Warn(plan.record.name, each))
    if plan.master.generation:
        return restore(services, Restore(plan.master, plan.record), deadline=deadline)
    record, master = save_record(services, plan.record), plan.master
    if request.snapshot_only:
        _still(
            services,
            master,
            record,
            lambda: take_snapshot(services, master, record.snapshot, record.generation),
        )
        return _complete(services, record, wanted=False)
    made = services.disks.find_disk(record.request.zone, record.name)
    if made is None and not request.from_snapshot:
        if record.snapshot:
            if services.disks.find_snapshot(record.snapshot) is None:
                _still(
                    services,
                    master,
                    record,
                    lambda: take_snapshot(services, master, record.snapshot, record.generation),
                )
            wait_snapshot(services, record.snapshot, deadline=deadline)
        else:
            _still(services, master, record, lambda: bring_about(services, record.name, deadline=deadline))
    if made is not None:
        _let_go(services, master, record)
    record = get_record(services, record.name)
    bring_about(services, record.name, deadline=deadline)
    if plan.target is not None:
        attach_copy(services, record, plan.target, plan.path, deadline=deadline)
    return _complete(services, get_record(services, record.name))


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
    note_mounted(services, (ref,), bring_hosts(services, target, [kind], deadline=deadline))
    remember(services, target.name, ref)
    services.emit(Note(target.name, f"disk {record.name} is at {path} on {place.hosts} hosts, read-only"))


def _still(services: Services, master: DiskRecord, record: DiskRecord, copy: Callable[[], object]) -> None:
    """Does `copy` while the file system of the master is held still, and lets it go on at once. A master that
    nobody writes needs no holding, and its copies hold no word."""
    writer = _writer(services, master)
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
    writer = _writer(services, master)
    if writer is not None and record.token:
        once = Once("release_disk", master.fs_label, record.token, services.ids.new_id())
        bring_hosts(services, writer, [once], workers=[0])


def _writer(services: Services, master: DiskRecord) -> SliceRecord | None:
    """The slice of ours that writes a disk."""
    found = holders(services, master.request.zone, master.name)
    return next((slice_ for slice_, entry in found if entry.mode is DiskMode.READ_WRITE), None)


def create_master(services: Services, rules: DiskRules, request: DiskRequest, label: str) -> DiskRecord:
    """Writes the intent of a new disk and makes it."""
    refuse(rules.check_new(request.type, request.size_gib, request.throughput_mib_s))
    ask_for(services, new_record(services, request, master=request.name, generation=0, label=label))
    bring_about(services, request.name)
    record = replace(get_record(services, request.name), complete=True)
    return save_record(services, record)
