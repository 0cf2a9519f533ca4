"""Mounts that follow a slice: in its specification, and so on all its hosts, those after a preemption too."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from tpuctl.engine.events import Note
from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.lib.input_files import read_file
from tpuctl.lib.names import region_of
from tpuctl.model.records import SliceRecord
from tpuctl.model.refs import MountRef
from tpuctl.model.shipped_files import load_mount_table, read_template
from tpuctl.mounts.hosts import BucketUnmount, KeeperFiles
from tpuctl.mounts.render import check_ttl, options_of
from tpuctl.mounts.rules import MountRules
from tpuctl.mounts.spec import (
    Options,
    Refs,
    merge_mounts,
    parse_mount,
)
from tpuctl.things.changes import change_spec

PROGRAM_LIMIT = 256 << 20
"""Bytes; gcsfuse 3.11 has 60 million."""
GONE_ASK_S = 5.0
"""For the question whether a bucket is there: while Cloud Storage hangs, passes and runs go on."""


def load_rules() -> MountRules:
    """The table that tpuctl ships."""
    return MountRules(*load_mount_table())


def parse_ref(rules: MountRules, text: str, said: Options | None = None) -> MountRef:
    """`text` with what else was said of it. Raises UsageError for what cannot be."""
    ref = parse_mount(text, rules.profiles, rules.default, said)
    for key, value in ref.options.items():
        rules.check_option(key, value, rules.pinned, flag=said is not None and key in said.keys)
    found = replace(ref, read_only=ref.read_only or rules.profile(ref.profile).read_only)
    check_ttl(options_of(rules, found, rules.pinned))
    return found


def check_bucket(services: Services, rules: MountRules, ref: MountRef, zones: Sequence[str]) -> None:
    """Raises NotFoundError for a bucket that is not there, and UsageError for one in another region; says what
    reading from it costs."""
    if not services.objects.bucket_exists(ref.bucket):
        made = f"gcloud storage buckets create gs://{ref.bucket} --location={region_of(zones[0])}"
        hint = f"{made}, or tpuctl mount add {ref.source}:{ref.path} --create"
        raise NotFoundError(f"bucket gs://{ref.bucket} does not exist or cannot be read", hint=hint)
    try:
        place = services.project_api.bucket_place(ref.bucket)
    except TpuctlError:
        return  # where it is may be hidden from this user; nothing is known then
    for line in dict.fromkeys(rules.check_location(ref, place, zone) for zone in zones):
        if line:
            services.emit(Note("", line))


def is_gone(services: Services, bucket: str) -> bool:
    """Whether a bucket is gone, which hosts see as an empty one. What cannot be asked is not."""
    try:
        return not services.objects.bucket_exists(bucket, timeout_s=GONE_ASK_S)
    except TpuctlError:
        return False


def with_program(refs: Refs, program: str | None) -> Refs:
    """The mounts, with the gcsfuse of this machine that hosts are to get. Raises UsageError."""
    if program is None or not refs:
        return refs
    content = read_program(program)
    sha256 = hashlib.sha256(content).hexdigest()
    return tuple(replace(each, program=sha256, program_bytes=len(content)) for each in refs)


def read_program(path: str) -> bytes:
    """Raises UsageError."""
    try:
        return read_file(Path(path).expanduser(), PROGRAM_LIMIT)
    except OSError as error:
        hint = "the path of a gcsfuse, or unset gcsfuse (TPUCTL_GCSFUSE)"
        raise UsageError.of("gcsfuse", f"gcsfuse {path}: {error.strerror}", hint) from error


def store_program(services: Services, refs: Refs, program: str | None) -> None:
    """Brings the gcsfuse of this machine into the store, where mounts ask for it."""
    if program is not None and any(each.program for each in refs):
        services.store.put_blob(read_program(program))


@cache
def keeper_files() -> KeeperFiles:
    """What hosts get with a mounted bucket."""
    return KeeperFiles(*map(read_template, ("mount_keeper.py", "tpuctl-mount.service", "gcsfuse_install.sh")))


def ended_kinds(record: SliceRecord, paths: Sequence[str]) -> list[BucketUnmount]:
    """What is asked of hosts that are to be deleted: nobody has a mount open any more, and all is uploaded. The
    same of every pass, so that it is one job; after a refusal it is another one."""
    keeper = keeper_files().keeper
    life = record.incarnation
    asked_by = f"end of {life.cloud_name} {life.leaves_since or 0:.0f}" if life is not None else "end"
    return [BucketUnmount(path, keeper, asked_by, end_users=True) for path in paths]


def begin_mount(services: Services, name: str, ref: MountRef) -> None:
    """Before hosts get a mount, the slice knows of it: who is killed leaves none that nobody can name. Until it
    is remembered, no pass mounts it."""
    begun = (replace(ref, leaving=True),)
    why = f"{ref.source} at {ref.path} is to be mounted"
    change_spec(services, name, "mounts", lambda known: merge_mounts(known, begun), why)


def remember(services: Services, name: str, ref: MountRef) -> None:
    """The slice has this mount, in the place of one at the same path."""
    change_spec(
        services, name, "mounts", lambda known: merge_mounts(known, (ref,)), f"{ref.source} at {ref.path}"
    )


def mark_leaving(services: Services, name: str, path: str, *, leaving: bool) -> None:
    """From now on no host gets the mount at `path`, or hosts get it again."""

    def change(known: Refs) -> Refs:
        return tuple(replace(each, leaving=leaving) if each.path == path else each for each in known)

    change_spec(services, name, "mounts", change, f"{path} {'is to be unmounted' if leaving else 'stays'}")


def forget(services: Services, name: str, path: str) -> None:
    """The slice has no mount at `path` any more."""
    change_spec(
        services,
        name,
        "mounts",
        lambda known: tuple(each for each in known if each.path != path),
        f"without {path}",
    )
