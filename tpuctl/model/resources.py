"""Whatever a project holds, in one form, and the labels that say whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from tpuctl.model.hosts import Tier

OWNER_LABEL = "tpuctl-slice"
"""Label on everything billable that tpuctl creates; its value is the slice name."""
INCARNATION_LABEL = "tpuctl-incarnation"
USER_LABEL = "tpuctl-user"
STORE_LABEL = "tpuctl-store"
"""Identifies the store (fleet) that recorded the intent, so that two fleets in one project do not adopt each
other's slices."""


class ResourceKind(StrEnum):
    """The kinds of things that are read; nothing else of a project is looked at."""

    NODE = "node"
    QUEUED = "queued"
    DISK = "disk"
    SNAPSHOT = "snapshot"
    IMAGE = "image"
    ADDRESS = "address"
    INSTANCE = "instance"
    BUCKET = "bucket"


BESIDE_TPUS = tuple(kind for kind in ResourceKind if kind not in (ResourceKind.NODE, ResourceKind.QUEUED))


class CloudResource(Struct, frozen=True):
    """One thing in a project that can cost money. `location` is a zone, a region, `global` or a multi-region.

    `type` is the kind's own: accelerator type, disk type, machine type, address type, storage class. `uid`
    tells it from a later one of the same name: a node's id, a queued resource's time of creation. `size_gib` is
    None where the API does not tell; `at_least` says that there is more than that. `used_by` names the machines
    on a disk.
    """

    kind: ResourceKind
    name: str
    location: str
    type: str = ""
    state: str = ""
    uid: str = ""
    tier: Tier | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    size_gib: float | None = None
    at_least: bool = False
    used_by: tuple[str, ...] = ()
    throughput_mib_s: int | None = None
    iops: int | None = None

    @property
    def user(self) -> str:
        return self.labels.get(USER_LABEL, "")

    @property
    def slice_name(self) -> str:
        return self.labels.get(OWNER_LABEL, "")

    @property
    def place(self) -> tuple[str, str, str]:
        return self.kind, self.location, self.name
