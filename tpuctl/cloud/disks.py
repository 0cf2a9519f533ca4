"""Disks and snapshots of one project, through Compute Engine v1 (REST).

Changes are sent once, with a request id that makes a repetition of the same request harmless.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from google.auth.credentials import Credentials

from tpuctl.cloud import wire
from tpuctl.cloud.rest import EVERYWHERE, RestClient, last_part
from tpuctl.errors import NotFoundError
from tpuctl.model.cloud import Listing
from tpuctl.model.disks import ComputeOperation, DiskInfo, DiskRequest, SnapshotInfo

Data = Mapping[str, Any]
T = TypeVar("T")


class GoogleDisks:
    """Implements `ports.Disks`."""

    def __init__(self, project: str, endpoint: str, credentials: Credentials) -> None:
        self._project = project
        self._rest = RestClient(endpoint, credentials)

    def _path(self, zone: str, name: str) -> str:
        return f"/compute/v1/projects/{self._project}/zones/{quote(zone)}/disks/{quote(name)}"

    def _snapshot_path(self, name: str) -> str:
        return f"/compute/v1/projects/{self._project}/global/snapshots/{quote(name)}"

    def list_disks(self) -> Listing[DiskInfo]:
        path = f"/compute/v1/projects/{self._project}/aggregated/disks"
        return self._rest.listing(path, "disks", "list disks", parse_disk, EVERYWHERE)

    def find_disk(self, zone: str, name: str) -> DiskInfo | None:
        return self._find(self._path(zone, name), f"read disk {name} in {zone}", parse_disk)

    def find_snapshot(self, name: str) -> SnapshotInfo | None:
        return self._find(self._snapshot_path(name), f"read snapshot {name}", _snapshot)

    def list_snapshots(self) -> tuple[SnapshotInfo, ...]:
        path = f"/compute/v1/projects/{self._project}/global/snapshots"
        return self._rest.listing(path, "items", "list snapshots", _snapshot).items

    def create_disk(self, request: DiskRequest, key: str) -> ComputeOperation:
        base = f"projects/{self._project}/zones/{request.zone}"
        body: dict[str, Any] = {
            "name": request.name,
            "type": f"{base}/diskTypes/{request.type}",
            "sizeGb": str(request.size_gib),
            "labels": dict(request.labels),
        }
        if request.throughput_mib_s is not None:
            body["provisionedThroughput"] = str(request.throughput_mib_s)
        if request.access_mode:
            body["accessMode"] = request.access_mode
        if request.source_disk:
            body["sourceDisk"] = f"{base}/disks/{request.source_disk}"
        if request.source_snapshot:
            body["sourceSnapshot"] = f"projects/{self._project}/global/snapshots/{request.source_snapshot}"
        path = f"/compute/v1/{base}/disks?requestId={_request_id(key)}"
        return self._change("POST", path, f"create disk {request.name} in {request.zone}", body)

    def create_snapshot(
        self, zone: str, disk: str, name: str, labels: Mapping[str, str], key: str
    ) -> ComputeOperation:
        path = f"{self._path(zone, disk)}/createSnapshot?requestId={_request_id(key)}"
        body = {"name": name, "labels": dict(labels)}
        return self._change("POST", path, f"make snapshot {name} of disk {disk}", body)

    def resize_disk(self, zone: str, name: str, size_gib: int) -> ComputeOperation:
        path = f"{self._path(zone, name)}/resize"
        return self._change("POST", path, f"resize disk {name} in {zone}", {"sizeGb": str(size_gib)})

    def set_throughput(self, zone: str, name: str, mib_s: int) -> ComputeOperation:
        path = f"{self._path(zone, name)}?paths=provisionedThroughput"
        body = {"name": name, "provisionedThroughput": str(mib_s)}
        return self._change("PATCH", path, f"change the throughput of disk {name} in {zone}", body)

    def delete_disk(self, zone: str, name: str) -> ComputeOperation | None:
        return self._delete(self._path(zone, name), f"delete disk {name} in {zone}")

    def delete_snapshot(self, name: str) -> ComputeOperation | None:
        return self._delete(self._snapshot_path(name), f"delete snapshot {name}")

    def find_operation(self, operation: ComputeOperation) -> ComputeOperation | None:
        return self._find(operation.path, "read an operation of Compute Engine", _operation)

    def _find(self, path: str, what: str, parse: Callable[[wire.Json], T]) -> T | None:
        try:
            return parse(self._rest.get(path, what))
        except NotFoundError:
            return None

    def _change(self, method: str, path: str, what: str, body: Data | None = None) -> ComputeOperation:
        return _operation(self._rest.change(method, path, what, body))

    def _delete(self, path: str, what: str) -> ComputeOperation | None:
        try:
            return self._change("DELETE", path, what)
        except NotFoundError:
            return None


def _request_id(key: str) -> str:
    """The same for the same request, whoever repeats it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"tpuctl:{key}"))


def _optional(value: Any) -> int | None:
    return None if value in (None, "") else wire.integer(value, 0)


def parse_disk(found: wire.Json) -> DiskInfo:
    """A disk; one of a region has that for its zone."""
    return DiskInfo(
        name=wire.text(found.get("name")),
        zone=last_part(wire.text(found.get("zone") or found.get("region"))),
        uid=wire.text(found.get("id")),
        type=last_part(wire.text(found.get("type"))),
        size_gib=wire.integer(found.get("sizeGb"), 0),
        status=wire.text(found.get("status")),
        access_mode=wire.text(found.get("accessMode")),
        throughput_mib_s=_optional(found.get("provisionedThroughput")),
        iops=_optional(found.get("provisionedIops")),
        labels=wire.strings(found.get("labels")),
        users=tuple(last_part(each) for each in wire.texts(found.get("users"))),
        source_disk=last_part(wire.text(found.get("sourceDisk"))),
        source_snapshot=last_part(wire.text(found.get("sourceSnapshot"))),
        create_time=wire.text(found.get("creationTimestamp")),
    )


def _snapshot(found: wire.Json) -> SnapshotInfo:
    return SnapshotInfo(
        name=wire.text(found.get("name")),
        uid=wire.text(found.get("id")),
        status=wire.text(found.get("status")),
        disk_gib=wire.integer(found.get("diskSizeGb"), 0),
        stored_bytes=wire.integer(found.get("storageBytes"), 0),
        source_disk=last_part(wire.text(found.get("sourceDisk"))),
        source_uid=wire.text(found.get("sourceDiskId")),
        labels=wire.strings(found.get("labels")),
        create_time=wire.text(found.get("creationTimestamp")),
    )


def _operation(found: wire.Json) -> ComputeOperation:
    errors = wire.messages(wire.message(found.get("error")).get("errors"))
    first = errors[0] if errors else {}
    link = wire.text(found.get("selfLink"))
    return ComputeOperation(
        path="/compute/v1/" + link.partition("/compute/v1/")[2],
        done=found.get("status") == "DONE",
        error=wire.text(first.get("message")),
        code=wire.text(first.get("code")),
        progress=wire.integer(found.get("progress"), 0),
    )
