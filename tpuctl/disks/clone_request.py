"""What `disk clone` makes of what it was told: read and decided before anything is changed."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.disks.fitting import shared_type_in
from tpuctl.disks.follow import check_free
from tpuctl.disks.make import find_record, get_disk, get_record, list_records, new_record
from tpuctl.disks.restore import find_in_zone, plan_restore, refs_in_zone
from tpuctl.disks.rules import DiskRules, DiskTarget, RuleFinding, refuse, warnings
from tpuctl.disks.slices import check_on_hosts, place_of, writer_of
from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.lib.mount_paths import check_place
from tpuctl.lib.names import check_disk_name
from tpuctl.lib.time import parse_timestamp
from tpuctl.model.disks import MASTER_LABEL, SHARED, DataDisk, DiskInfo, DiskMode, DiskRecord, DiskRequest
from tpuctl.model.records import SliceRecord
from tpuctl.model.requests import CloneRequest, Purpose
from tpuctl.state.repository import get_slice


class ClonePlan(Struct, frozen=True):
    """What comes of it, before anything is changed. `target` is None where the copy is attached nowhere, `on`
    where it is repaired, if it has to be."""

    record: DiskRecord
    master: DiskRecord
    disk: DiskInfo
    target: SliceRecord | None
    path: str
    said: tuple[str, ...] = ()
    on: str = ""
    done: bool = False
    """The same command has come to its end before; nothing is left to do."""


class _Goal(Struct, frozen=True):
    """Where a copy goes: to the hosts of `target` at `path`, or nowhere but its zone."""

    target: SliceRecord | None
    place: DiskTarget | None
    zone: str
    purpose: Purpose
    path: str


def plan_clone(services: Services, rules: DiskRules, request: CloneRequest) -> ClonePlan:
    """Reads and decides; changes nothing. Raises UsageError for what cannot be."""
    check_place_of_copy(request)
    master = get_record(services, request.master)
    disk = get_disk(services, master)
    if master.generation:
        return _plan_elsewhere(services, rules, master, disk, request)
    _check_together(request)
    goal = _goal_of(services, master, disk, request)
    kind = request.type or (disk.type if request.rw else _type_of(rules, disk, goal, request))
    if kind is None:
        where = goal.purpose.generation or goal.zone
        raise UsageError(f"no copy of a {disk.type} disk can be shared on {where}", hint="--type")
    made = _finished(services, master, request, goal)
    if made is not None and services.disks.find_disk(goal.zone, made.name) is not None:
        return ClonePlan(made, master, disk, goal.target, goal.path, done=True)
    record, others = _record_of(services, master, request, goal.zone, kind)
    record = _wanted_as(rules, record, disk, request, goal, kind)
    findings = _findings(rules, record, disk, request, goal)
    refuse(findings)
    on = ""
    exists = services.disks.find_disk(goal.zone, record.name) is not None
    if request.crash_consistent and not request.rw and not (exists and record.token):
        on = _repaired_on(services, rules, master, _born(record), request)
    if not exists and (request.from_snapshot or request.crash_consistent):
        word = _word_of(services, master, disk, request.from_snapshot) if request.from_snapshot else ""
        record = replace(record, token="" if request.crash_consistent else word)
    check_rate(services, rules, disk, record.snapshot if not request.from_snapshot else "")
    if goal.target is not None:
        check_free(services, goal.target, record.name, goal.path)
        if request.path:
            check_on_hosts(services, goal.target, goal.path)
    left = ""
    if others:
        left = f"{', '.join(others)} of {master.name} was begun and is another copy, left as it is"
        left += f": tpuctl disk rm {others[0]}"
    return ClonePlan(record, master, disk, goal.target, goal.path, (*warnings(findings), left), on)


def _goal_of(services: Services, master: DiskRecord, disk: DiskInfo, request: CloneRequest) -> _Goal:
    if request.path:
        check_place(request.path, field="path", what="disk", hint="--path /mnt/data")
    path = request.path or f"/mnt/{master.name}"
    if request.to is None:
        return _Goal(None, None, request.zone or disk.zone, request.purpose, path)
    target = get_slice(services, request.to).record
    place = place_of(services, target)
    return _Goal(target, place, place.zone, Purpose(place.generation, place.hosts), path)


def _record_of(
    services: Services, master: DiskRecord, request: CloneRequest, zone: str, kind: str
) -> tuple[DiskRecord, list[str]]:
    """The intent of the copy, new or begun before, and the names of other copies that were begun."""
    if request.rw:
        return _next_master(services, master, request, zone, kind), []
    begun = _unfinished(services, master, zone)
    fits = [each for each in begun if _is_same(each, request, kind)]
    record = fits[0] if fits else _new(services, master, request, zone)
    return record, [each.name for each in begun if each.name != record.name]


def _wanted_as(
    rules: DiskRules, record: DiskRecord, disk: DiskInfo, request: CloneRequest, goal: _Goal, kind: str
) -> DiskRecord:
    """The intent, with what is asked of Compute: a snapshot comes between where type or zone differ."""
    apart = (kind, goal.zone) != (disk.type, disk.zone)
    own = f"{record.name}-s" if apart or request.snapshot_only else ""
    snapshot = request.from_snapshot or own
    wanted = DiskRequest(
        record.name,
        goal.zone,
        kind,
        disk.size_gib,
        {},
        request.throughput or rules.throughput_for(kind, disk.size_gib, goal.purpose.hosts),
        "" if request.rw else rules.access_mode_for(kind),
        "" if snapshot else disk.name,
        snapshot,
    )
    return replace(record, request=wanted, snapshot=snapshot)


def _born(record: DiskRecord) -> DiskInfo:
    """The disk as it will be."""
    has = record.request
    return DiskInfo(
        record.name, has.zone, "", has.type, has.size_gib, "READY", has.access_mode, has.throughput_mib_s
    )


def _findings(
    rules: DiskRules, record: DiskRecord, disk: DiskInfo, request: CloneRequest, goal: _Goal
) -> list[RuleFinding]:
    """What the rules say of the copy."""
    kind, place = record.request.type, goal.place
    found = rules.check_new(kind, disk.size_gib, record.request.throughput_mib_s)
    found += rules.check_master(kind) if request.rw else []
    if place is None:
        return found + rules.check_type(kind, goal.purpose.generation)
    repaired = _after_repair(place, record) if request.crash_consistent else place
    return found + rules.check_attach(_born(record), DiskMode.READ_ONLY, repaired)


def _finished(services: Services, master: DiskRecord, request: CloneRequest, goal: _Goal) -> DiskRecord | None:
    """What the same command made before: the copy at this path of the slice, or what has the name that was
    asked for. Without either, each command makes another copy."""
    if request.snapshot_only:
        return None
    names = [request.name] if request.name else []
    if goal.target is not None:
        there = refs_in_zone(services, goal.target.spec.disks, goal.zone)
        names = [ref.name for ref in there if ref.path == goal.path and request.name in ("", ref.name)]
    for name in names:
        record = find_record(services, name)
        if record is None:
            continue
        of = record.parent if request.rw else record.master
        same = of == master.name and (record.generation == 0) is request.rw and record.request.zone == goal.zone
        as_asked = request.type in ("", record.request.type) and request.from_snapshot in ("", record.snapshot)
        if same and as_asked and record.wanted and record.complete:
            return record
    return None


def _type_of(rules: DiskRules, disk: DiskInfo, goal: _Goal, request: CloneRequest) -> str | None:
    """The type of a copy for readers; a snapshot alone can become a disk of any type."""
    if request.snapshot_only:
        return rules.shared_type(disk.type, goal.purpose.generation) or disk.type
    return shared_type_in(rules, disk.type, goal.zone, goal.purpose.generation)


def check_place_of_copy(request: CloneRequest) -> None:
    """Raises UsageError for a copy that cannot be both where and for what it is asked for."""
    if request.to is None:
        return
    if request.zone or request.snapshot_only:
        flag = "--zone" if request.zone else "--snapshot-only"
        raise UsageError(f"with {flag} the copy is attached nowhere", hint=f"without {flag}, or without --to")
    if request.purpose != Purpose():
        raise UsageError(f"--to {request.to} says what the copy is for", hint="without --for, or without --to")


def _check_together(request: CloneRequest) -> None:
    """Raises UsageError for what does not go together."""
    if request.name:
        check_disk_name(request.name)
    if request.rw and not request.name:
        hint = f"tpuctl disk clone {request.master} --rw --name {request.master}-2"
        raise UsageError("a master of its own needs a name", hint=hint)
    if request.rw and request.to is not None:
        hint = f"without --to; then tpuctl disk attach {request.name} --to {request.to}"
        raise UsageError("with --rw the clone is attached nowhere", hint=hint)
    if request.snapshot_only and (request.rw or request.crash_consistent):
        flag = "--rw" if request.rw else "--crash-consistent"
        raise UsageError(f"--snapshot-only and {flag} exclude each other", hint="one of them")
    if request.unmount and (request.crash_consistent or request.from_snapshot):
        flag = "--crash-consistent" if request.crash_consistent else "--from-snapshot"
        raise UsageError(f"with {flag} nothing is held still", hint=f"without --unmount, or without {flag}")
    if request.on is not None and (request.rw or not request.crash_consistent):
        raise UsageError("--on says where a clone is repaired, and this one is not", hint="--crash-consistent")


def _after_repair(place: DiskTarget, record: DiskRecord) -> DiskTarget:
    """Without the copy, where a repair that was interrupted has it attached to be written: it is repaired and
    detached before it is attached again."""
    own = DataDisk(record.request.zone, record.name, DiskMode.READ_WRITE)
    return replace(place, disks=tuple(each for each in place.disks if record.token or each != own))


def _repaired_on(
    services: Services, rules: DiskRules, master: DiskRecord, born: DiskInfo, request: CloneRequest
) -> str:
    """The slice on which the clone is repaired. Raises UsageError where it cannot be."""
    if born.access_mode == SHARED:
        why = f"a {born.type} clone is read-only from its birth on, and a repair writes to it"
        raise UsageError(why, hint=f"tpuctl disk clone {master.name}, which holds the file system still")
    writer = writer_of(services, master)
    name = request.on or (writer.name if writer is not None else "")
    if not name:
        raise UsageError(
            "on which slice is the clone repaired?", hint=f"--on SLICE, of one host in {born.zone}"
        )
    place = place_of(services, get_slice(services, name).record)
    if place.zone != born.zone:
        why = f"the clone is in {born.zone}, and slice {name} in {place.zone}"
        raise UsageError(why, hint=f"--on SLICE, of one host in {born.zone}")
    refuse(rules.check_attach(born, DiskMode.READ_WRITE, place))
    return name


def _word_of(services: Services, master: DiskRecord, disk: DiskInfo, snapshot: str) -> str:
    """What the file system holds in an older snapshot; empty where nobody knows. Raises UsageError for one that
    is not of this disk."""
    found = services.disks.find_snapshot(snapshot)
    if found is None:
        raise NotFoundError(f"no snapshot called {snapshot}", hint=f"tpuctl disk show {master.name}")
    if found.labels.get(MASTER_LABEL) != master.name and found.source_uid != disk.uid:
        why = f"snapshot {snapshot} is not of disk {master.name}"
        raise UsageError(why, hint=f"one of `tpuctl disk show {master.name}`")
    return next((each.token for each in list_records(services) if each.name == snapshot.removesuffix("-s")), "")


def _plan_elsewhere(
    services: Services, rules: DiskRules, copy: DiskRecord, disk: DiskInfo, request: CloneRequest
) -> ClonePlan:
    """The same clone in another zone, maybe of another type: all that can be made of a clone."""
    kind, rate, goal = request.type, request.throughput, request.purpose
    can = CloneRequest(copy.name, zone=request.zone, type=kind, purpose=goal, throughput=rate)
    if not request.zone or request != can:
        hint = f"tpuctl disk clone {copy.master}; for another zone: tpuctl disk clone {copy.name} --zone ZONE"
        raise UsageError(f"{copy.name} is a copy of {copy.master}", hint=hint)
    fits = kind
    if not kind and find_in_zone(services, copy.name, request.zone) is None:
        fits = shared_type_in(rules, copy.request.type, request.zone, goal.generation) or ""
    found = plan_restore(services, rules, copy, request.zone, fits, rate, readers=goal.hosts)
    there, has = found.record, found.record.request
    for flag, differs in (
        ("type", kind not in ("", has.type)),
        ("throughput", rate not in (None, has.throughput_mib_s)),
    ):
        if differs:
            what = f"{has.type} disk" + (f" of {has.throughput_mib_s} MiB/s" if has.throughput_mib_s else "")
            said = f"{there.name} has the same content in {request.zone}, and is a {what}"
            raise UsageError.of(flag, said, f"without --{flag}; or tpuctl disk rm {there.name} first")
    refuse(found.findings)
    return ClonePlan(found.record, copy, disk, None, copy.path, (*warnings(found.findings), found.said))


def _unfinished(services: Services, master: DiskRecord, zone: str) -> list[DiskRecord]:
    """Copies that were begun and did not come to their end."""
    return [
        each
        for each in list_records(services)
        if each.master == master.name
        and each.generation
        and each.wanted
        and not each.complete
        and not each.parent
        and each.request.zone == zone
    ]


def _is_same(begun: DiskRecord, request: CloneRequest, kind: str) -> bool:
    """Whether what was begun is what is asked for now: a copy of the same source, also by its name and type.
    What is there of it was made of its own source, and is never taken for another's."""
    named = request.name in ("", begun.name)
    return named and begun.request.type == kind and _source_of(begun) == request.from_snapshot


def _source_of(begun: DiskRecord) -> str:
    """The snapshot that somebody named; empty for a copy of its master as it was then."""
    return "" if begun.own_snapshot else begun.snapshot


def _new(services: Services, master: DiskRecord, request: CloneRequest, zone: str) -> DiskRecord:
    known = [each.generation for each in list_records(services) if each.master == master.name]
    generation = max(known, default=0) + 1
    name = request.name or f"{master.name}-g{generation}"
    found = find_record(services, name)
    if found is not None and (found.wanted or found.is_snapshot):
        raise _taken(name)
    empty = DiskRequest(name, zone, "", 0, {})
    record = new_record(services, empty, master=master.name, generation=generation, label=master.fs_label)
    return replace(record, token=f"{name}-{int(record.created_at)}")


def _next_master(
    services: Services, master: DiskRecord, request: CloneRequest, zone: str, kind: str
) -> DiskRecord:
    """The intent of a master with the content of another, new or begun before."""
    name = request.name
    known = find_record(services, name)
    if known is not None and known.wanted:
        if known.complete or (known.parent, known.request.zone) != (master.name, zone):
            raise _taken(name)
        if not _is_same(known, request, kind):
            source = f"snapshot {_source_of(known)}" if _source_of(known) else "its moment then"
            why = f"{name} was begun as a copy of {master.name}, of {source}, as {known.request.type}"
            raise UsageError(why, hint=f"finish that, or tpuctl disk rm {name} first; or another --name")
        return known
    empty = DiskRequest(name, zone, "", 0, {})
    record = new_record(services, empty, master=name, generation=0, label=master.fs_label)
    return replace(record, parent=master.name, token=f"{name}-{int(record.created_at)}")


def _taken(name: str) -> UsageError:
    return UsageError(f"there is a disk {name} already", hint="another --name")


def check_rate(services: Services, rules: DiskRules, disk: DiskInfo, snapshot: str, *, gone: int = 0) -> None:
    """Raises UsageError where a snapshot would be one too many, and says until when. `gone`: so many were made
    just now and deleted."""
    if not snapshot or services.disks.find_snapshot(snapshot) is not None:
        return
    now = services.clock.now()
    times = [
        parse_timestamp(each.create_time)
        for each in services.disks.list_snapshots()
        if each.source_uid == disk.uid
    ]
    wait_s = rules.copy_wait_s([*(at for at in times if at is not None), *[now] * gone], now)
    if wait_s > 0:
        minutes = int(wait_s // 60) + 1
        raise UsageError(
            f"disk {disk.name} was copied six times within an hour, as often as it can be",
            hint=f"in {minutes} min; or --from-snapshot with one of `tpuctl disk show {disk.name}`",
        )
