"""Whatever a project holds, in one form, and the labels that say whose it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from tpuctl.lib.names import region_of
from tpuctl.model.hosts import Api, Tier

OWNER_LABEL = "tpuctl-slice"
"""Label on everything billable that tpuctl creates; its value is the slice name."""
INCARNATION_LABEL = "tpuctl-incarnation"
USER_LABEL = "tpuctl-user"
STORE_LABEL = "tpuctl-store"
"""Identifies the store (fleet) that recorded the intent, so that two fleets in one project do not adopt each
other's slices."""
ZONE_MARK = "tpuctl-zone"
"""The zone of the slice, on those of its things that are of a region."""

_MARKED = (OWNER_LABEL, INCARNATION_LABEL, STORE_LABEL, USER_LABEL, ZONE_MARK)
_MARKS = re.compile(r" ?\[(tpuctl-[a-z]+=[-_a-z0-9]*(?: tpuctl-[a-z]+=[-_a-z0-9]*)*)\]\Z")


def marks_text(labels: Mapping[str, str], text: str = "") -> str:
    """The description of a thing that takes no labels: the user's `text`, then those labels that say whose it
    is, as `[tpuctl-slice=big tpuctl-incarnation=3 …]`."""
    marks = " ".join(f"{key}={labels[key]}" for key in _MARKED if key in labels)
    return " ".join(part for part in (text, f"[{marks}]" if marks else "") if part)


def parse_marks(description: str) -> dict[str, str]:
    """The labels that `marks_text` wrote at the end of a description; none where there are no marks."""
    found = _MARKS.search(description)
    return dict(each.split("=", 1) for each in found[1].split(" ")) if found else {}


def without_marks(description: str) -> str:
    """The user's part of a description."""
    return _MARKS.sub("", description)


class ResourceKind(StrEnum):
    """The kinds of things that are read; nothing else of a project is looked at."""

    NODE = "node"
    QUEUED = "queued"
    GROUP = "group"
    """A managed instance group: the hosts of one slice in Compute Engine; one of one host is an instance."""
    TEMPLATE = "template"
    POLICY = "policy"
    """The workload policy of a group, which has its topology."""
    DISK = "disk"
    SNAPSHOT = "snapshot"
    IMAGE = "image"
    ADDRESS = "address"
    INSTANCE = "instance"
    BUCKET = "bucket"


KIND_WORDS: Mapping[ResourceKind, str] = {
    ResourceKind.NODE: "node",
    ResourceKind.QUEUED: "queued resource",
    ResourceKind.GROUP: "instance group",
    ResourceKind.TEMPLATE: "instance template",
    ResourceKind.POLICY: "workload policy",
    ResourceKind.INSTANCE: "instance",
}
"""What the parts of a slice are called."""
_GCLOUD: Mapping[ResourceKind, str] = {
    ResourceKind.NODE: "compute tpus tpu-vm {verb} {name} --zone {zone}",
    ResourceKind.QUEUED: "compute tpus queued-resources {verb} {name} --zone {zone}",
    ResourceKind.GROUP: "compute instance-groups managed {verb} {name} --zone {zone}",
    ResourceKind.TEMPLATE: "compute instance-templates {verb} {name} {regional}",
    ResourceKind.POLICY: "compute resource-policies {verb} {name} --region {region}",
    ResourceKind.INSTANCE: "compute instances {verb} {name} --zone {zone}",
    ResourceKind.DISK: "compute disks {verb} {name} --zone {zone}",
    ResourceKind.SNAPSHOT: "compute snapshots {verb} {name}",
}


def gcloud_command(verb: str, kind: ResourceKind, name: str, location: str) -> str:
    """What a person types to `describe`, `delete` or otherwise look after a resource by Google's own tool."""
    if kind is ResourceKind.BUCKET:
        return f"gcloud storage {'rm --recursive' if verb == 'delete' else 'ls --buckets'} gs://{name}"
    said = "delete --force" if (verb, kind) == ("delete", ResourceKind.QUEUED) else verb
    place = {"zone": location, "region": region_of(location)}
    place["regional"] = "--global" if location == "global" else f"--region {place['region']}"
    return f"gcloud {_GCLOUD[kind].format(verb=said, name=name, **place)}"


BESIDE_TPUS = (
    ResourceKind.DISK,
    ResourceKind.SNAPSHOT,
    ResourceKind.IMAGE,
    ResourceKind.ADDRESS,
    ResourceKind.INSTANCE,
    ResourceKind.BUCKET,
)
"""What can cost money and is listed by itself: templates and policies cost nothing, groups their instances."""


OF_COMPUTE = frozenset({ResourceKind.GROUP, ResourceKind.TEMPLATE, ResourceKind.POLICY, ResourceKind.INSTANCE})
"""What a slice in Compute Engine consists of."""


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
    def api(self) -> Api:
        """The API that shows it as a TPU, where it is one."""
        return Api.COMPUTE if self.kind in OF_COMPUTE else Api.TPU

    @property
    def user(self) -> str:
        return self.labels.get(USER_LABEL, "")

    @property
    def slice_name(self) -> str:
        return self.labels.get(OWNER_LABEL, "")

    @property
    def place(self) -> tuple[str, str, str]:
        return self.kind, self.location, self.name
