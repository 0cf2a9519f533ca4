"""Buckets on hosts, as kinds of provisioning: mounted as asked, or not mounted. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.hosts.facts import FactsReply, MountedBucket, Section
from tpuctl.hosts.provision import NO_ROOT, BlockedOnHost, Operation
from tpuctl.model.hosts import Blob
from tpuctl.model.refs import MountRef
from tpuctl.model.verdict import Blocked
from tpuctl.mounts.render import cache_of, command_line, digest_of, options_of, render_configuration
from tpuctl.mounts.rules import MountRules

NO_FUSE = BlockedOnHost(
    "the hosts have no /dev/fuse",
    "on the simulator: tpuctl sim up --hosts isolated; elsewhere",
    "sudo modprobe fuse",
)
WELL = "mounted"
OPEN = "can be written without its mount"


class KeeperFiles(Struct, frozen=True):
    """What goes to hosts with a mount: the program that keeps it, its systemd unit, and what installs gcsfuse
    there. The first two are parameters: a job with files costs each host seven calls, one without two."""

    keeper: bytes
    unit: bytes
    installer: bytes


class BucketMount(Struct, frozen=True):
    """A bucket at `path` on every host. `asked_by` names the command or machine: a failure of an earlier one is
    not its own. With `renew` a keeper of another tpuctl is replaced, which leaves gcsfuse and open files alone:
    for commands of a person only, or two machines with two tpuctl would replace it in turn."""

    ref: MountRef
    version: str
    configuration: str
    flags: tuple[str, ...]
    cache: tuple[str, int] | None
    files: KeeperFiles
    asked_by: str = ""
    renew: bool = False

    @property
    def digest(self) -> str:
        """Names what is mounted, and how."""
        return digest_of(self.ref, self.configuration)

    @property
    def column(self) -> str:
        """Its column in the host's row of a manifest."""
        return f"mount {self.ref.path}"

    @property
    def name(self) -> str:
        return f"{self.ref.source} at {self.ref.path}"

    @property
    def sections(self) -> frozenset[Section]:
        return frozenset({Section.HOST, Section.GCSFUSE})

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        if facts.host is not None and not facts.host.root:
            return NO_ROOT
        there, gcsfuse = find_mount(facts, self.ref.path), facts.gcsfuse
        as_asked = there is not None and there.alive and there.digest == self.digest
        if as_asked and not (self.renew and has_old_keeper(facts, self)):
            return ()
        if gcsfuse is None or not gcsfuse.fuse:
            return NO_FUSE
        program = self.ref.program
        kept = (program[:16] or self.version) in gcsfuse.programs
        if kept or (not program and gcsfuse.version == self.version):
            return [self._mount({})]
        if program:
            return [self._mount({"gcsfuse": Blob(program, self.ref.program_bytes)})]
        return [self._install(), self._mount({})]

    def promise(self, row: Mapping[str, str]) -> Mapping[str, Any]:
        """What a host whose `row` says that it is there has to have until a program starts."""
        del row
        return {"path": self.ref.path, "fuse": True}

    def trouble(self, facts: FactsReply) -> str:
        """What is wrong with it on this host, in words; empty where all is as asked."""
        found = health(facts, self)
        return "" if found == WELL else found

    def _install(self) -> Operation:
        return Operation(
            "run",
            f"installing gcsfuse {self.version}",
            {"argv": ["sh", "gcsfuse_install.sh", self.version], "root": True, "seconds": 1800},
            {"gcsfuse_install.sh": self.files.installer},
        )

    def _mount(self, brought: Mapping[str, Blob]) -> Operation:
        parameters: dict[str, Any] = {
            "path": self.ref.path,
            "bucket": self.ref.bucket,
            "configuration": self.configuration,
            "flags": list(self.flags),
            "digest": self.digest,
            "program": self.ref.program,
            "version": self.version,
            "cache": list(self.cache) if self.cache else None,
            "asked_by": self.asked_by,
            "keeper": self.files.keeper.decode(),
            "unit": self.files.unit.decode(),
            "denied": role_hint(self.ref),
        }
        return Operation("mount_bucket", f"mounting {self.name}", parameters, brought)

    def row(self, facts: FactsReply) -> Mapping[str, str]:
        there = find_mount(facts, self.ref.path)
        if there is None:
            return {}
        options = ",".join(there.options)
        row = {self.column: f"{self.ref.source} gcsfuse {there.version} {there.digest} {options}"}
        return {**row, f"{self.column} point": OPEN} if there.open else row


class BucketUnmount(Struct, frozen=True):
    """No mount of tpuctl's at `path`. `asked_by` as of Mounted. `end_users`: whoever has it open is ended, for
    its host is to be deleted; else it stays."""

    path: str
    keeper: bytes
    asked_by: str = ""
    end_users: bool = False

    @property
    def name(self) -> str:
        return f"{self.path} unmounted"

    @property
    def sections(self) -> frozenset[Section]:
        return frozenset({Section.GCSFUSE})

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        if find_mount(facts, self.path) is None:
            return ()
        parameters: dict[str, Any] = {
            "path": self.path,
            "asked_by": self.asked_by,
            "keeper": self.keeper.decode(),
        }
        if self.end_users:
            parameters["end_users"] = True
        return [Operation("unmount_bucket", f"unmounting {self.path}", parameters)]

    def row(self, facts: FactsReply) -> Mapping[str, str]:
        del facts
        return {}


def mounted(
    rules: MountRules, ref: MountRef, files: KeeperFiles, asked_by: str = "", *, renew: bool = False
) -> BucketMount:
    """What `ref` asks of each host. Raises UsageError for options that gcsfuse does not have."""
    options = options_of(rules, ref, rules.pinned)
    flags = tuple(each for each in command_line(ref, options) if each.startswith(("--uid", "--gid")))
    configuration = render_configuration(options)
    return BucketMount(ref, rules.pinned, configuration, flags, cache_of(options), files, asked_by, renew)


UNKNOWN_ACCOUNT = "ACCOUNT_OF_THE_HOSTS"
"""Where nobody has asked a host for its account; a host puts in its own."""


def role_hint(ref: MountRef) -> str:
    """What to type for a mounted bucket that hosts may not read or write."""
    return bucket_role(ref.bucket, write=not ref.read_only)


def bucket_role(bucket: str, *, write: bool, account: str = UNKNOWN_ACCOUNT) -> str:
    """What to type for a bucket that the hosts' account may not read or write."""
    role = f"roles/storage.object{'User' if write else 'Viewer'}"
    member = f"--member=serviceAccount:{account}"
    return f"gcloud storage buckets add-iam-policy-binding gs://{bucket} {member} --role={role}"


def find_mount(facts: FactsReply, path: str) -> MountedBucket | None:
    """What the host says of the mount at `path`."""
    mounts = facts.gcsfuse.mounts if facts.gcsfuse is not None else ()
    return next((each for each in mounts if each.path == path), None)


def has_old_keeper(facts: FactsReply, kind: BucketMount) -> bool:
    """Whether a mount is kept by the program of another tpuctl."""
    there = find_mount(facts, kind.ref.path)
    return there is not None and there.keeper != hashlib.sha256(kind.files.keeper).hexdigest()


def health(facts: FactsReply, kind: BucketMount) -> str:
    """`mounted`, or what is wrong on this host."""
    there = find_mount(facts, kind.ref.path)
    if there is None:
        return "not mounted"
    if not there.alive:
        return f"{there.state}: {there.error}" if there.error else there.state
    if there.digest != kind.digest:
        return "mounted otherwise than asked"
    return f"the bucket does not answer: {there.error}" if there.error else WELL
