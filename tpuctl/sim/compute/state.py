"""Disks, snapshots, images, addresses and firewall rules of the project: what exists, and how calls change it.

Firewall rules that allow something can be made: every port of a host is reached anyway. Boot disks of TPU VMs
are not here: they belong to the TPU service's own project, as in the real cloud.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpuctl.sim.compute.catalog import DISK_TYPES, GLOBAL, KINDS, ROOT, Kind, Scope
from tpuctl.sim.compute.operations import ComputeOperations, place
from tpuctl.sim.wire.status import ApiError, Code, Json
from tpuctl.sim.wire.timestamps import rfc3339
from tpuctl.sim.world.faults import Fault
from tpuctl.sim.world.ids import Ids
from tpuctl.sim.world.paths import ResourcePath, check_labels
from tpuctl.sim.world.state import copy_json

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
_SOURCE = re.compile(r"(?:https?://[^/]+/compute/v1/)?projects/([^/]+)/zones/([^/]+)/disks/([^/]+)")
MAX_RESOURCES = 10_000
"""Of each project: far beyond what anybody has, and memory is bounded."""
_ADDRESSES = 64_516
_UNDERWAY = {"disks": "CREATING", "snapshots": "CREATING", "images": "PENDING", "addresses": "RESERVING"}
_INPUTS: Mapping[str, frozenset[str]] = {
    "disks": frozenset(
        {
            *("name", "description", "labels", "sizeGb", "type", "zone", "sourceSnapshot", "sourceDisk"),
            *("provisionedIops", "provisionedThroughput", "physicalBlockSizeBytes"),
        }
    ),
    "snapshots": frozenset({"name", "description", "labels", "sourceDisk", "storageLocations"}),
    "images": frozenset({"name", "description", "labels", "sourceDisk", "storageLocations", "family"}),
    "addresses": frozenset({"name", "description", "labels", "address", "addressType", "networkTier"}),
    "firewalls": frozenset(
        {
            *("name", "description", "network", "direction", "priority", "allowed", "disabled"),
            *("sourceRanges", "sourceTags", "destinationRanges", "targetTags"),
        }
    ),
}
"""What the simulator does of a create; anything else that says something is refused, not dropped."""
_DEFAULTS: tuple[object, ...] = (False, "", 0, "0", [], {}, None, "IPV4", "RAW")
"""What a create may say of anything: it is so anyway."""
_OUTPUTS = frozenset(
    {
        *("kind", "id", "creationTimestamp", "selfLink", "status", "labelFingerprint", "users", "region"),
        *(
            "lastAttachTimestamp",
            "lastDetachTimestamp",
            "satisfiesPzi",
            "satisfiesPzs",
            "sourceDiskId",
            "sourceType",
        ),
    }
)


FINGERPRINT = "42WmSpB8rSM="
"""What the API shows for no labels; the simulator does not check it."""
_MULTI_REGIONS = {"us": "us", "europe": "eu", "asia": "asia"}
"""By the first part of a region: where copies of disks are kept unless somebody says otherwise."""
_STORED: Mapping[str, Json] = {
    "images": {"archiveSizeBytes": "0", "sourceType": "RAW"},
    "snapshots": {
        "creationSizeBytes": "0",
        "downloadBytes": "32876",
        "storageBytes": "0",
        "storageBytesStatus": "UP_TO_DATE",
    },
}
"""What an empty disk takes, as recorded in k8s-config-connector (basic/compute/v1beta1/computesnapshot)."""


@dataclass
class _Record:
    data: Json
    ready_at: float
    gone_at: float = math.inf


class ComputeState:
    """Thread-safe. `attached` says which disks (`zone`, `name`) the hosts of nodes use, and as what; `given`
    are the names of what the project has anyway, by collection."""

    def __init__(
        self,
        project: str,
        now: Callable[[], float],
        attached: Callable[[], Mapping[tuple[str, str], list[str]]],
        delay_s: Callable[[], float],
        given: Mapping[str, frozenset[str]],
    ) -> None:
        self._project = project
        self._given = given
        self._base = f"{ROOT}/projects/{project}"
        self._now = now
        self._attached = attached
        self._ids = Ids(2)
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str, str], _Record] = {}
        """(collection, scope, name) → the resource."""
        self._going: set[tuple[str, str, str]] = set()
        """Those that are being deleted."""
        self._next_address = 1
        self.operations = ComputeOperations(project, now, self._ids, delay_s)

    def reset(self) -> None:
        with self._lock:
            self._found.clear()
            self._going.clear()
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

    def insert(self, kind: Kind, scope: Scope, body: Json, slow: Fault | None, error: ApiError | None) -> Json:
        """Makes a resource; the operation. `slow` and `error` are what was planned for it."""
        return self._insert(kind, scope, body, slow, error, None)

    def create_snapshot(
        self, scope: Scope, disk: str, body: Json, slow: Fault | None, error: ApiError | None
    ) -> Json:
        """Makes a snapshot by an operation on its disk."""
        source = f"projects/{self._project}/{scope}/disks/{disk}"
        with self._lock:
            self._purge()
            record = self._found.get(("disks", str(scope), disk))
        if record is None:
            raise ApiError(Code.NOT_FOUND, f"The resource '{source}' was not found")
        about = ("createSnapshot", scope, record.data)
        return self._insert(
            KINDS["snapshots"], Scope(GLOBAL), {**body, "sourceDisk": source}, slow, error, about
        )

    def _insert(
        self,
        kind: Kind,
        scope: Scope,
        body: Json,
        slow: Fault | None,
        error: ApiError | None,
        about: tuple[str, Scope, Json] | None,
    ) -> Json:
        """`about`: verb and target of the operation, if they are not the insertion's own."""
        name = _check(kind, body)
        with self._lock:
            self._purge()
            key = (kind.collection, str(scope), name)
            if key in self._found or self._is_given(kind, name):
                path = f"projects/{self._project}/{scope}/{kind.collection}/{name}"
                raise ApiError(Code.ALREADY_EXISTS, f"The resource '{path}' already exists")
            if len(self._found) >= MAX_RESOURCES:
                text = f"Quota '{kind.collection.upper()}' exceeded.  Limit: {MAX_RESOURCES}.0 globally."
                raise ApiError(Code.RESOURCE_EXHAUSTED, text)
            kept = {field: body[field] for field in ("description", "labels", "family") if body.get(field)}
            labelled = kind.collection not in ("instances", "firewalls")
            data = {
                "kind": f"compute#{kind.singular}",
                "id": self._ids.node_id(),
                "creationTimestamp": rfc3339(self._now()),
                "name": name,
                "selfLink": f"{self._base}/{scope}/{kind.collection}/{name}",
                **kept,
                **({"labelFingerprint": FINGERPRINT} if labelled else {}),
                **place(self._base, scope),
                **self._details(kind, scope, body),
            }
            verb, place_of, target_data = about or ("insert", scope, data)
            operation = self.operations.begin(verb, place_of, target_data, slow, error)
            self._found[key] = _Record(data, operation["_ends"])
            if error is not None:
                self._lose(key, operation["_ends"])
            return operation

    def delete(self, kind: Kind, scope: Scope, name: str, slow: Fault | None, error: ApiError | None) -> Json:
        """Takes a resource away when the operation is done."""
        if self._is_given(kind, name):
            text = f"tpuctl's simulated cloud does not implement deleting {name}; nothing was changed."
            raise ApiError(Code.FAILED_PRECONDITION, text)
        attached = self._attached()
        with self._lock:
            self._purge()
            path = f"projects/{self._project}/{scope}/{kind.collection}/{name}"
            record = self._found.get((kind.collection, str(scope), name))
            if record is None:
                raise ApiError(Code.NOT_FOUND, f"The resource '{path}' was not found")
            if not math.isinf(record.gone_at):
                text = f"The resource '{path}' is not ready"
                raise ApiError(Code.INVALID_ARGUMENT, text, [{"reason": "resourceNotReady"}])
            users = self._shown(record, attached).get("users")
            if users:
                user = users[0].removeprefix(f"{ROOT}/")
                text = f"The {kind.singular} resource '{path}' is already being used by '{user}'"
                raise ApiError(Code.INVALID_ARGUMENT, text, [{"reason": "resourceInUseByAnotherResource"}])
            operation = self.operations.begin("delete", scope, record.data, slow, error)
            if error is None:
                self._lose((kind.collection, str(scope), name), operation["_ends"])
            self._purge()
            return operation

    def _is_given(self, kind: Kind, name: str) -> bool:
        return name in self._given.get(kind.collection, ())

    def _lose(self, key: tuple[str, str, str], at: float) -> None:
        self._found[key].gone_at = at
        self._going.add(key)

    def _purge(self) -> None:
        now = self._now()
        for key in [key for key in self._going if self._found[key].gone_at <= now]:
            del self._found[key]
            self._going.remove(key)

    def _shown(self, record: _Record, attached: Mapping[tuple[str, str], list[str]]) -> Json:
        """A resource as the API shows it now: disks with the machines that use them."""
        shown: Json = copy_json(record.data)
        collection = next(each for each, kind in KINDS.items() if shown["kind"] == f"compute#{kind.singular}")
        if collection not in _UNDERWAY:
            return shown
        if self._now() < record.ready_at:
            shown["status"] = _UNDERWAY[collection]
        elif not math.isinf(record.gone_at):
            shown["status"] = "DELETING"
        users = attached.get((shown.get("zone", "").rsplit("/", 1)[-1], shown["name"]))
        if collection == "disks" and users:
            shown["users"] = users
        return shown

    def _details(self, kind: Kind, scope: Scope, body: Json) -> Json:
        if kind.collection == "disks":
            return self._disk(scope, body)
        if kind.collection == "addresses":
            return self._address(body)
        if kind.collection == "firewalls":
            return self._firewall(body)
        return self._copy_of_a_disk(kind, body)

    def _disk(self, scope: Scope, body: Json) -> Json:
        disk_type = str(body.get("type") or "pd-standard").rsplit("/", 1)[-1]
        if disk_type not in DISK_TYPES:
            raise invalid("resource.type", body.get("type"), "The referenced disk type cannot be found.")
        default, smallest, largest = DISK_TYPES[disk_type]
        size = int(body.get("sizeGb") or default)
        if not smallest <= size <= largest:
            text = f"Disk size must be between {smallest} GB and {largest} GB."
            raise invalid("resource.sizeGb", size, text)
        details: Json = {
            "sizeGb": str(size),
            "type": f"{self._base}/{scope}/diskTypes/{disk_type}",
            "status": "READY",
            "physicalBlockSizeBytes": "4096",
            "enableConfidentialCompute": False,
            "satisfiesPzi": True,
        }
        for key in ("sourceSnapshot", "sourceDisk", "provisionedIops", "provisionedThroughput"):
            if body.get(key):
                details[key] = str(body[key])
        return details

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
            path = f"projects/{self._project}/global/networks/{network}"
            raise ApiError(Code.NOT_FOUND, f"The resource '{path}' was not found")
        if not body.get("allowed"):
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

    def _copy_of_a_disk(self, kind: Kind, body: Json) -> Json:
        match = _SOURCE.fullmatch(str(body.get("sourceDisk") or ""))
        record = match and self._found.get(("disks", f"zones/{match.group(2)}", match.group(3)))
        if not record:
            given = body.get("sourceDisk") or ""
            raise invalid("resource.sourceDisk", given, "The referenced disk resource cannot be found.")
        source = record.data
        region = source["zone"].rsplit("/", 1)[-1].rsplit("-", 1)[0]
        return {
            "sourceDisk": source["selfLink"],
            "sourceDiskId": source["id"],
            "diskSizeGb": source["sizeGb"],
            "enableConfidentialCompute": False,
            "storageLocations": body.get("storageLocations")
            or [_MULTI_REGIONS.get(region.split("-")[0], region)],
            "status": "READY",
            **_STORED[kind.collection],
        }


def _check(kind: Kind, body: Json) -> str:
    """The name of what a body asks for. Raises ApiError for what is wrong or not simulated."""
    name = str(body.get("name") or "")
    if not _NAME.match(name):
        text = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        raise invalid("resource.name", name, text)
    check_labels(body.get("labels") or {})
    known = _INPUTS[kind.collection] | _OUTPUTS
    for field, value in body.items():
        if field not in known and value not in _DEFAULTS:
            raise ApiError(
                Code.FAILED_PRECONDITION,
                f"tpuctl's simulated cloud does not implement '{field}' of {kind.collection}; "
                "nothing was changed.",
            )
    return name


def invalid(field: str, value: object, why: str) -> ApiError:
    """Compute Engine's form of INVALID_ARGUMENT."""
    return ApiError(Code.INVALID_ARGUMENT, f"Invalid value for field '{field}': '{value}'. {why}")


def attached_disk(source: str) -> tuple[str, str] | None:
    """Zone and name of a disk's full path, as `dataDisks` of nodes have it."""
    match = _SOURCE.fullmatch(source)
    return (match.group(2), match.group(3)) if match else None


def target(project: str, kind: Kind, scope: Scope, name: str) -> ResourcePath:
    """What a call is about, for faults and the journal."""
    return ResourcePath(project, scope.location, kind.collection, name)
