"""What a project holds besides TPUs that can cost money, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field


class AssetKind(StrEnum):
    """The kinds that are read; nothing else of a project is looked at."""

    DISK = "disk"
    SNAPSHOT = "snapshot"
    IMAGE = "image"
    ADDRESS = "address"
    INSTANCE = "instance"
    BUCKET = "bucket"


class AssetInfo(Struct, frozen=True):
    """One resource as its API shows it. `location` is a zone, a region, `global` or a multi-region.

    `type` is the kind's own: disk type, machine type, address type, storage class. `size_gib` is None where the
    API does not tell; `at_least` says that there is more than that. `used_by` names the machines on a disk.
    """

    kind: AssetKind
    name: str
    location: str
    type: str = ""
    state: str = ""
    size_gib: float | None = None
    at_least: bool = False
    used_by: tuple[str, ...] = ()
    throughput_mib_s: int | None = None
    iops: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    create_time: str = ""
