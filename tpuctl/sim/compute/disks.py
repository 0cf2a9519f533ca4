"""Disks and their copies: sizes, sources, access modes, performance and rates, as Compute Engine checks them.

Sentences about sizes and rates are those that users of Compute Engine quote; limits of hyperdisk-ml are from
https://cloud.google.com/compute/docs/disks/hd-types/hyperdisk-ml. Where a check is documented and its sentence
is not, the sentence is ours.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from functools import cache

from tpuctl.lib.names import region_of
from tpuctl.sim.compute.bodies import last_part
from tpuctl.sim.compute.catalog import Scope
from tpuctl.sim.compute.refusals import invalid
from tpuctl.sim.wire.status import ApiError, Code, Json
from tpuctl.sim.world.catalog import DISK_TYPES
from tpuctl.sim.world.faults import RATE_EXCEEDED
from tpuctl.sim.world.quotas import DISK_METRICS

ACCESS_MODES = {name: each.access for name, each in DISK_TYPES.items() if each.access}
"""The first is what a disk gets; other types have none to set."""
_MULTI_REGIONS = {"us": "us", "europe": "eu", "asia": "asia"}
"""By the first part of a region: where copies of disks are kept unless somebody says otherwise."""
_TYPE = re.compile(r"(?:.*/)?zones/([^/]+)/diskTypes/[^/]+")
THROUGHPUT_CHANGE_S = 6 * 3600.0
BURST, WINDOW_S = 6, 3600.0
"""So many snapshots of a disk, restores of a snapshot, and images of a disk, in so long: gcpdiag, rule
gce/ERR/2024_001."""


@dataclass(frozen=True)
class Source:
    """What a disk is made from. `field` and `noun` name it in requests and refusals."""

    field: str
    noun: str
    data: Json

    @property
    def size_gb(self) -> int:
        return int(self.data.get("sizeGb") or self.data["diskSizeGb"])


def disk_details(base: str, scope: Scope, body: Json, source: Source | None) -> Json:
    """What a new disk shows besides its name; `base` is the project's URL."""
    own = str(body.get("type") or "")
    given = own or str((source and source.data.get("type")) or "pd-standard")
    kind = last_part(given)
    named = _TYPE.fullmatch(own)
    if own and named is None:
        raise invalid("resource.type", own, "The URL is malformed.")
    if named is not None and named[1] != scope.name:
        raise invalid("resource.type", own, f"The disk type must be in the zone of the disk, {scope.name}.")
    if kind not in DISK_TYPES:
        raise invalid("resource.type", body.get("type"), "The referenced disk type cannot be found.")
    if source is not None and source.field == "sourceDisk":
        _check_clone(scope, kind, source)
    return {
        "sizeGb": str(_size(kind, body, source)),
        "type": f"{base}/{scope}/diskTypes/{kind}",
        **_access_mode(kind, body, source),
        **_performance(kind, body, source),
        **({source.field: source.data["selfLink"], f"{source.field}Id": source.data["id"]} if source else {}),
    }


def _check_clone(scope: Scope, kind: str, source: Source) -> None:
    if last_part(source.data["zone"]) != scope.name:
        text = "The source disk must be in the same zone as the disk."
        raise invalid("resource.sourceDisk", source.data["selfLink"], text)
    if last_part(source.data["type"]) != kind:
        raise invalid("resource.type", kind, "The disk type must be that of the source disk.")


def _size(kind: str, body: Json, source: Source | None) -> int:
    default, smallest, largest = DISK_TYPES[kind].size
    size = int(body.get("sizeGb") or (max(source.size_gb, smallest) if source else default))
    if not smallest <= size <= largest:
        text = f"Disk size must be between {smallest} GB and {largest} GB."
        raise invalid("resource.sizeGb", size, text)
    if source is not None and size < source.size_gb:
        text = f"Requested disk size cannot be smaller than the {source.noun} size ({source.size_gb} GB)."
        raise invalid("resource.sizeGb", size, text)
    return size


def _access_mode(kind: str, body: Json, source: Source | None) -> Json:
    known, wanted = ACCESS_MODES.get(kind), body.get("accessMode")
    if known is None:
        if wanted:
            raise invalid(
                "resource.accessMode", wanted, "The AccessMode is only valid for Hyperdisk disk types."
            )
        return {}
    mode = str(wanted or known[0])
    if mode not in known:
        raise invalid("resource.accessMode", mode, f"It is not supported for {kind} disks.")
    if kind == "hyperdisk-ml" and source is not None and mode != "READ_ONLY_MANY":
        text = "hyperdisk-ml disks that are created from a source must have the access mode READ_ONLY_MANY."
        raise invalid("resource.accessMode", mode, text)
    return {"accessMode": mode}


def _performance(kind: str, body: Json, source: Source | None) -> Json:
    """Provisioned throughput (MiB/s) and IOPS: of Hyperdisk alone, with the defaults that it gets."""
    size = _size(kind, body, source)
    asked = {key: int(body[key]) for key in ("provisionedThroughput", "provisionedIops") if body.get(key)}
    if kind == "hyperdisk-ml":
        if "provisionedIops" in asked:
            raise invalid(
                "resource.provisionedIops", asked["provisionedIops"], "It cannot be set for hyperdisk-ml."
            )
        throughput = asked.get("provisionedThroughput", max(24 * size, 400))
        _check_throughput(size, throughput)
        return {"provisionedThroughput": str(throughput)}
    if kind == "hyperdisk-balanced":
        found = {"provisionedIops": 3000, "provisionedThroughput": 140} | asked
        return {key: str(value) for key, value in found.items()}
    for key, value in asked.items():
        if kind.startswith("pd-") and not (kind == "pd-extreme" and key == "provisionedIops"):
            raise invalid(f"resource.{key}", value, f"It is not supported for {kind} disks.")
    return {key: str(value) for key, value in asked.items()}


def _check_throughput(size: int, throughput: int) -> None:
    """Of a hyperdisk-ml."""
    least, most = max(400, round(0.12 * size)), min(1600 * size, 2_097_152)
    if not least <= throughput <= most:
        text = f"It must be between {least} and {most} for a disk of {size} GB."
        raise invalid("resource.provisionedThroughput", throughput, text)


def check_throughput_change(data: Json, throughput: int, since_s: float, speed: float) -> None:
    """Once in six hours, of a hyperdisk-ml alone, also while it is attached."""
    if not str(data["type"]).endswith("/hyperdisk-ml"):
        raise invalid("resource.provisionedThroughput", throughput, "It cannot be changed for this disk type.")
    if since_s < THROUGHPUT_CHANGE_S / speed:
        text = "The provisioned throughput of a disk can be changed once every 6 hours."
        raise invalid("resource.provisionedThroughput", throughput, text)
    _check_throughput(int(data["sizeGb"]), throughput)


def quota_of(data: Json) -> tuple[str, str]:
    """The quota of GB that a disk draws on, and its region; no metric for a type that has none here."""
    return _quota_of(data["type"], data["zone"])


@cache
def _quota_of(kind: str, zone: str) -> tuple[str, str]:
    """From their addresses. Each new disk asks it of all that are there."""
    return DISK_METRICS.get(last_part(kind), ""), region_of(last_part(zone))


def copy_details(body: Json, source: Json) -> Json:
    """What a snapshot or image of the disk `source` shows."""
    region = region_of(last_part(source["zone"]))
    return {
        "sourceDisk": source["selfLink"],
        "sourceDiskId": source["id"],
        "diskSizeGb": source["sizeGb"],
        "storageLocations": body.get("storageLocations") or [_MULTI_REGIONS.get(region.split("-")[0], region)],
    }


def check_resize(data: Json, size: int) -> None:
    """Disks only grow."""
    kind, before = last_part(data["type"]), int(data["sizeGb"])
    _, smallest, largest = DISK_TYPES[kind].size
    if not smallest <= size <= largest:
        raise invalid("sizeGb", size, f"Disk size must be between {smallest} GB and {largest} GB.")
    if size <= before:
        text = f"New disk size '{size}' GiB must be larger than existing size '{before}' GiB."
        raise invalid("sizeGb", size, text)


def check_access_change(data: Json, mode: str, users: list[str]) -> None:
    """`accessMode` of a hyperdisk-ml disk becomes READ_ONLY_MANY while nobody uses it, and that for good."""
    kind, before = last_part(data["type"]), data.get("accessMode")
    if mode not in ACCESS_MODES.get(kind, ()):
        raise invalid("resource.accessMode", mode, f"It is not supported for {kind} disks.")
    if users:
        raise invalid("resource.accessMode", mode, "The disk must be detached from all instances first.")
    if before == "READ_ONLY_MANY" and mode != before:
        raise invalid("resource.accessMode", mode, "The access mode READ_ONLY_MANY cannot be changed.")


@dataclass
class Rates:
    """How often sources were copied. `speed` divides the window, as it divides all times of the simulator."""

    speed: float
    taken: dict[str, deque[float]] = field(default_factory=dict)

    def refusal(self, source: str, now: float) -> ApiError | None:
        """Counts one copy of `source` (`projects/…`), or says why it is one too many. The operation fails with
        it, not the call."""
        times = self.taken.setdefault(source, deque())
        while times and times[0] <= now - WINDOW_S / self.speed:
            times.popleft()
        if len(times) >= BURST:
            text = f"{RATE_EXCEEDED} '{source}'. Too frequent operations from the source resource."
            return ApiError(Code.RESOURCE_EXHAUSTED, text)
        times.append(now)
        return None
