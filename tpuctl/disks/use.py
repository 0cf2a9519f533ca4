"""What the commands on one disk do: attach and mount it, leave it, resize it, remove it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from tpuctl.disks.attach import attach, detach
from tpuctl.disks.follow import (
    check_free,
    default_path,
    followed_by,
    forget,
    mount_on,
    path_of,
    path_on,
    readers_besides,
    remember,
)
from tpuctl.disks.hold import end_holds
from tpuctl.disks.hosts import DiskUnmount, Once
from tpuctl.disks.leases import alone_with_disk
from tpuctl.disks.make import find_record, get_disk, get_record, list_records, save_record
from tpuctl.disks.plan import owner_labels
from tpuctl.disks.restore import find_in_zone
from tpuctl.disks.rules import DiskRules, refuse, warnings
from tpuctl.disks.slices import check_on_hosts, check_root, holders, nodes_of, place_of
from tpuctl.disks.vacate import LIMIT_S, NextUse, Vacancy, vacate
from tpuctl.engine.events import Warn
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, NotFoundError, PartialError, TpuctlError, UnreachableError, UsageError
from tpuctl.lib.names import check_disk_name, label_value
from tpuctl.model import timeouts
from tpuctl.model.attempts import AttemptPhase
from tpuctl.model.cloud import NodeState
from tpuctl.model.disks import DataDisk, DiskMode, DiskRecord
from tpuctl.model.records import SliceRecord
from tpuctl.model.refs import DiskRef
from tpuctl.model.verdict import Done, Wait
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import Versioned, active_runs, get_slice
from tpuctl.things.driver import bring_hosts

UNDER_LEASE_S = 40.0
"""How long the lease of a slice is held for the proof of one disk; what takes longer goes on under another."""
_STARTED = {AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.ENDING}
"""Phases of attempts whose containers may be there."""
WITH_LOSS = "again with --force, if that may be lost"


@alone_with_disk
def use_disk(
    services: Services,
    rules: DiskRules,
    name: str,
    *,
    to: str,
    rw: bool,
    path: str,
    mounted: bool,
    dry_run: bool,
) -> dict[str, Any]:
    """Attaches a disk to a slice and mounts it there. A copy is always read-only."""
    record = get_record(services, name)
    disk = get_disk(services, record)
    target = get_slice(services, to).record
    where = path or default_path(record)
    if mounted:
        check_free(services, target, name, where)
    place = replace(place_of(services, target), others=readers_besides(services, name, target.name))
    mode = DiskMode.READ_WRITE if rw and not record.generation else DiskMode.READ_ONLY
    findings = rules.check_attach(disk, mode, place)
    refuse(findings)
    if mode is DiskMode.READ_WRITE:
        _check_label(services, record, target, place.disks)
    for each in warnings(findings):
        services.emit(Warn(name, each))
    done = "would attach" if dry_run else "attached"
    at = f" at {where}" if mounted else ""
    said = f"{done} {name} ({mode.short}) to {target.name}{at}"
    told = {"name": name, "to": target.name, "mode": str(mode), "path": where if mounted else "", "said": said}
    entry = DataDisk(record.request.zone, name, mode)
    if mounted and entry not in place.disks:
        check_root(services, target, name)
    if path and mounted:
        check_on_hosts(services, target, path)
    if dry_run:
        return told
    attach(services, place.zone, place.nodes, entry, api=place.api)
    if mounted:
        with _said_to_be_attached(name, target.name):
            mount_on(services, record, target, DiskRef(name, where, mode), unseen=entry not in place.disks)
    return told


@contextmanager
def _said_to_be_attached(name: str, target: str) -> Iterator[None]:
    """What ends the mounting of a disk leaves it attached, where it costs as before: that is said with it."""
    try:
        yield
    except TpuctlError as error:
        error.message = f"{name} is attached to {target}, but not mounted: {error.message}"
        undo = f"tpuctl disk detach {name} --to {target} takes it back"
        error.hint = "; ".join(each for each in (error.hint, undo) if each)
        raise


def check_ours(services: Services, name: str, to: str) -> None:
    """Raises NotFoundError for a disk in the zone of slice `to` that somebody made without tpuctl, with how to
    take it over."""
    check_disk_name(name, made=True)
    zone = get_slice(services, to).record.spec.zone
    disk = None if find_record(services, name) is not None else services.disks.find_disk(zone, name)
    if disk is None:
        return
    labels = owner_labels(name, 0, services.store.identity(), label_value(services.user))
    said = ",".join(f"{key}={value}" for key, value in labels.items())
    like = f"--zone {zone} --size {disk.size_gib} --type {disk.type}"
    hint = f"gcloud compute disks add-labels {name} --zone={zone} --labels={said}"
    hint += f"; then tpuctl disk create {name} {like} takes it over with all that is on it"
    raise NotFoundError(f"disk {name} in {zone} was not made by tpuctl", hint=hint)


def _check_label(
    services: Services, record: DiskRecord, target: SliceRecord, disks: Sequence[DataDisk]
) -> None:
    """A host knows the disks that it writes by their label, and masters made from one another have the same."""
    labels = {each.name: each.fs_label for each in list_records(services)}
    for each in disks:
        same = labels.get(each.name) == record.fs_label and each.name != record.name
        if same and each.mode is DiskMode.READ_WRITE:
            why = f"{each.name} on {target.name} has the same file system label as {record.name}"
            raise UsageError(why, hint=f"another slice, or tpuctl disk detach {each.name} --to {target.name}")


def mount_disk(services: Services, name: str, *, to: str | None, path: str) -> dict[str, Any]:
    """Mounts a disk that is attached."""
    record, target, entry = _held(services, name, to)
    where = path or path_on(services, record, target)
    check_free(services, target, record.name, where)
    if path:
        check_on_hosts(services, target, path)
    mount_on(services, record, target, DiskRef(record.name, where, entry.mode))
    said = f"{record.name} is at {where} of {target.name}"
    return {"name": record.name, "to": target.name, "path": where, "said": said}


def _held(services: Services, name: str, to: str | None) -> tuple[DiskRecord, SliceRecord, DataDisk]:
    """The disk, by any of the names that it has in several zones, the slice that has it, and how. Raises
    UsageError for none, or several of which none was named."""
    record, found = _holders(services, name, to)
    if len(found) == 1:
        return record, *found[0]
    names = ", ".join(each[0].name for each in found)
    if found:
        raise UsageError(f"{record.name} is attached to {names}", hint="--to SLICE")
    hint = f"tpuctl disk attach {record.name} --to SLICE"
    raise UsageError(f"{record.name} is not attached{_to(to)}", hint=hint)


def _holders(
    services: Services, name: str, to: str | None
) -> tuple[DiskRecord, Sequence[tuple[SliceRecord, DataDisk]]]:
    """The disk and the slices that have it, `to` if that is one of them."""
    record = get_record(services, name)
    if to is not None:
        record = find_in_zone(services, name, get_slice(services, to).record.spec.zone) or record
    found = holders(services, record.request.zone, record.name)
    ours = [each for each in found if to in (None, each[0].name)]
    if found and not ours:
        names = " and ".join(each[0].name for each in found)
        hint = f"--to {found[0][0].name}"
        raise UsageError(f"{record.name} is not attached{_to(to)}, but to {names}", hint=hint)
    return record, ours


def _to(slice_name: str | None) -> str:
    return f" to {slice_name}" if slice_name else " to a slice"


@alone_with_disk
def leave_disk(
    services: Services, name: str, *, to: str | None, detached: bool, dry_run: bool = False, force: bool = False
) -> dict[str, Any]:
    """Unmounts a disk on all hosts of a slice and, if `detached`, takes it from the node. One that can be
    written is proved to be used by nothing before; `force` does without the word of hosts that do not
    answer."""
    if detached and not _holders(services, name, to)[1]:
        return _left_already(services, name, to, dry_run=dry_run)
    record, target, entry = _held(services, name, to)
    name = record.name
    verb = "detach" if detached else "unmount"
    _check_containers(services, name, target.name)
    told = {"name": name, "from": target.name, "said": f"would {verb} {name} from {target.name}"}
    if dry_run:
        return told
    place = place_of(services, target) if detached else None
    if entry.mode is DiskMode.READ_WRITE:
        end_holds(services, record)
        forgotten = partial(forget, services, target.name, name)
        leave_unused(services, target, name, force=force, then=lambda seen: forgotten(seen=seen))
    else:
        _unmount_copy(services, record, target)
    if place is not None:
        detach(services, place.zone, place.nodes, name, api=place.api)
    return {**told, "said": f"{verb}ed {name} from {target.name}"}


def _check_containers(services: Services, name: str, slice_name: str) -> None:
    """Raises ConflictError while an attempt in a container is on the slice: it has the disk at a path of its
    own, where it would go on with what is not the disk, without being told."""
    begun = (run for run in active_runs(services, slice_name) if run.attempt and run.attempt.state in _STARTED)
    run = next((run for run in begun if run.spec.container is not None), None)
    if run is not None:
        why = f"run {run.id} on {slice_name} is in a container, which has disk {name} until it ends"
        raise ConflictError(why, hint=f"tpuctl stop {run.id}")


def _unmount_copy(services: Services, record: DiskRecord, target: SliceRecord) -> None:
    """On all hosts. It is forgotten first, or a pass would mount it again before it is detached; whatever ends
    this before they have unmounted it, the slice has it still. One that was forgotten by a command that was
    killed is unmounted wherever they have it."""
    wanted = path_of(services, target, record.name)
    path = wanted if wanted or record.token or record.fs_uuid else path_on(services, record, target)
    others = tuple(each.path for each in target.spec.disks)
    asked_by = services.ids.new_id()
    kind = DiskUnmount(path, True, record.token, asked_by, record.fs_uuid, others)
    forget(services, target.name, record.name)
    try:
        bring_hosts(services, target, [kind])
    except BaseException:
        if wanted:
            remember(services, target.name, DiskRef(record.name, wanted, DiskMode.READ_ONLY))
        raise


def check_nodes(services: Services, record: SliceRecord) -> None:
    """Raises TpuctlError for a node that is not there any more, or not READY: its hosts are gone."""
    for name, node in nodes_of(services, record).items():
        if node is None or node.state is not NodeState.READY:
            state = "not there" if node is None else node.state
            raise TpuctlError(f"node {name} of {record.name} is {state}", hint=f"tpuctl status {record.name}")


def _left_already(services: Services, name: str, to: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Of a disk that no node has, as after a `detach` that was killed at its end: no slice has it any more
    then. Raises TpuctlError for a slice that is not ready: it is attached when that comes up."""
    record, _ = _holders(services, name, to)
    for each in followed_by(services, record.name):
        if to in (None, each):
            place_of(services, get_slice(services, each).record)
            if not dry_run:
                forget(services, each, record.name)
    return {"name": record.name, "from": to or "", "said": f"{record.name} is not attached{_to(to)}"}


def leave_unused(
    services: Services,
    target: SliceRecord,
    name: str,
    *,
    force: bool = False,
    then: Callable[[Versioned[SliceRecord]], None] = lambda _: None,
) -> None:
    """Until a disk that a slice can write is proved to be unmounted and used by nothing on its host; `then`
    is done under the same lease of the slice, and gets the record from before the proof: where that was written
    since, a pass may have mounted it again, and all is done again. Raises PartialError, which names who uses
    it, and UnreachableError for a silent host, without `force`."""
    until = services.clock.now() + timeouts.VERDICT_MAX_S

    def step() -> Outcome:
        with take_lease(services, target.name):
            seen = get_slice(services, target.name)
            soon = services.clock.now() + UNDER_LEASE_S
            found = vacate(services, seen.record, [name], purpose=NextUse.LEAVE, deadline=soon)
            if found.working:
                why = f"{target.name} writes to disk {name} what its memory held"
                return Outcome(Wait(why), acted=False)
            if not found.silent or force:
                _check_unused(services, target, name, found)
                then(seen)
                return Outcome(Done(), acted=False)
        check_nodes(services, target)
        if services.clock.now() >= until:
            details = {"workers": list(found.silent)}
            raise UnreachableError(f"disk {name}: {found.lost}", hint=WITH_LOSS, details=details)
        return Outcome(Wait(found.lost, until), acted=False)

    converge(services, target.name, step, deadline=services.clock.now() + LIMIT_S)


def _check_unused(services: Services, target: SliceRecord, name: str, found: Vacancy) -> None:
    """Raises for a disk that somebody uses, or of which that is not known, but for silent hosts: their loss is
    written down."""
    details = {"holders": [each.said for each in found.holders]}
    if found.holders:
        first, others = found.holders[0], len(found.holders) - 1
        more = f", and {others} more" if others else ""
        why = f"disk {name} is in use: {first.said}{more}"
        raise PartialError(why, hint=first.ends(target.name), details=details)
    if found.lost and not found.silent:
        raise TpuctlError(f"disk {name}: {found.lost}")
    if found.lost:
        record_decision(services, target.key, f"leave disk {name}", f"--force: {found.lost}")
        services.emit(Warn(name, found.lost))


@alone_with_disk
def repair_disk(
    services: Services, rules: DiskRules, name: str, *, on: str, dry_run: bool, deadline: float | None = None
) -> dict[str, Any]:
    """Replays the journal of a copy that nobody held still, on a slice of one host, and detaches it again. What
    programs had not brought to the disk at that moment stays lost."""
    record = get_record(services, name)
    if not record.generation:
        raise UsageError(
            f"{name} is no copy: its journal is replayed when it is mounted", hint="tpuctl disk mount"
        )
    disk = get_disk(services, record)
    target = get_slice(services, on).record
    place = place_of(services, target)
    entry = DataDisk(record.request.zone, name, DiskMode.READ_WRITE)
    if disk.users and entry not in place.disks:  # attached so by a repair that was interrupted
        raise UsageError(f"{name} is used by {disk.users[0]}", hint=f"tpuctl disk detach {name}")
    refuse(rules.check_attach(disk, DiskMode.READ_WRITE, place))
    told = {"name": name, "on": target.name, "said": f"would repair {name} on {target.name}"}
    if dry_run:
        return told
    this_time = services.ids.new_id()
    word = f"{name}-{this_time}"
    attach(services, place.zone, place.nodes, entry, api=place.api, deadline=deadline)
    many = _writable(services, target, record.fs_label)
    once = Once("repair_disk", record.fs_label, word, this_time, many)
    bring_hosts(services, target, [once], deadline=deadline)
    leave_unused(services, target, name)
    detach(services, place.zone, place.nodes, name, api=place.api, deadline=deadline)
    # Last: with its word a copy counts as whole, and as free for those that read it.
    save_record(services, replace(get_record(services, name), token=word))
    return {**told, "said": f"repaired {name}: what was on its way to the disk when it was copied is lost"}


def _writable(services: Services, target: SliceRecord, label: str) -> int:
    """How many disks whose file system has this label the slice can write."""
    labels = {each.name: each.fs_label for each in list_records(services)}
    attached = place_of(services, target).disks
    return sum(each.mode is DiskMode.READ_WRITE and labels.get(each.name) == label for each in attached)
