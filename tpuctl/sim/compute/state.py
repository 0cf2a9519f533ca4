"""Disks, snapshots, images, addresses and firewall rules of the project: what exists, and how calls change it.

Firewall rules that allow something can be made: every port of a host is reached anyway. Boot disks of TPU VMs
are not here: they belong to the TPU service's own project, as in the real cloud.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tpuctl.errors import TpuctlError
from tpuctl.sim.compute.catalog import GLOBAL, KINDS, ROOT, Kind, Scope
from tpuctl.sim.compute.disks import (
    Rates,
    Source,
    check_access_change,
    check_resize,
    check_throughput_change,
    copy_details,
    disk_details,
    invalid,
    quota_of,
)
from tpuctl.sim.compute.fingerprints import fingerprint
from tpuctl.sim.compute.operations import ComputeOperations, Planned, place
from tpuctl.sim.compute.policies import policy_details
from tpuctl.sim.compute.public_images import find_public_image
from tpuctl.sim.compute.reservations import reservation_details, reserved_chips
from tpuctl.sim.compute.templates import template_details
from tpuctl.sim.wire.payload import snake
from tpuctl.sim.wire.status import ApiError, Code, Json, unknown_method
from tpuctl.sim.wire.timestamps import pacific
from tpuctl.sim.world.paths import ResourcePath, check_labels
from tpuctl.sim.world.quotas import DISK_METRICS, SNAPSHOTS
from tpuctl.sim.world.state import Ids, copy_json
from tpuctl.sim.world.world import World

log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
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
MAX_RESOURCES = 10_000
"""Of each project: far beyond what anybody has, and memory is bounded."""
_ADDRESSES = 64_516
_UNDERWAY = {
    **dict.fromkeys(("disks", "snapshots", "resourcePolicies", "reservations"), "CREATING"),
    "images": "PENDING",
    "addresses": "RESERVING",
}
_LABELLED = frozenset({"addresses", "disks", "images", "snapshots"})
_INPUTS: Mapping[str, frozenset[str]] = {
    "disks": frozenset(
        {
            *("name", "description", "labels", "sizeGb", "type", "zone", "sourceSnapshot", "sourceDisk"),
            *(
                "sourceImage",
                "provisionedIops",
                "provisionedThroughput",
                "physicalBlockSizeBytes",
                "accessMode",
            ),
        }
    ),
    "snapshots": frozenset({"name", "description", "labels", "sourceDisk", "storageLocations", "snapshotType"}),
    "images": frozenset({"name", "description", "labels", "sourceDisk", "storageLocations", "family"}),
    "addresses": frozenset({"name", "description", "labels", "address", "addressType", "networkTier"}),
    "firewalls": frozenset(
        {
            *("name", "description", "network", "direction", "priority", "allowed", "denied", "disabled"),
            *("sourceRanges", "sourceTags", "destinationRanges", "targetTags"),
        }
    ),
    "instanceTemplates": frozenset({"name", "description", "region", "properties"}),
    "reservations": frozenset(
        {
            *("name", "description", "zone", "specificReservation", "specificReservationRequired"),
            "aggregateReservation",
        }
    ),
    "resourcePolicies": frozenset({"name", "description", "region", "workloadPolicy"}),
}
"""What the simulator does of a create; anything else that says something is refused, not dropped."""
_DEFAULTS: tuple[object, ...] = (False, "", 0, "0", [], {}, None, "IPV4", "RAW")
"""What a create may say of anything: it is so anyway."""
_OUTPUTS = frozenset(
    {
        *("kind", "id", "creationTimestamp", "selfLink", "status", "labelFingerprint", "users", "region"),
        *("lastAttachTimestamp", "lastDetachTimestamp", "satisfiesPzi", "satisfiesPzs", "sourceDiskId"),
        *("sourceSnapshotId", "sourceImageId", "sourceType"),
    }
)


_DETAILS: Mapping[str, Callable[[Scope, Json], Json]] = {
    "reservations": reservation_details,
    "resourcePolicies": policy_details,
}
"""What new resources of a collection show besides their names."""


@dataclass
class _Record:
    data: Json
    made_at: float
    ready_at: float
    gone_at: float = math.inf
    copied: bool = False
    """Whether it is a disk made from something."""
    tuned_at: float = -math.inf
    """When its throughput was changed last."""


class ComputeState:
    """Thread-safe under the world's lock. `attached` says which disks (`zone`, `name`) the hosts of nodes use,
    and since when; `firewalls` are the rules with which the project begins. Hosts keep the content of disks
    and their copies."""

    def __init__(
        self,
        world: World,
        attached: Callable[[], Mapping[tuple[str, str], Json]],
        firewalls: Callable[[], Sequence[Json]],
    ) -> None:
        self._world = world
        self._project = world.options.project
        self._firewalls = firewalls
        self._base = f"{ROOT}/projects/{self._project}"
        self._now = world.clock.now
        self._attached = attached
        self._ids = Ids(2)
        self._lock = world.lock
        self._hosts = world.hosts
        self._rates = Rates(world.options.speed)
        self._found: dict[tuple[str, str, str], _Record] = {}
        """(collection, scope, name) → the resource."""
        self._going: set[tuple[str, str, str]] = set()
        """Those that are being deleted."""
        self._next_address = 1
        self.users: Callable[[str], list[str]] = lambda _path: []
        """The groups that use a template or policy (`projects/…`), relative to the root."""
        self.operations = ComputeOperations(
            self._project, self._now, self._ids, lambda: self._wait_s(world.delays.compute_operation)
        )
        self._begin()

    def reset(self) -> None:
        with self._lock:
            for record in self._found.values():
                self._hosts.drop_disk(str(record.data["id"]))
            self._rates.taken.clear()
            self._found.clear()
            self._going.clear()
            self._begin()
        self.operations.reset()

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

    def new_id(self) -> str:
        """For a resource that is kept elsewhere."""
        return self._ids.node_id()

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

    def _wait_s(self, delay_s: float) -> float:
        return delay_s / self._world.options.speed

    def create_snapshot(self, scope: Scope, disk: str, body: Json, planned: Planned) -> Json:
        """Makes a snapshot by an operation on its disk."""
        kind = KINDS["disks"]
        with self._lock:
            self._purge()
            about = ("createSnapshot", scope, self._existing(kind, scope, disk).data)
        asked = {**body, "sourceDisk": self._path(kind, scope, disk)}
        return self.insert(KINDS["snapshots"], Scope(GLOBAL), asked, planned, about)

    def insert(
        self,
        kind: Kind,
        scope: Scope,
        body: Json,
        planned: Planned,
        about: tuple[str, Scope, Json] | None = None,
    ) -> Json:
        """Makes a resource; the operation. `about`: its verb and target, if not the insertion's own."""
        name = check_body(kind, body)
        with self._lock:
            self._purge()
            source = self._source(kind, body)
            key = (kind.collection, str(scope), name)
            if key in self._found:
                path = self._path(kind, scope, name)
                raise ApiError(Code.ALREADY_EXISTS, f"The resource '{path}' already exists")
            if len(self._found) - self._given >= MAX_RESOURCES:
                text = f"Quota '{kind.collection.upper()}' exceeded.  Limit: {MAX_RESOURCES}.0 globally."
                raise ApiError(Code.RESOURCE_EXHAUSTED, text)
            data = self._data(kind, scope, body, source)
            verb, place_of, target_data = about or (kind.operation_type("insert"), scope, data)
            error = planned.error or self._over_quota(kind.collection, data)
            if kind.collection == "reservations" and error is None:
                self._world.reserve(name, scope.name, *reserved_chips(body))
            if (source is not None and source.field != "sourceDisk") or kind.collection != "disks":
                error = error or self._too_often(source)
            delays, of_disk = self._world.delays, source is not None and source.field == "sourceDisk"
            begins_s = self._wait_s(delays.copy_begins) if of_disk else 0.0
            extra_s = begins_s + self._wait_s(delays.disk_copy) if source is not None else 0.0
            held = source is not None and error is None
            planned = replace(planned, error=error)
            operation = self.operations.begin(verb, place_of, target_data, planned, extra_s, held=held)
            record = _Record(data, self._now(), math.inf, copied=source is not None)
            self._found[key] = record
            if error is not None:
                self._lose(key, operation["_ends"])
        if source is not None and error is None:
            if begins_s > 0:
                self._world.after(begins_s, lambda: self._copy(key, record, source, operation))
            else:
                self._copy(key, record, source, operation)
            return operation
        if kind.collection == "disks" and error is None:
            self._hosts.write_disk(data["id"], int(data["sizeGb"]))
        record.ready_at = operation["_ends"]
        if kind.collection == "firewalls":
            self._tell_firewall()
        return operation

    def _data(self, kind: Kind, scope: Scope, body: Json, source: Source | None) -> Json:
        """A new resource as it is shown."""
        name = body["name"]
        kept = {field: body[field] for field in ("description", "labels", "family") if body.get(field)}
        labelled = kind.collection in _LABELLED
        return {
            "kind": f"compute#{kind.singular}",
            "id": self._ids.node_id(),
            "creationTimestamp": pacific(self._now()),
            "name": name,
            "selfLink": f"{self._base}/{scope}/{kind.collection}/{name}",
            **kept,
            **({"labelFingerprint": fingerprint(body.get("labels") or {})} if labelled else {}),
            **place(self._base, scope),
            **self._details(kind, scope, body, source),
        }

    # Disks that are made with a machine, without operations of their own. But for the last two, all expect the
    # lock to be held.

    def plan_disk(self, scope: Scope, body: Json) -> Json:
        """What a new disk would be. Raises ApiError where it cannot be."""
        kind, name = KINDS["disks"], check_body(KINDS["disks"], body)
        if (kind.collection, str(scope), name) in self._found:
            text = f"The resource '{self._path(kind, scope, name)}' already exists"
            raise ApiError(Code.ALREADY_EXISTS, text)
        return self._data(kind, scope, body, None)

    def over_quota(self, disks: Sequence[Json]) -> ApiError | None:
        """Why so many more disks are too much."""
        for metric, region in dict.fromkeys(quota_of(each) for each in disks):
            need = sum(int(each["sizeGb"]) for each in disks if quota_of(each) == (metric, region))
            first = next(each for each in disks if quota_of(each) == (metric, region))
            error = self._over_quota("disks", first, need)
            if error is not None:
                return error
        return None

    def add_disks(self, disks: Sequence[Json]) -> None:
        """They are there; their content is made by `fill_disks`, without the lock."""
        for data in disks:
            scope = "zones/" + str(data["zone"]).rsplit("/", 1)[-1]
            self._found["disks", scope, data["name"]] = _Record(data, self._now(), -math.inf)

    def fill_disks(self, disks: Sequence[Json]) -> None:
        for data in disks:
            self._hosts.write_disk(data["id"], int(data["sizeGb"]))

    def remove_disk(self, zone: str, name: str) -> None:
        """At once, with its content; nothing happens where there is none, or something else uses it."""
        used = "users" in self._attached().get((zone, name), {})
        with self._lock:
            key = ("disks", f"zones/{zone}", name)
            if key in self._found and not used:
                self._lose(key, self._now())
                self._purge()

    def _tell_firewall(self) -> None:
        """Hosts obey the rules that there are. A call that changes some is obeyed at once, its operation ends
        later."""
        with self._lock:
            rules = [
                record.data
                for (collection, _, _), record in self._found.items()
                if collection == "firewalls" and math.isinf(record.gone_at)
            ]
        self._hosts.set_firewall(rules)

    def make_network(self, scope: Scope, data: Json, planned: Planned) -> Json:
        """The operation that makes one, without any rules."""
        with self._lock:
            operation = self.operations.begin("insert", scope, data, planned)
            for key in [key for key in self._found if key[0] == "firewalls" and planned.error is None]:
                del self._found[key]
        self._tell_firewall()
        return operation

    def _copy(self, key: tuple[str, str, str], record: _Record, source: Source, operation: Json) -> None:
        """Takes the content of `source` as it is now; without the lock, as it may take a while. What cannot be
        copied fails the operation."""
        data = record.data
        error = None
        try:
            size = int(data.get("sizeGb") or data["diskSizeGb"])
            self._hosts.write_disk(data["id"], size, source.data["id"])
        except (TpuctlError, OSError) as problem:
            log.exception("copying %s failed", source.data["selfLink"])
            error = ApiError(Code.INTERNAL, f"Internal error. The disk could not be copied: {problem}")
        with self._lock:
            self.operations.release(operation, error)
            if error is not None and self._found.get(key) is record:
                self._lose(key, operation["_ends"])
            record.ready_at = operation["_ends"]

    def quotas(self, region: str = "") -> list[Json]:
        """The `quotas` of a region, or of the project, that disks and snapshots draw on."""
        with self._lock:
            self._purge()
            metrics = dict.fromkeys(DISK_METRICS.values()) if region else [SNAPSHOTS]
            return [
                {
                    "metric": metric,
                    "limit": float(self._world.quota_limit(metric, region)),
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
        limit = self._world.quota_limit(metric, region)
        if self._quota_usage(metric, region) + need <= limit:
            return None
        where = f"in region {region}" if region else "globally"
        return ApiError(Code.RESOURCE_EXHAUSTED, f"Quota '{metric}' exceeded.  Limit: {limit}.0 {where}.")

    def _too_often(self, source: Source | None) -> ApiError | None:
        if source is None:
            return None
        path = str(source.data["selfLink"]).removeprefix(f"{ROOT}/")
        return self._rates.refusal(path, self._now())

    def change(self, verb: str, kind: Kind, scope: Scope, name: str, body: Json, planned: Planned) -> Json:
        """`resize`, `setLabels`, `patch` of a firewall rule, or `update` of the access mode or throughput: at
        once, and the operation ends later."""
        attached, error = self._attached(), planned.error
        with self._lock:
            self._purge()
            record = self._existing(kind, scope, name)
            data = record.data
            change: Json = {}
            if verb == "resize":
                check_resize(data, int(body.get("sizeGb") or 0))
                change = {"sizeGb": str(body["sizeGb"])}
                more = int(body["sizeGb"]) - int(data["sizeGb"])
                error = error or self._over_quota("disks", data, more)
            elif verb == "setLabels":
                change = _labels(data, body)
            elif verb == "patch":
                asked = {key: value for key, value in data.items() if key in _INPUTS["firewalls"]}
                change = self._firewall({**asked, **body})
            elif "provisionedThroughput" in body:
                rate = int(body["provisionedThroughput"])
                check_throughput_change(data, rate, self._now() - record.tuned_at, self._rates.speed)
                change = {"provisionedThroughput": str(rate)}
                record.tuned_at = self._now() if error is None else record.tuned_at
            else:
                users = self._shown(record, attached).get("users", [])
                check_access_change(data, str(body.get("accessMode") or ""), users)
                change = {"accessMode": body["accessMode"]}
            named = {"resize": "resizeDisk"}.get(verb, verb)
            operation = self.operations.begin(named, scope, data, replace(planned, error=error))
            if error is None:
                data.update(change)
        if "sizeGb" in change and error is None:
            self._hosts.write_disk(data["id"], int(change["sizeGb"]))
        if verb == "patch":
            self._tell_firewall()
        return operation

    def _existing(self, kind: Kind, scope: Scope, name: str) -> _Record:
        record = self._found.get((kind.collection, str(scope), name))
        if record is None:
            raise absent(self._path(kind, scope, name))
        return record

    def _path(self, kind: Kind, scope: Scope, name: str) -> str:
        return f"projects/{self._project}/{scope}/{kind.collection}/{name}"

    def delete(self, kind: Kind, scope: Scope, name: str, planned: Planned) -> Json:
        """Takes a resource away when the operation is done."""
        attached = self._attached()
        with self._lock:
            self._purge()
            path = self._path(kind, scope, name)
            record = self._existing(kind, scope, name)
            if not math.isinf(record.gone_at):
                raise not_ready(path)
            users = self._shown(record, attached).get("users") or self.users(path)
            if users:
                user = users[0].removeprefix(f"{ROOT}/")
                text = f"The {snake(kind.singular)} resource '{path}' is already being used by '{user}'"
                raise ApiError(Code.INVALID_ARGUMENT, text, [{"reason": "resourceInUseByAnotherResource"}])
            verb = kind.operation_type("delete")
            operation = self.operations.begin(verb, scope, record.data, planned)
            if planned.error is None:
                if kind.collection == "reservations":
                    self._world.reserve(name, scope.name, "", 0)
                self._lose((kind.collection, str(scope), name), operation["_ends"])
            self._purge()
        if kind.collection == "firewalls":
            self._tell_firewall()
        return operation

    def _begin(self) -> None:
        """With what every project has."""
        rules = self._firewalls()
        self._given = len(rules)
        for rule in rules:
            self._found["firewalls", GLOBAL, str(rule["name"])] = _Record(rule, -math.inf, -math.inf)
        self._tell_firewall()

    def _lose(self, key: tuple[str, str, str], at: float) -> None:
        self._found[key].gone_at = at
        self._going.add(key)

    def _purge(self) -> None:
        now = self._now()
        for key in [key for key in self._going if self._found[key].gone_at <= now]:
            self._hosts.drop_disk(str(self._found.pop(key).data["id"]))
            self._going.remove(key)

    def _shown(self, record: _Record, attached: Mapping[tuple[str, str], Json]) -> Json:
        """A resource as the API shows it now: disks with the machines that use them."""
        shown: Json = copy_json(record.data)
        collection = next(each for each, kind in KINDS.items() if shown["kind"] == f"compute#{kind.singular}")
        if collection not in _UNDERWAY:
            return shown
        if self._now() < record.ready_at:
            shown["status"] = self._underway(collection, record)
        elif not math.isinf(record.gone_at):
            shown["status"] = "DELETING"
        if collection == "disks":
            shown |= attached.get((shown["zone"].rsplit("/", 1)[-1], shown["name"]), {})
        return shown

    def _underway(self, collection: str, record: _Record) -> str:
        """A snapshot is uploaded in the second half of its time."""
        if collection == "disks" and record.copied:
            return "RESTORING"
        half = (record.made_at + record.ready_at) / 2
        return "UPLOADING" if collection == "snapshots" and self._now() >= half else _UNDERWAY[collection]

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

    def _details(self, kind: Kind, scope: Scope, body: Json, source: Source | None) -> Json:
        if kind.collection == "disks":
            return disk_details(self._base, scope, body, source)
        if kind.collection == "addresses":
            return self._address(body)
        if kind.collection == "firewalls":
            return self._firewall(body)
        if kind.collection == "instanceTemplates":
            return template_details(body, self.find_image)
        if kind.collection in _DETAILS:
            return _DETAILS[kind.collection](scope, body)
        return copy_details(kind.collection, body, source.data) if source else {}

    def _address(self, body: Json) -> Json:
        number = self._next_address
        self._next_address = number % _ADDRESSES + 1
        return {
            "address": str(
                body.get("address") or f"198.{18 + number // 254 % 2}.{number // 254}.{number % 254}"
            ),
            "addressType": str(body.get("addressType") or "EXTERNAL"),
            "networkTier": str(body.get("networkTier") or "PREMIUM"),
            "description": str(body.get("description") or ""),
            "status": "RESERVED",
        }

    def _firewall(self, body: Json) -> Json:
        """A rule with what the service fills in (cloud.google.com/compute/docs/reference/rest/v1/firewalls)."""
        network = str(body.get("network") or "global/networks/default").rsplit("/", 1)[-1]
        if network != "default":
            raise absent(f"projects/{self._project}/global/networks/{network}")
        if bool(body.get("allowed")) == bool(body.get("denied")):
            raise invalid("resource.allowed", "", "Either allowed or denied must be specified.")
        asked = {key: value for key, value in body.items() if key in _INPUTS["firewalls"]}
        inward = asked.get("direction") != "EGRESS"
        anywhere = "sourceRanges" if inward else "destinationRanges"
        limited = any(asked.get(key) for key in (anywhere, *(("sourceTags",) if inward else ())))
        return {
            "direction": "INGRESS",
            "priority": 1000,
            "disabled": False,
            **asked,
            **({} if limited else {anywhere: ["0.0.0.0/0"]}),
            "logConfig": {"enable": False},
            "network": f"{self._base}/global/networks/{network}",
        }


def absent(path: str) -> ApiError:
    return ApiError(Code.NOT_FOUND, f"The resource '{path}' was not found")


def not_ready(path: str) -> ApiError:
    text = f"The resource '{path}' is not ready"
    return ApiError(Code.INVALID_ARGUMENT, text, [{"reason": "resourceNotReady"}])


def check_body(kind: Kind, body: Json) -> str:
    """The name of what a body asks for. Raises ApiError for what is wrong or not simulated."""
    name = str(body.get("name") or "")
    if not _NAME.match(name):
        text = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        raise invalid("resource.name", name, text)
    check_labels(body.get("labels") or {})
    known = _INPUTS.get(kind.collection, frozenset(body)) | _OUTPUTS
    for field, value in body.items():
        if field not in known and value not in _DEFAULTS:
            raise unknown_method(f"'{field}' of {kind.collection}")
    return name


def _labels(data: Json, body: Json) -> Json:
    """New labels for who knows the old ones. Raises conditionNotMet."""
    labels = body.get("labels") or {}
    check_labels(labels)
    if body.get("labelFingerprint") != data["labelFingerprint"]:
        text = "Labels fingerprint either invalid or resource labels have changed"
        raise ApiError(Code.FAILED_PRECONDITION, text, [{"reason": "conditionNotMet"}])
    return {"labels": labels, "labelFingerprint": fingerprint(labels)}


def target(project: str, kind: Kind, scope: Scope, name: str) -> ResourcePath:
    """What a call is about, for faults and the journal."""
    return ResourcePath(project, scope.location, kind.collection, name)
