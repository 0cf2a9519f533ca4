"""Disks, their copies and where they are attached, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from tpuctl.model.resources import CloudResource, ResourceKind

MASTER_LABEL = "tpuctl-master"
"""On copies: the disk that they are copies of; on a disk made by `disk create` its own name."""
GENERATION_LABEL = "tpuctl-generation"
"""On copies: the how manieth of their master they are, from 1."""


class DiskMode(StrEnum):
    """How a node has a disk."""

    READ_ONLY = "READ_ONLY"
    READ_WRITE = "READ_WRITE"

    @property
    def short(self) -> str:
        return "ro" if self is DiskMode.READ_ONLY else "rw"


SHARED = "READ_ONLY_MANY"
"""The access mode of a Hyperdisk that many machines read."""


class DataDisk(Struct, frozen=True):
    """One entry of a node's data disks. `workers` is empty for all."""

    zone: str
    name: str
    mode: DiskMode
    workers: tuple[str, ...] = ()


class DiskInfo(Struct, frozen=True):
    """A disk as Compute Engine shows it. `users` are the names of machines; `uid` is new for each disk."""

    name: str
    zone: str
    uid: str
    type: str
    size_gib: int
    status: str
    access_mode: str = ""
    throughput_mib_s: int | None = None
    iops: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    users: tuple[str, ...] = ()
    source_disk: str = ""
    source_snapshot: str = ""
    create_time: str = ""

    @property
    def resource(self) -> CloudResource:
        return CloudResource(
            ResourceKind.DISK,
            self.name,
            self.zone,
            self.type,
            self.status,
            self.uid,
            labels=self.labels,
            created=self.create_time,
            size_gib=float(self.size_gib) or None,
            used_by=self.users,
            throughput_mib_s=self.throughput_mib_s,
            iops=self.iops,
        )


class SnapshotInfo(Struct, frozen=True):
    """A snapshot; `stored_bytes` is what is paid for."""

    name: str
    uid: str
    status: str
    disk_gib: int
    stored_bytes: int
    source_disk: str
    source_uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    create_time: str = ""

    @property
    def resource(self) -> CloudResource:
        kind = ResourceKind.SNAPSHOT
        return CloudResource(kind, self.name, "global", "", self.status, self.uid, labels=self.labels)


class DiskRequest(Struct, frozen=True):
    """A disk to be made. `source_disk` is a disk of the same zone, `source_snapshot` a snapshot."""

    name: str
    zone: str
    type: str
    size_gib: int
    labels: Mapping[str, str]
    throughput_mib_s: int | None = None
    access_mode: str = ""
    source_disk: str = ""
    source_snapshot: str = ""


class ComputeOperation(Struct, frozen=True):
    """An operation of Compute Engine; `path` leads to it, `error` is why it failed. `progress` is in percent,
    as the service sees it: it need not be linear."""

    path: str
    done: bool
    error: str = ""
    code: str = ""
    progress: int = 0


class KeptRun(Struct, frozen=True):
    """A run whose logs and disks stay, for good or `until` (epoch seconds)."""

    run: str
    disks: tuple[str, ...]
    owner: str
    until: float | None = None


class DiskRecord(Struct, frozen=True):
    """One disk that tpuctl makes, written before it is made. `wanted` is False from `disk rm` on, and of a
    snapshot that was asked for without a disk.

    A copy has `token`: the word that its master's file system held when it was copied, empty where nobody could
    write one (its master was not mounted).
    """

    name: str
    request: DiskRequest
    owner: str
    created_at: float
    master: str
    generation: int = 0
    wanted: bool = True
    blank: bool = True
    """It was made empty and nobody has formatted it yet."""
    fs_label: str = ""
    fs_uuid: str = ""
    """As hosts saw it when it was mounted first; copies have that of their master."""
    token: str = ""
    hold: str = ""
    """The id under which the file system of its master is held still for it, until it is known to have begun in
    time."""
    snapshot: str = ""
    path: str = ""
    """Where it was mounted last."""
    parent: str = ""
    """Of a clone that was restored in another zone: the one that it is the same as; of a master that was made
    from another: that one."""
    complete: bool = False
    """It was made, and a copy has arrived where it was to go."""
    throughput_at: float = 0.0
    """When its throughput was changed last."""

    @property
    def key(self) -> str:
        return f"disks/{self.name}"

    @property
    def is_leaving(self) -> bool:
        """It is being removed, and that has not come to its end."""
        return not self.wanted and not self.complete

    @property
    def is_snapshot(self) -> bool:
        """It is a snapshot that was asked for as such: there is to be no disk."""
        return not self.wanted and self.complete

    @property
    def own_snapshot(self) -> bool:
        """Its snapshot was made for it alone, and goes with it."""
        return self.snapshot == f"{self.name}-s"
