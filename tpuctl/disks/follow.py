"""Disks that follow a slice: they are in its specification, and so attached, mounted and verified on all its
hosts, those that come after a preemption too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tpuctl.disks.attach import change_disks
from tpuctl.disks.hosts import OPEN, DiskMount
from tpuctl.disks.leases import lease_masters
from tpuctl.disks.make import find_record, get_disk, get_record, save_record
from tpuctl.disks.restore import Restore, plan_restore, refs_in_zone, restore
from tpuctl.disks.rules import DiskRules, DiskTarget, Policy, parse_disk, refuse, warnings
from tpuctl.disks.slices import nodes_of
from tpuctl.engine.events import Note, Warn
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, UsageError
from tpuctl.lib.mount_paths import check_apart, check_place
from tpuctl.model.disks import DataDisk, DiskMode, DiskRecord
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.refs import DiskRef, MountRef
from tpuctl.model.shipped_files import load_accelerators, load_disk_rules
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import Versioned, find_slice, get_slice, list_slices
from tpuctl.things.changes import change_spec
from tpuctl.things.driver import bring_hosts

Refs = tuple[DiskRef, ...]


def merge_refs(known: Refs, more: Refs) -> Refs:
    """One path per disk, the later one counts, and one disk per path. Raises UsageError for a path that another
    one has. Pure."""
    names = {each.name for each in more}
    found = [each for each in known if each.name not in names]
    for ref in more:
        taken = {each.path: f"disk {each.name}" for each in found}
        check_apart(ref.path, taken, field="disk", hint=f"--disk {ref.name}:/PATH")
        found.append(ref)
    return tuple(found)


def check_mounts(refs: Refs, mounts: Sequence[MountRef]) -> None:
    """Raises UsageError for a disk at, above or below a mount of its slice."""
    for ref in refs:
        taken = {each.path: f"a mount of {each.source}" for each in mounts}
        check_apart(ref.path, taken, field="disk", hint=f"--disk {ref.name}:/PATH")


def check_free(services: Services, target: SliceRecord, disk: str, path: str, *, hint: str = "") -> None:
    """Raises UsageError for a `path` at which nothing can be, or at which the slice has something else than
    this disk."""
    check_place(path, field="path", what="disk", hint="--path /mnt/data")
    spec = target.spec
    there = refs_in_zone(services, spec.disks, spec.zone)
    own = {disk, *(ref.name for ref, own in zip(spec.disks, there, strict=True) if own.name == disk)}
    before = next((each.path for each in spec.disks if each.name in own), path)
    if before != path:
        leave = f"first tpuctl disk umount {disk} --to {target.name}"
        raise UsageError.of("path", f"{disk} is at {before} of {target.name}", leave)
    taken = {each.path: f"disk {each.name}" for each in spec.disks if each.name not in own}
    taken |= {each.path: f"a mount of {each.source}" for each in spec.mounts}
    other = next((each.name for each in spec.disks if each.path == path and each.name not in own), "")
    leave = f"tpuctl disk detach {other} --to {target.name}" if other else "tpuctl mount rm"
    check_apart(path, taken, field="path", hint=hint or f"another --path, or first {leave}")


def resolve_refs(
    services: Services, said: Sequence[str], spec: SliceSpec, zones: Sequence[str], name: str
) -> Refs:
    """What `--disk` comes to for slice `name`. Raises UsageError, with its field, for what cannot be."""
    found: Refs = ()
    for text in said:
        try:
            found = merge_refs(found, (_resolve(services, text, spec, zones, name),))
        except UsageError as error:
            raise UsageError.of("disk", error.message, error.hint) from error
    if len(found) != len(said):
        raise UsageError.of("disk", "one disk twice", "--disk NAME:/PATH")
    return found


def _resolve(services: Services, text: str, spec: SliceSpec, zones: Sequence[str], name: str) -> DiskRef:
    asked = parse_disk(text)
    record = find_record(services, asked.name)
    if record is None or not record.wanted:
        raise UsageError(
            f"no disk called {asked.name}", hint=f"tpuctl disk create {asked.name} --zone {spec.zone}"
        )
    _check_zones(services, record, zones, spec)
    alone = not record.generation and spec.hosts == 1
    mode = asked.mode or (DiskMode.READ_WRITE if alone else DiskMode.READ_ONLY)
    if record.generation and mode is DiskMode.READ_WRITE:
        raise UsageError(f"{record.name} is a copy, and copies are read", hint=f"--disk {record.name}:ro")
    if not record.generation and mode is DiskMode.READ_ONLY:
        goal = f"--zone {spec.zone} --for {spec.accelerator_type}"
        raise UsageError(
            f"{record.name} is a master, and one host writes to it",
            hint=f"tpuctl disk clone {record.name} {goal}, then --disk with that clone",
        )
    ref = DiskRef(record.name, asked.path or f"/mnt/{record.master}", mode)
    _check_rules(services, record, ref, spec, name)
    return ref


def type_in(own: str, spec: SliceSpec, *, shared: bool) -> str | None:
    """The type of a disk for a slice like `spec`: its `own` where the slice can have that, else another, which
    can be shared if it is to be; None where there is none."""
    rules, known = DiskRules(load_disk_rules()), load_accelerators().find(spec.accelerator_type)
    generation = known.generation if known is not None else ""
    if not any(each.policy is Policy.DENY for each in rules.check_type(own, generation)):
        return own
    return rules.shared_type(own, generation) if shared else rules.new_type(generation)


def plan_clone_in(services: Services, record: DiskRecord, zone: str, spec: SliceSpec) -> Restore:
    """What disk `record` is in a zone, for a slice like `spec`, whose type it gets there. Raises ConflictError
    for a master that is elsewhere."""
    kind = type_in(record.request.type, spec, shared=True) or ""
    return plan_restore(services, DiskRules(load_disk_rules()), record, zone, kind, readers=spec.hosts)


def _check_zones(services: Services, record: DiskRecord, zones: Sequence[str], spec: SliceSpec) -> None:
    """A clone can be where the slice is, if that may take its time and money: said here, before anything is."""
    place = record.request.zone
    if not record.generation and list(zones) != [place]:
        goal = f"--zone {zones[-1]} --for {spec.accelerator_type}"
        hint = f"--zone {place}; or a clone: tpuctl disk clone {record.master} {goal}"
        raise UsageError(f"disk {record.name} is in {place}, the slice may be in {', '.join(zones)}", hint=hint)
    for zone in zones:
        plan = plan_clone_in(services, record, zone, spec)
        plan.check()
        if plan.said:
            services.emit(Warn(record.name, f"if the slice comes up there, {plan.said}"))


def _check_rules(services: Services, record: DiskRecord, ref: DiskRef, spec: SliceSpec, name: str) -> None:
    known = load_accelerators().find(spec.accelerator_type)
    generation = known.generation if known is not None else ""
    disk = get_disk(services, record)
    if record.generation:
        there = plan_clone_in(services, record, spec.zone, spec).record.request
        disk = replace(disk, type=there.type, access_mode=there.access_mode or disk.access_mode)
        if there.zone != disk.zone:  # it is restored with the throughput that it needs
            disk = replace(disk, users=(), throughput_mib_s=there.throughput_mib_s)
    own = find_slice(services, name) if disk.users and name else None
    nodes = nodes_of(services, own.record).values() if own is not None else ()
    disks = tuple(dict.fromkeys(each for node in nodes if node is not None for each in node.data_disks))
    others = readers_besides(services, disk.name, name)
    place = DiskTarget("the slice", disk.zone, generation, spec.hosts, disks, others=others)
    findings = DiskRules(load_disk_rules()).check_attach(disk, ref.mode, place)
    refuse(findings, f"without this disk, and then tpuctl disk attach {disk.name} --to {name or 'SLICE'}")
    writers = followed_by(services, disk.name) if ref.mode is DiskMode.READ_WRITE else []
    for each in writers:  # also one without hosts at the moment
        if each != name:
            hint = f"tpuctl disk detach {disk.name} --to {each}, or a clone of it"
            raise UsageError(f"disk {disk.name} is written by slice {each}", hint=hint)
    for why in warnings(findings):
        services.emit(Warn(disk.name, why))


def mounted_kind(record: DiskRecord, path: str, mode: DiskMode, asked_by: str) -> DiskMount:
    """A disk that a host is to have at `path`. `asked_by` names who asks."""
    read_only = mode is DiskMode.READ_ONLY
    blank, size = record.blank and not read_only, record.request.size_gib
    return DiskMount(record.name, path, record.fs_label, read_only, record.token, size, blank, asked_by)


def mount_on(
    services: Services,
    record: DiskRecord,
    target: SliceRecord,
    ref: DiskRef,
    *,
    unseen: bool = False,
    deadline: float | None = None,
) -> None:
    """Mounts a disk that is attached on all hosts of a slice, which has it from then on."""
    # Where it is going to be is written before, so that it can be unmounted; that it is formatted, after.
    record = save_record(services, replace(get_record(services, record.name), path=ref.path))
    kind = mounted_kind(record, ref.path, ref.mode, services.ids.new_id())
    note_mounted(services, (ref,), bring_hosts(services, target, [kind], deadline=deadline, unseen=unseen))
    remember(services, target.name, ref)


def attach_all(services: Services, record: SliceRecord, *, deadline: float) -> None:
    """Until the nodes of the slice have its disks, in one call each for all of them; clones that are in another
    zone are restored first. Raises PendingError when the time is over, NotFoundError for a disk that is gone,
    ConflictError for a master that is elsewhere or in use, UsageError for what only a person may decide."""
    zone = record.spec.zone
    _restore_all(services, record, deadline=deadline)
    refs = refs_in_zone(services, record.spec.disks, zone)
    wanted = tuple(DataDisk(zone, each.name, each.mode) for each in refs)
    nodes = nodes_of(services, record)
    there = [node.data_disks for node in nodes.values() if node is not None]
    missing = [each for each in wanted if any(each not in known for known in there)]
    if not missing or len(there) < len(nodes):
        return  # or one of the nodes is lost, which is for others to see
    for each in missing:
        disk = get_disk(services, get_record(services, each.name))
        if disk.users and each.mode is DiskMode.READ_WRITE:
            hint = f"tpuctl disk detach {each.name}"
            raise ConflictError(f"disk {each.name} is used by {disk.users[0]}", hint=hint)
        if each.mode is DiskMode.READ_ONLY:
            others = readers_besides(services, each.name, record.name)
            have = tuple(dict.fromkeys(entry for known in there for entry in known))
            place = DiskTarget(record.name, zone, "", record.spec.hosts, have, others=others)
            refuse(DiskRules(load_disk_rules()).check_readers(disk, place))

    def add(now: tuple[DataDisk, ...]) -> tuple[DataDisk, ...]:
        return (*now, *(each for each in wanted if each not in now))

    names = ", ".join(each.name for each in missing)
    with lease_masters(services, [each.name for each in missing]) as held:
        change_disks(held, zone, tuple(nodes), add, f"attach {names}", api=record.spec.api, deadline=deadline)


def _restore_all(services: Services, record: SliceRecord, *, deadline: float) -> None:
    """Until the clones of the slice are in its zone."""
    for ref in record.spec.disks:
        plan = plan_clone_in(services, get_record(services, ref.name), record.spec.zone, record.spec)
        if plan.said:
            plan.check()
            record_decision(services, record.key, "restore disk", plan.said)
            services.emit(Note(record.name, plan.said))
        if plan.is_due:
            with lease_masters(services, [ref.name]) as held:
                restore(held, plan, deadline=deadline)


def note_mounted(services: Services, refs: Refs, rows: Sequence[Mapping[str, str]]) -> None:
    """Hosts say that they have these disks: none of them is empty any more, and what is on them has an id."""
    for ref in refs:
        if any(f"disk {ref.path} point" in row for row in rows):
            why = f"{ref.path} {OPEN}: where it is, no folder can be made immutable"
            services.emit(Warn(ref.name, why))
        disk = get_record(services, ref.name)
        uuid = next((row[key] for row in rows if row.get(key := f"disk {ref.path} uuid")), disk.fs_uuid)
        blank = disk.blank and ref.mode is DiskMode.READ_ONLY
        if (disk.blank, disk.fs_uuid, disk.path) != (blank, uuid, ref.path):
            save_record(services, replace(disk, blank=blank, fs_uuid=uuid, path=ref.path))


def remember(services: Services, name: str, ref: DiskRef) -> None:
    """The slice has this disk from now on, also on the hosts that come after these."""

    def with_it(known: Refs) -> Refs:
        return merge_refs(_without(services, name, known, ref.name), (ref,))

    change_spec(services, name, "disks", with_it, f"{ref.name} at {ref.path}")


def forget(services: Services, name: str, disk: str, *, seen: Versioned[SliceRecord] | None = None) -> None:
    """The slice has this disk no more. With `seen`, raises StaleRecordError where anybody has written its
    record since, such as a pass that had its hosts mount it again."""

    def without(known: Refs) -> Refs:
        return _without(services, name, known, disk)

    change_spec(services, name, "disks", without, f"without {disk}", seen=seen)


def _without(services: Services, name: str, known: Refs, disk: str) -> Refs:
    """Those that are another disk, by all its names."""
    there = refs_in_zone(services, known, get_slice(services, name).record.spec.zone)
    return tuple(ref for ref, own in zip(known, there, strict=True) if disk not in (ref.name, own.name))


def followed_by(services: Services, disk: str) -> list[str]:
    """Slices that have a disk in their specification: it is theirs, too, while they have no hosts."""
    live = [each for each in list_slices(services) if each.state is not SliceState.GONE]
    return [each.name for each in live if disk in {ref.name for ref in _refs_of(services, each)}]


def readers_besides(services: Services, disk: str, name: str) -> int:
    """Hosts of other slices than `name` that have a disk in their specification, also while they are gone."""
    others = [each for each in followed_by(services, disk) if each != name]
    return sum(get_slice(services, each).record.spec.hosts for each in others)


def _refs_of(services: Services, record: SliceRecord) -> Refs:
    """The disks of a slice by the names that it knows and those that they have where it is."""
    refs = record.spec.disks
    return (*refs, *refs_in_zone(services, refs, record.spec.zone))


def path_of(services: Services, record: SliceRecord, disk: str) -> str:
    """Where a slice has the disk; empty for one that it has not."""
    return next((each.path for each in _refs_of(services, record) if each.name == disk), "")


def default_path(record: DiskRecord) -> str:
    """Where a disk is mounted unless somebody says otherwise: a copy where its master is."""
    return f"/mnt/{record.master}"


def path_on(services: Services, record: DiskRecord, target: SliceRecord) -> str:
    """Where a slice has the disk, or had it last."""
    return path_of(services, target, record.name) or record.path or default_path(record)
