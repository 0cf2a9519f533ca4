"""Disks and snapshots of one project: read by REST, changed by google-cloud-compute's typed clients.

Changes are sent once; creates have a request id, which makes a repetition of the same request harmless.

Lists go over all locations in one call where the API has an aggregated list. What such a list could not read,
it says in `unreachables` or as a warning of the scope; absence there proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from google.auth.credentials import Credentials
from msgspec.structs import replace

from tpuctl.cloud import wire
from tpuctl.cloud.rest import EVERYWHERE, RestClient, last_part, request_id
from tpuctl.errors import DeniedError, InvalidRequestError, NotFoundError
from tpuctl.model.cloud import CloudResource, Listing, ResourceKind
from tpuctl.model.disks import ComputeOperation, DiskInfo, DiskRequest, SnapshotInfo

if TYPE_CHECKING:
    from tpuctl.cloud.compute_clients import ComputeClients


class GoogleDisks:
    """Implements `cloud_ports.Disks`."""

    def __init__(self, project: str, endpoint: str, credentials: Credentials) -> None:
        self._project = project
        self._endpoint = endpoint
        self._credentials = credentials
        self._rest = RestClient(endpoint, credentials)

    @cached_property
    def _clients(self) -> ComputeClients:
        from tpuctl.cloud.compute_clients import ComputeClients

        return ComputeClients(self._endpoint, self._credentials)

    def _path(self, zone: str, name: str) -> str:
        return f"/compute/v1/projects/{self._project}/zones/{quote(zone)}/disks/{quote(name)}"

    def _snapshot_path(self, name: str) -> str:
        return f"/compute/v1/projects/{self._project}/global/snapshots/{quote(name)}"

    def list_disks(self) -> Listing[DiskInfo]:
        path = f"/compute/v1/projects/{self._project}/aggregated/disks"
        return self._rest.listing(path, "disks", "list disks", parse_disk, EVERYWHERE)

    def find_disk(self, zone: str, name: str) -> DiskInfo | None:
        return self._rest.find(self._path(zone, name), f"read disk {name} in {zone}", parse_disk)

    def find_snapshot(self, name: str) -> SnapshotInfo | None:
        return self._rest.find(self._snapshot_path(name), f"read snapshot {name}", _snapshot)

    def list_snapshots(self) -> tuple[SnapshotInfo, ...]:
        path = f"/compute/v1/projects/{self._project}/global/snapshots"
        return self._rest.listing(path, "items", "list snapshots", _snapshot).items

    def create_disk(self, request: DiskRequest, key: str) -> ComputeOperation:
        v1, base = self._clients.v1, f"projects/{self._project}"
        disk = v1.Disk(
            name=request.name,
            type_=f"{base}/zones/{request.zone}/diskTypes/{request.type}",
            size_gb=request.size_gib,
            labels=dict(request.labels),
            provisioned_throughput=request.throughput_mib_s,
            access_mode=request.access_mode or None,
        )
        if request.source_disk:
            disk.source_disk = f"{base}/zones/{request.zone}/disks/{request.source_disk}"
        if request.source_snapshot:
            disk.source_snapshot = f"{base}/global/snapshots/{request.source_snapshot}"
        asked = v1.InsertDiskRequest(zone=request.zone, disk_resource=disk, request_id=request_id(key))
        return self._change("insert", asked, f"create disk {request.name} in {request.zone}")

    def create_snapshot(
        self, zone: str, disk: str, name: str, labels: Mapping[str, str], key: str
    ) -> ComputeOperation:
        v1 = self._clients.v1
        made = v1.Snapshot(name=name, labels=dict(labels))
        asked = v1.CreateSnapshotDiskRequest(
            zone=zone, disk=disk, snapshot_resource=made, request_id=request_id(key)
        )
        return self._change("create_snapshot", asked, f"make snapshot {name} of disk {disk}")

    def resize_disk(self, zone: str, name: str, size_gib: int) -> ComputeOperation:
        v1 = self._clients.v1
        size = v1.DisksResizeRequest(size_gb=size_gib)
        asked = v1.ResizeDiskRequest(zone=zone, disk=name, disks_resize_request_resource=size)
        return self._change("resize", asked, f"resize disk {name} in {zone}")

    def set_throughput(self, zone: str, name: str, mib_s: int) -> ComputeOperation:
        v1 = self._clients.v1
        disk = v1.Disk(name=name, provisioned_throughput=mib_s)
        asked = v1.UpdateDiskRequest(zone=zone, disk=name, disk_resource=disk, paths="provisionedThroughput")
        return self._change("update", asked, f"change the throughput of disk {name} in {zone}")

    def delete_disk(self, zone: str, name: str) -> ComputeOperation | None:
        asked = self._clients.v1.DeleteDiskRequest(zone=zone, disk=name)
        with suppress(NotFoundError):
            return self._change("delete", asked, f"delete disk {name} in {zone}")
        return None

    def delete_snapshot(self, name: str) -> ComputeOperation | None:
        asked = self._clients.v1.DeleteSnapshotRequest(snapshot=name)
        with suppress(NotFoundError):
            return self._change("delete", asked, f"delete snapshot {name}")
        return None

    def find_operation(self, operation: ComputeOperation) -> ComputeOperation | None:
        return self._rest.find(operation.path, "read an operation of Compute Engine", _operation)

    def _change(self, method: str, asked: Any, what: str) -> ComputeOperation:
        v1 = self._clients.v1
        asked.project = self._project
        service = v1.SnapshotsClient if isinstance(asked, v1.DeleteSnapshotRequest) else v1.DisksClient
        return _operation(self._clients.change(service, f"{method}_unary", asked, what))


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
    first = wire.first(wire.message(found.get("error")).get("errors"))
    link = wire.text(found.get("selfLink"))
    return ComputeOperation(
        path="/compute/v1/" + link.partition("/compute/v1/")[2],
        done=found.get("status") == "DONE",
        error=wire.text(first.get("message")),
        code=wire.text(first.get("code")),
        progress=wire.integer(found.get("progress"), 0),
    )


GIB = 1 << 30
Data = Mapping[str, Any]


class GoogleInventory:
    """Implements `cloud_ports.Inventory`."""

    def __init__(
        self, project: str, endpoint_compute: str, endpoint_storage: str, credentials: Credentials
    ) -> None:
        self._project = project
        self._compute = RestClient(endpoint_compute, credentials)
        self._storage = RestClient(endpoint_storage, credentials)

    def list_assets(self, kind: ResourceKind) -> Listing[CloudResource]:
        if kind is ResourceKind.BUCKET:
            project = {"project": self._project}
            found = self._storage.listing("/storage/v1/b", "items", "list buckets", _parse_bucket, project)
            return replace(
                found, items=tuple(replace(each, **self._content(each.name)) for each in found.items)
            )
        collection, parse, place = _COLLECTIONS[kind]
        path = f"/compute/v1/projects/{self._project}/{place}/{collection}"
        params = EVERYWHERE if place == "aggregated" else None
        return self._compute.listing(path, collection, f"list {collection}", parse, params)

    def _content(self, bucket: str) -> dict[str, Any]:
        """What one page of objects tells: whether a bucket is empty, and how large a small one is.

        A bucket that may not be looked into has no size.
        """
        path = f"/storage/v1/b/{quote(bucket, safe='')}/o"
        params = {"versions": "true", "maxResults": "1000", "fields": "items(size),nextPageToken"}
        try:
            page = self._storage.get(path, f"list objects of gs://{bucket}", params)
        except (DeniedError, InvalidRequestError, NotFoundError):
            return {"state": "not readable"}
        items, more = page.get("items", ()), bool(page.get("nextPageToken"))
        return {
            "state": "" if items or more else "empty",
            "size_gib": sum(int(item.get("size", 0)) for item in items) / GIB,
            "at_least": more,
        }


def _common(kind: ResourceKind, item: Data) -> dict[str, Any]:
    place = item.get("zone") or item.get("region") or "global"
    return {
        "kind": kind,
        "name": str(item["name"]),
        "location": last_part(str(place)),
        "state": str(item.get("status", "")),
        "labels": dict(item.get("labels", {})),
        "created": str(item.get("creationTimestamp", "")),
    }


def _parse_copy(kind: ResourceKind, bytes_key: str) -> Callable[[Data], CloudResource]:
    """Snapshots and images are billed by what they store, not by the size of their disk."""

    def parse(item: Data) -> CloudResource:
        stored = _optional(item.get(bytes_key))
        common = _common(kind, item)
        places = item.get("storageLocations") or [common["location"]]
        return CloudResource(
            **{**common, "location": str(places[0])}, size_gib=None if stored is None else stored / GIB
        )

    return parse


def _parse_bucket(item: Data) -> CloudResource:
    return CloudResource(
        kind=ResourceKind.BUCKET,
        name=str(item["name"]),
        location=str(item.get("location", "")).lower(),
        type=str(item.get("storageClass", "")),
        labels=dict(item.get("labels", {})),
        created=str(item.get("timeCreated", "")),
    )


def _parse_address(item: Data) -> CloudResource:
    return CloudResource(
        **_common(ResourceKind.ADDRESS, item),
        type=str(item.get("addressType", "")),
        used_by=tuple(last_part(str(user)) for user in item.get("users", ())),
    )


def _parse_instance(item: Data) -> CloudResource:
    return CloudResource(
        **_common(ResourceKind.INSTANCE, item), type=last_part(str(item.get("machineType", "")))
    )


_COLLECTIONS: Mapping[ResourceKind, tuple[str, Callable[[Data], CloudResource], str]] = {
    ResourceKind.DISK: ("disks", lambda item: parse_disk(item).resource, "aggregated"),
    ResourceKind.SNAPSHOT: ("snapshots", _parse_copy(ResourceKind.SNAPSHOT, "storageBytes"), "global"),
    ResourceKind.IMAGE: ("images", _parse_copy(ResourceKind.IMAGE, "archiveSizeBytes"), "global"),
    ResourceKind.ADDRESS: ("addresses", _parse_address, "aggregated"),
    ResourceKind.INSTANCE: ("instances", _parse_instance, "aggregated"),
}
"""Kind → collection, parser, and the list of all locations; some are in none."""
