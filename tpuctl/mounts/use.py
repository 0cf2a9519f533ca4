"""What the commands on mounts do: add, change, look at and remove mounts of a slice that is there."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from tpuctl.engine.events import Note, Warn
from tpuctl.engine.services import Services
from tpuctl.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PartialError,
    PendingError,
    TpuctlError,
    UsageError,
)
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.deadline import TimedRemote
from tpuctl.hosts.facts import FactsReply, MountedBucket, Section
from tpuctl.hosts.provision import Kind
from tpuctl.hosts.requests import FactsRequest
from tpuctl.hosts.targets import host_targets
from tpuctl.inventory.delete import find_owned
from tpuctl.inventory.ownership import Claim, check_ownership
from tpuctl.lib.names import label_value, region_of
from tpuctl.lib.text import counted, sized
from tpuctl.model.cloud import STORE_LABEL, USER_LABEL, CloudResource, ResourceKind
from tpuctl.model.facts import BucketSpec
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.refs import MountRef
from tpuctl.mounts.follow import (
    begin_mount,
    check_bucket,
    forget,
    is_gone,
    keeper_files,
    load_rules,
    mark_leaving,
    parse_ref,
    remember,
    store_program,
    with_program,
)
from tpuctl.mounts.hosts import (
    OPEN,
    WELL,
    BucketMount,
    BucketUnmount,
    find_mount,
    has_old_keeper,
    health,
    mounted,
    role_hint,
)
from tpuctl.mounts.render import command_line, options_of, render_configuration, what_others_see
from tpuctl.mounts.rules import MountRules
from tpuctl.mounts.spec import MountRequest, check_together, check_unused, parse_options
from tpuctl.state.repository import list_slices
from tpuctl.things.driver import bring_hosts

MANY_OBJECTS = 5_000
"""Looked at of a prefix, in five calls. So many small ones are slow to read and to list through a mount."""
SMALL_BYTES = 1 << 20
OLD_KEEPER = "mounted, by a keeper of another tpuctl: tpuctl mount check --heal replaces it"
MOUNTED = "mounted"
LEAVING = "a mount or unmount was cut off: tpuctl mount check --heal takes it away"
HOST, GONE, DENIED, SILENT = "host", "bucket gone", "bucket denied", "bucket silent"
"""Where the trouble of a mount is, as rows of `mount check --json` have it."""


def add_mount(
    services: Services,
    record: SliceRecord,
    request: MountRequest,
    *,
    program: str | None,
    dry_run: bool,
) -> dict[str, Any]:
    """Mounts a bucket on all hosts of a slice, or changes how it is mounted."""
    rules = load_rules()
    ref = parse_ref(rules, request.what, parse_options(request))
    check_owned(services, record)
    if request.flat and not request.create:
        raise UsageError.of("flat", "a bucket that is there stays as it is", "--create --flat, or neither")
    check_unused(record.spec.mounts, (ref,))
    others = tuple(each for each in record.spec.mounts if each.path != ref.path)
    check_together((*others, ref), [disk.path for disk in record.spec.disks])
    bucket = None
    if request.create:
        bucket = plan_bucket(services, rules, ref, record, flat=request.flat)
    if bucket is None:
        check_bucket(services, rules, ref, record.requested_zones)
        note_small_objects(services, ref)
    ref = with_program((ref,), program)[0]
    told = describe(ref) | {"slice": record.name, "dry_run": dry_run}
    if dry_run:
        made = f"would make {describe_bucket(bucket)}; " if bucket is not None else ""
        return {**told, "said": f"{made}would mount {ref.source} at {ref.path} of {record.name}"}
    check_ready(record)
    if bucket is not None:
        make_bucket(services, bucket)
    store_program(services, (ref,), program)
    kind = mounted(rules, ref, keeper_files(), services.ids.new_id(), renew=True)
    before = next((each for each in record.spec.mounts if each.path == ref.path and not each.leaving), None)
    if before is None:
        begin_mount(services, record.name, ref)
    try:
        rows = bring_hosts(services, record, [kind])
    except PendingError:  # hosts may come to it yet
        raise
    except TpuctlError:
        _undo(services, record, ref.path, before)
        raise
    remember(services, record.name, ref)
    if any(f"{kind.column} point" in row for row in rows):
        why = f"{ref.path} {OPEN}: where it is, no folder can be made immutable"
        services.emit(Warn(record.name, why))
    hosts = counted(record.spec.hosts, "host")
    return {**told, "said": f"{ref.source} is mounted at {ref.path} on {hosts} of {record.name}"}


def _undo(services: Services, record: SliceRecord, path: str, before: MountRef | None) -> None:
    """Some hosts may have what others refused: all get what they had `before`."""
    if before is None:
        kind: Kind = _unmounted(services, path)
    else:
        kind = mounted(load_rules(), before, keeper_files(), services.ids.new_id())
    try:
        bring_hosts(services, record, [kind])
    except TpuctlError as error:  # what it was refused for counts
        services.emit(Note("", str(error)))
        return
    if before is None:
        forget(services, record.name, path)


def note_small_objects(services: Services, ref: MountRef) -> None:
    """Says of a prefix with very many small objects that it is the wrong shape for a mount."""
    try:
        found = services.objects.list(f"{ref.source}/", limit=MANY_OBJECTS)
    except TpuctlError:
        return  # whether they may be listed is for the mount to find out
    if len(found) < MANY_OBJECTS or sum(info.size for info in found) > SMALL_BYTES * len(found):
        return
    mean = sized(sum(info.size for info in found) // len(found))
    why = f"{ref.source} has {len(found)} objects and more, of {mean} on average: slow through any mount"
    services.emit(Note("", f"{why}. As shards: tpuctl data pack DIR gs://{ref.bucket}/PREFIX"))


def remove_mount(services: Services, record: SliceRecord, path: str, *, dry_run: bool) -> dict[str, Any]:
    """Unmounts a bucket on all hosts of a slice that has hosts; its files stay."""
    check_owned(services, record)
    get_ref(record, path)
    told = {"path": path, "slice": record.name, "said": f"would unmount {path} of {record.name}"}
    if dry_run:
        return told
    end_mount(services, record, path)
    return {**told, "said": f"{path} of {record.name} is unmounted; the bucket keeps its files"}


def end_mount(services: Services, record: SliceRecord, path: str) -> None:
    """Unmounts what a slice has at `path`, and forgets it: after an interruption the same again goes on. Raises
    PartialError where somebody has it open, and it stays."""
    if record.state in (SliceState.READY, SliceState.INITIALIZING):
        # First of all no pass may mount it again.
        mark_leaving(services, record.name, path, leaving=True)
        try:
            bring_hosts(services, record, [_unmounted(services, path)])
        except PartialError:
            mark_leaving(services, record.name, path, leaving=False)
            _undo(services, record, path, get_ref(record, path))
            raise
    forget(services, record.name, path)


def list_mounts(services: Services) -> list[dict[str, Any]]:
    """The mounts of all slices."""
    live = [each for each in list_slices(services) if each.state is not SliceState.GONE]
    return [
        {"slice": record.name, **describe(ref), "state": _state(record, ref)}
        for record in live
        for ref in record.spec.mounts
    ]


def _state(record: SliceRecord, ref: MountRef) -> str:
    """How a mount is as far as the store tells; hosts are not asked."""
    if ref.leaving:
        return LEAVING
    if record.state is not SliceState.READY:
        return f"not mounted: the slice is {record.state}"
    return MOUNTED


def show_mount(record: SliceRecord, path: str) -> dict[str, Any]:
    """Configuration file and command line of a mount, and what it means."""
    return {"slice": record.name, **describe(get_ref(record, path))}


def describe(ref: MountRef) -> dict[str, Any]:
    """A mount in full."""
    rules = load_rules()
    profile, options = rules.profile(ref.profile), options_of(rules, ref, rules.pinned)
    return {
        "source": ref.source,
        "path": ref.path,
        "profile": ref.profile,
        "ttl_s": options["metadata-cache.ttl-secs"],
        "read_only": ref.read_only,
        "gcsfuse": rules.pinned,
        "configuration": render_configuration(options),
        "command": " ".join(command_line(ref, options)),
        "sees": what_others_see(options),
        "consistency": profile.consistency,
        "cost": profile.cost,
    }


def check_mounts(
    services: Services, record: SliceRecord, *, limit_s: float | None = None
) -> list[dict[str, Any]]:
    """One row for each mount and host: how it is there, by the word of the host. Who does not answer within
    `limit_s` is told of."""
    check_ready(record)
    if not record.spec.mounts:
        return []
    rules, files = load_rules(), keeper_files()
    targets = host_targets(services, record)
    asked = FactsRequest((Section.GCSFUSE, Section.HOST))
    remote = services.remote
    if limit_s is not None:
        remote = TimedRemote(remote, services.clock, services.clock.now() + limit_s)
    answers = HostAgent(remote, services.agent_source).ask(targets, asked)
    gone = {each.bucket for each in record.spec.mounts if is_gone(services, each.bucket)}
    rows = []
    for ref in record.spec.mounts:
        kind = mounted(rules, ref, files)
        for answer in answers:
            row = _row(answer.value, kind, answer.message)
            if ref.leaving:
                row |= {"health": LEAVING, "well": False, "trouble": HOST}
            if row["well"] and ref.bucket in gone:
                row |= {"health": f"the bucket gs://{ref.bucket} is gone", "well": False, "trouble": GONE}
            rows.append({"path": ref.path, "worker": answer.worker, **row})
    return rows


def heal_mounts(services: Services, record: SliceRecord) -> None:
    """Mounts again what is not as asked on some hosts, puts this tpuctl's keeper in the place of another's, and
    ends what an interrupted `mount rm` left. Raises PartialError for what cannot be."""
    check_owned(services, record)
    check_ready(record)
    for ref in record.spec.mounts:
        if ref.leaving:
            end_mount(services, record, ref.path)
    rules, files, asked_by = load_rules(), keeper_files(), services.ids.new_id()
    stay = [each for each in record.spec.mounts if not each.leaving]
    bring_hosts(services, record, [mounted(rules, each, files, asked_by, renew=True) for each in stay])


def hint_of(record: SliceRecord, row: Mapping[str, Any]) -> str:
    """What to type for a mount that is not well."""
    ref = get_ref(record, row["path"])
    if row["trouble"] == GONE:
        region = region_of(record.requested_zones[0])
        made = f"gcloud storage buckets create gs://{ref.bucket} --location={region}"
        return f"tpuctl mount rm {ref.path} --on {record.name}, or make it again: {made}"
    if row["trouble"] == DENIED:
        return role_hint(ref)
    if row["trouble"] == SILENT:
        return (
            f"gcsfuse asks again by itself, and programs wait; from here: gcloud storage ls gs://{ref.bucket}"
        )
    return f"tpuctl mount check --on {record.name} --heal"


def _row(facts: FactsReply | None, kind: BucketMount, trouble: str) -> dict[str, Any]:
    if facts is None:
        return {
            "health": f"no answer: {trouble}",
            "well": False,
            "restarts": None,
            "gcsfuse": None,
            "options": [],
            "old_keeper": False,
            "trouble": HOST,
        }
    there, said = find_mount(facts, kind.ref.path), health(facts, kind)
    old = said == WELL and has_old_keeper(facts, kind)
    return {
        "health": OLD_KEEPER if old else said,
        "well": said == WELL,
        "restarts": there.restarts if there is not None else None,
        "gcsfuse": there.version if there is not None else None,
        "options": list(there.options) if there is not None else [],
        "old_keeper": old,
        "trouble": None if said == WELL else _trouble(there),
    }


def _trouble(there: MountedBucket | None) -> str:
    if there is not None and there.alive and there.error:
        return DENIED if there.error == os.strerror(errno.EACCES) else SILENT
    return HOST


def get_ref(record: SliceRecord, path: str) -> MountRef:
    """Raises NotFoundError where the slice has none at `path`."""
    for each in record.spec.mounts:
        if each.path == path:
            return each
    known = ", ".join(each.path for each in record.spec.mounts) or "none"
    raise NotFoundError(f"{record.name} has no mount at {path}; it has: {known}", hint="tpuctl mount ls")


def check_owned(services: Services, record: SliceRecord) -> None:
    """Raises UsageError for a slice of somebody else."""
    if record.owner != services.user:
        raise UsageError(
            f"{record.name} is {record.owner}'s, who alone says what its hosts have", hint="ask them"
        )


def check_ready(record: SliceRecord) -> None:
    """Raises TpuctlError for a slice whose hosts cannot be asked."""
    if record.state not in (SliceState.READY, SliceState.INITIALIZING) or record.incarnation is None:
        raise TpuctlError(f"slice {record.name} is {record.state}", hint=record.way_up)


def _unmounted(services: Services, path: str) -> BucketUnmount:
    return BucketUnmount(path, keeper_files().keeper, services.ids.new_id())


def plan_bucket(
    services: Services, rules: MountRules, ref: MountRef, record: SliceRecord, *, flat: bool
) -> BucketSpec | None:
    """The bucket to be made for `ref`; None where this store has made it. Raises ConflictError for one that
    somebody else has made, and UsageError for a slice that may be in several regions."""
    regions = sorted(set(map(region_of, record.requested_zones)))
    if len(regions) > 1:
        why = f"{record.name} may be in {' and '.join(regions)}, and a bucket is in one region"
        raise UsageError.of("create", why, f"gcloud storage buckets create gs://{ref.bucket} --location=REGION")
    labels = {STORE_LABEL: services.store.identity(), USER_LABEL: label_value(services.user)}
    hierarchical = rules.profile(ref.profile).hierarchical and not flat
    wanted = BucketSpec(ref.bucket, regions[0], labels, hierarchical)
    return None if _is_ours(services, wanted) else wanted


def make_bucket(services: Services, wanted: BucketSpec) -> None:
    """Raises ConflictError where somebody else has the name: those of buckets are one for all the world."""
    try:
        services.objects.create_bucket(wanted)
    except ConflictError as error:
        if _is_ours(services, wanted):
            return
        raise _taken(wanted.name) from error
    except InvalidRequestError as error:
        if not wanted.hierarchical:
            raise
        hint = "--flat makes one without a hierarchical namespace: folders are then renamed file by file"
        raise InvalidRequestError(error.message, hint=hint, details=error.details) from error
    services.emit(Note("", f"made {describe_bucket(wanted)}"))


def describe_bucket(wanted: BucketSpec) -> str:
    """In words."""
    more = ", with a hierarchical namespace" if wanted.hierarchical else ""
    return f"gs://{wanted.name} in {wanted.region}: uniform access, never public, no soft delete{more}"


def _is_ours(services: Services, wanted: BucketSpec) -> bool:
    """Whether it is there and has our label. Raises ConflictError for one without."""
    found = find_owned(services, CloudResource(ResourceKind.BUCKET, wanted.name, wanted.region))
    claim = Claim({STORE_LABEL: wanted.labels[STORE_LABEL]}, user=None)
    if found is not None and check_ownership(found, found, claim) is not None:
        raise _taken(wanted.name)
    return found is not None


def _taken(bucket: str) -> ConflictError:
    return ConflictError(
        f"bucket gs://{bucket} is there already, and not made by --create",
        hint="leave out --create, or choose another name: those of buckets are one for all the world",
    )
