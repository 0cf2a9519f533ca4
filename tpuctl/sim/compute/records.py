"""What the project has of disks, snapshots, images and the like, as the API shows it now."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpuctl.lib.names import region_of
from tpuctl.sim.compute.bodies import last_part
from tpuctl.sim.compute.catalog import KINDS, ROOT, Kind, Scope, find_public_image
from tpuctl.sim.compute.disks import Source, quota_of
from tpuctl.sim.compute.refusals import absent, invalid, not_ready
from tpuctl.sim.wire.status import ApiError, Json
from tpuctl.sim.world.quotas import DISK_METRICS, SNAPSHOTS, Quotas, exceeded
from tpuctl.sim.world.state import copy_json
from tpuctl.sim.world.world import World

_SOURCES: Mapping[str, tuple[str, str, re.Pattern[str]]] = {
    f"source{noun.capitalize()}": (noun, collection, re.compile(rf"(?:.*/)?({scope})/{collection}/([^/]+)"))
    for noun, collection, scope in (
        ("disk", "disks", "zones/[^/]+"),
        ("snapshot", "snapshots", "global"),
        ("image", "images", "global"),
    )
}
"""What a disk can be made from: field → its word, its collection, and how it is named."""
_IMAGE = re.compile(
    r"(?:https?://[^/]+/compute/[a-z0-9]+/)?(?:projects/([^/]+)/)?"
    r"(?:global/images/(family/)?|zones/[^/]+/(imageFamilyViews/))([^/]+)"
)
"""Families have two names; that with a zone is what `gcloud compute instances create` says."""
_WITH_CONTENT = ("disks", "snapshots", "images")


@dataclass
class Record:
    """A resource: `data` is what it shows whatever the time."""

    data: Json
    made_at: float
    ready_at: float
    gone_at: float = math.inf
    copied: bool = False
    """Whether it is a disk made from something."""
    tuned_at: float = -math.inf
    """When its throughput was changed last."""


class Records:
    """Thread-safe under the world's lock; private methods expect it to be held. `attached` says which disks
    (`zone`, `name`) the hosts of nodes use, and since when."""

    def __init__(self, world: World, attached: Callable[[], Mapping[tuple[str, str], Json]]) -> None:
        self._world = world
        self._project = world.options.project
        self._now = world.clock.now
        self._attached = attached
        self._lock = world.kernel.lock
        self._hosts = world.kernel.hosts
        self._found: dict[tuple[str, str, str], Record] = {}
        """(collection, scope, name) → the resource."""
        self._going: set[tuple[str, str, str]] = set()
        """Those that are being deleted."""

    def rows(self, kind: Kind) -> list[tuple[str, str, Json]]:
        """(scope, name, resource) of a collection, everywhere."""
        attached = self._attached()
        with self._lock:
            self._purge()
            return [
                (scope, name, self._shown(record, attached))
                for (collection, scope, name), record in self._found.items()
                if collection == kind.collection
            ]

    def find_disk(self, zone: str, name: str) -> Json | None:
        """A disk as the API shows it, users apart."""
        with self._lock:
            self._purge()
            record = self._found.get(("disks", f"zones/{zone}", name))
            return None if record is None else self._shown(record, {})

    def find(self, collection: str, scope: str, name: str) -> Json | None:
        """A resource that is there for others to use."""
        with self._lock:
            self._purge()
            record = self._found.get((collection, scope, name))
            return None if record is None or self._now() < record.ready_at else record.data

    def find_image(self, source: str) -> Json | None:
        """What the URL or path of an image, or of a family, means: of the project or of Google's own."""
        found = _IMAGE.fullmatch(source)
        if found is None:
            return None
        project, by_family, name = found[1], found[2] or found[3], found[4]
        if project not in (None, self._project):
            return find_public_image(project, by_family, name)
        with self._lock:
            images = [row[2] for row in self.rows(KINDS["images"])]
        field = "family" if by_family else "name"
        fitting = [each for each in images if each.get(field) == name and each["status"] == "READY"]
        return max(fitting, key=lambda each: str(each["creationTimestamp"]), default=None)

    def _source(self, kind: Kind, body: Json) -> Source | None:
        """What a disk or a copy is to be made from. ApiError where it is not there or not ready."""
        fields = [each for each in _SOURCES if body.get(each)]
        if kind.collection not in _WITH_CONTENT or (kind.collection == "disks" and not fields):
            return None
        if len(fields) > 1:
            raise invalid(
                f"resource.{fields[1]}", body[fields[1]], f"{fields[0]} is set, too: a disk has one source."
            )
        field = fields[0] if kind.collection == "disks" else "sourceDisk"
        noun, collection, named = _SOURCES[field]
        match = named.fullmatch(str(body.get(field) or ""))
        record = self._found.get((collection, match.group(1), match.group(2))) if match else None
        if record is None:
            text = f"The referenced {noun} resource cannot be found."
            raise invalid(f"resource.{field}", body.get(field) or "", text)
        if self._now() < record.ready_at or not math.isinf(record.gone_at):
            raise not_ready(str(record.data["selfLink"]).removeprefix(f"{ROOT}/"))
        return Source(field, noun, record.data)

    def _existing(self, kind: Kind, scope: Scope, name: str) -> Record:
        record = self._found.get((kind.collection, str(scope), name))
        if record is None:
            raise absent(self._path(kind, scope, name))
        return record

    def _path(self, kind: Kind, scope: Scope, name: str) -> str:
        return f"projects/{self._project}/{scope}/{kind.collection}/{name}"

    def _lose(self, key: tuple[str, str, str], at: float) -> None:
        self._found[key].gone_at = at
        self._going.add(key)

    def _purge(self) -> None:
        now = self._now()
        for key in [key for key in self._going if self._found[key].gone_at <= now]:
            self._hosts.drop_disk(str(self._found.pop(key).data["id"]))
            self._going.remove(key)

    def _shown(self, record: Record, attached: Mapping[tuple[str, str], Json]) -> Json:
        """A resource as the API shows it now: disks with the machines that use them."""
        shown: Json = copy_json(record.data)
        kind = next(kind for kind in KINDS.values() if shown["kind"] == f"compute#{kind.singular}")
        if not kind.underway:
            return shown
        if self._now() < record.ready_at:
            shown["status"] = self._underway(kind, record)
        elif not math.isinf(record.gone_at):
            shown["status"] = "DELETING"
        if kind.collection == "disks":
            shown |= attached.get((last_part(shown["zone"]), shown["name"]), {})
        return shown

    def _underway(self, kind: Kind, record: Record) -> str:
        """A snapshot is uploaded in the second half of its time."""
        if kind.collection == "disks" and record.copied:
            return "RESTORING"
        half = (record.made_at + record.ready_at) / 2
        return "UPLOADING" if kind.collection == "snapshots" and self._now() >= half else kind.underway

    def quotas(self, region: str = "") -> list[Json]:
        """The `quotas` of a region, or of the project, that disks and snapshots draw on."""
        with self._lock:
            self._purge()
            metrics = dict.fromkeys(DISK_METRICS.values()) if region else [SNAPSHOTS]
            return [
                {
                    "metric": metric,
                    "limit": float(Quotas(self._world.kernel).limit(metric, region)),
                    "usage": float(self._quota_usage(metric, region)),
                }
                for metric in metrics
            ]

    def _quota_usage(self, metric: str, region: str) -> int:
        """What is being deleted, and what fails, counts no more."""
        there = [record.data for key, record in self._found.items() if key not in self._going]
        if metric == SNAPSHOTS:
            return sum(each["kind"] == "compute#snapshot" for each in there)
        disks = [each for each in there if each["kind"] == "compute#disk"]
        return sum(int(each["sizeGb"]) for each in disks if quota_of(each) == (metric, region))

    def _over_quota(self, collection: str, data: Json, more: int | None = None) -> ApiError | None:
        """Why a new disk or snapshot, or `more` GB of a disk, is too much. The operation fails with it."""
        metric, region = quota_of(data) if collection == "disks" else (SNAPSHOTS, "")
        if collection not in ("disks", "snapshots") or not metric:
            return None
        need = more if more is not None else int(data["sizeGb"]) if collection == "disks" else 1
        limit = Quotas(self._world.kernel).limit(metric, region)
        if self._quota_usage(metric, region) + need <= limit:
            return None
        return exceeded(metric, limit, f"in region {region}" if region else "globally")


def find_template(records: Records, project: str, scope: Scope, at: tuple[str, str]) -> tuple[str, Json]:
    """URL and properties of the template `at` (scope, name). Raises ApiError."""
    where, name = at
    region = region_of(scope.name)
    if where not in ("global", f"regions/{region}"):
        url = f"{where}/instanceTemplates/{name}"
        raise invalid("resource.instanceTemplate", url, f"It must be global or in the region {region}.")
    found = records.find("instanceTemplates", where, name)
    if found is None:
        raise absent(f"projects/{project}/{where}/instanceTemplates/{name}")
    return str(found["selfLink"]), found["properties"]


def find_policy(records: Records, project: str, scope: Scope, at: tuple[str, str] | None) -> tuple[str, str]:
    """URL and topology of the workload policy `at` (region, name); empty for none. Raises ApiError."""
    if at is None:
        return "", ""
    region, name = at
    if region != region_of(scope.name):
        url = f"regions/{region}/resourcePolicies/{name}"
        text = f"It must be in the region of the group, {region_of(scope.name)}."
        raise invalid("resource.resourcePolicies.workloadPolicy", url, text)
    found = records.find("resourcePolicies", f"regions/{region}", name)
    if found is None:
        raise absent(f"projects/{project}/regions/{region}/resourcePolicies/{name}")
    return str(found["selfLink"]), str(found["workloadPolicy"].get("acceleratorTopology") or "")
