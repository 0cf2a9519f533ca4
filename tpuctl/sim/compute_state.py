"""Disks, snapshots, images and addresses of the simulated project: what exists, and how calls change it.

Boot disks of TPU VMs are not here: they belong to the TPU service's own project, as in the real cloud.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpuctl.sim.clock import rfc3339
from tpuctl.sim.ids import Ids
from tpuctl.sim.kernel import Json
from tpuctl.sim.paths import ResourcePath, check_id, check_labels
from tpuctl.sim.status import ApiError, Code

ROOT = "https://www.googleapis.com/compute/v1"
GLOBAL = "global"
_SOURCE = re.compile(r"(?:https?://[^/]+/compute/v1/)?projects/([^/]+)/zones/([^/]+)/disks/([^/]+)")


@dataclass(frozen=True)
class Kind:
    """A collection of the API: where its resources live, and what `kind` they say they are."""

    collection: str
    singular: str
    scopes: tuple[str, ...]


KINDS: Mapping[str, Kind] = {
    kind.collection: kind
    for kind in (
        Kind("disks", "disk", ("zones",)),
        Kind("instances", "instance", ("zones",)),
        Kind("addresses", "address", ("regions", GLOBAL)),
        Kind("snapshots", "snapshot", (GLOBAL,)),
        Kind("images", "image", (GLOBAL,)),
    )
}


@dataclass(frozen=True)
class Scope:
    """`zones/us-central2-b`, `regions/us-central2` or `global`."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.name else self.kind

    @property
    def location(self) -> str:
        return self.name or self.kind


class ComputeState:
    """Thread-safe. `attached` says which disks (`zone`, `name`) the hosts of nodes use, and as what."""

    def __init__(
        self,
        project: str,
        now: Callable[[], float],
        attached: Callable[[], Mapping[tuple[str, str], list[str]]],
    ) -> None:
        self._project = project
        self._now = now
        self._attached = attached
        self._ids = Ids(2)
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str, str], Json] = {}
        """(collection, scope, name) → the resource."""
        self._operations: dict[str, Json] = {}
        self._next_address = 1

    def reset(self) -> None:
        with self._lock:
            self._found.clear()
            self._operations.clear()

    def url(self, scope: Scope, collection: str, name: str) -> str:
        return f"{ROOT}/projects/{self._project}/{scope}/{collection}/{name}"

    def list_all(self, kind: Kind) -> list[tuple[str, str, Json]]:
        """(scope, name, resource) of a collection, everywhere."""
        attached = self._attached()
        with self._lock:
            return [
                (scope, name, _shown(data, attached))
                for (collection, scope, name), data in self._found.items()
                if collection == kind.collection
            ]

    def get(self, kind: Kind, scope: Scope, name: str) -> Json:
        attached = self._attached()
        with self._lock:
            return _shown(self._need(kind, scope, name), attached)

    def operation(self, name: str) -> Json:
        """Operations are done when they are answered: nothing in here takes time."""
        with self._lock:
            if name not in self._operations:
                raise ApiError(Code.NOT_FOUND, f"The resource 'operations/{name}' was not found")
            return self._operations[name]

    def insert(self, kind: Kind, scope: Scope, body: Json) -> Json:
        """Makes a resource; the operation."""
        name = str(body.get("name") or "")
        check_id(kind.singular, name)
        check_labels({str(key): str(value) for key, value in (body.get("labels") or {}).items()})
        with self._lock:
            if (kind.collection, str(scope), name) in self._found:
                path = f"projects/{self._project}/{scope}/{kind.collection}/{name}"
                raise ApiError(Code.ALREADY_EXISTS, f"The resource '{path}' already exists")
            data = {
                "kind": f"compute#{kind.singular}",
                "id": self._ids.node_id(),
                "creationTimestamp": rfc3339(self._now()),
                "name": name,
                "selfLink": self.url(scope, kind.collection, name),
                **({"labels": body["labels"], "labelFingerprint": "AAAA"} if body.get("labels") else {}),
                **_place(self._project, scope),
                **self._details(kind, scope, body),
            }
            self._found[kind.collection, str(scope), name] = data
            return self._done("insert", scope, data)

    def delete(self, kind: Kind, scope: Scope, name: str) -> Json:
        attached = self._attached()
        with self._lock:
            data = self._need(kind, scope, name)
            users = _shown(data, attached).get("users")
            if users:
                text = f"The disk resource '{data['selfLink']}' is already being used by '{users[0]}'"
                raise ApiError(Code.INVALID_ARGUMENT, text, [{"reason": "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"}])
            del self._found[kind.collection, str(scope), name]
            return self._done("delete", scope, data)

    def _need(self, kind: Kind, scope: Scope, name: str) -> Json:
        found = self._found.get((kind.collection, str(scope), name))
        if found is None:
            path = f"projects/{self._project}/{scope}/{kind.collection}/{name}"
            raise ApiError(Code.NOT_FOUND, f"The resource '{path}' was not found")
        return found

    def _details(self, kind: Kind, scope: Scope, body: Json) -> Json:
        if kind.collection == "disks":
            return self._disk(scope, body)
        if kind.collection == "addresses":
            return self._address(body)
        return self._copy_of_a_disk(body)

    def _disk(self, scope: Scope, body: Json) -> Json:
        disk_type = str(body.get("type") or "pd-standard").rsplit("/", 1)[-1]
        size = int(body.get("sizeGb") or 500)
        details: Json = {
            "sizeGb": str(size),
            "type": f"{ROOT}/projects/{self._project}/{scope}/diskTypes/{disk_type}",
            "status": "READY",
            "physicalBlockSizeBytes": "4096",
        }
        for key in ("sourceSnapshot", "sourceDisk", "provisionedIops", "provisionedThroughput"):
            if body.get(key):
                details[key] = str(body[key])
        return details

    def _address(self, body: Json) -> Json:
        number = self._next_address
        self._next_address += 1
        return {
            "address": str(body.get("address") or f"198.51.100.{number % 254 + 1}"),
            "addressType": str(body.get("addressType") or "EXTERNAL"),
            "networkTier": "PREMIUM",
            "ipVersion": "IPV4",
            "status": "RESERVED",
        }

    def _copy_of_a_disk(self, body: Json) -> Json:
        match = _SOURCE.fullmatch(str(body.get("sourceDisk") or ""))
        source = match and self._found.get(("disks", f"zones/{match.group(2)}", match.group(3)))
        if not source:
            raise ApiError(Code.INVALID_ARGUMENT, f"Invalid source disk '{body.get('sourceDisk')}'.")
        region = source["zone"].rsplit("/", 1)[-1].rsplit("-", 1)[0]
        return {
            "sourceDisk": source["selfLink"],
            "sourceDiskId": source["id"],
            "diskSizeGb": source["sizeGb"],
            "storageBytes": "0",
            "storageBytesStatus": "UP_TO_DATE",
            "storageLocations": body.get("storageLocations") or [region],
            "status": "READY",
        }

    def _done(self, verb: str, scope: Scope, data: Json) -> Json:
        name = self._ids.operation_id(self._now())
        stamp = rfc3339(self._now())
        operation = {
            "kind": "compute#operation",
            "id": self._ids.node_id(),
            "name": name,
            "operationType": verb,
            "targetLink": data["selfLink"],
            "targetId": data["id"],
            "status": "DONE",
            "progress": 100,
            "insertTime": stamp,
            "startTime": stamp,
            "endTime": stamp,
            "selfLink": self.url(scope, "operations", name),
            **_place(self._project, scope),
        }
        self._operations[name] = operation
        return operation


def _shown(data: Json, attached: Mapping[tuple[str, str], list[str]]) -> Json:
    """A resource as the API shows it: disks with the machines that use them."""
    shown = copy.deepcopy(data)
    if data["kind"] == "compute#disk":
        users = attached.get((data["zone"].rsplit("/", 1)[-1], data["name"]))
        if users:
            shown["users"] = users
    return shown


def attached_disk(source: str) -> tuple[str, str] | None:
    """Zone and name of a disk's full path, as `dataDisks` of nodes have it."""
    match = _SOURCE.fullmatch(source)
    return (match.group(2), match.group(3)) if match else None


def target(project: str, kind: Kind, scope: Scope, name: str) -> ResourcePath:
    """What a call is about, for faults and the journal."""
    return ResourcePath(project, scope.location, kind.collection, name)


def _place(project: str, scope: Scope) -> Json:
    """`zone` or `region` as the API shows it; nothing for global resources."""
    if not scope.name:
        return {}
    return {scope.kind.removesuffix("s"): f"{ROOT}/projects/{project}/{scope}"}
