"""What a project holds besides TPUs, through Compute Engine v1 and the Cloud Storage JSON API. Reads only.

Lists go over all locations in one call where the API has an aggregated list. What such a list could not read,
it says in `unreachables` or as a warning of the scope; absence there proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from google.auth.credentials import Credentials
from msgspec.structs import replace

from tpuctl.cloud.rest import RestClient, last_part
from tpuctl.errors import DeniedError, InvalidRequestError, NotFoundError
from tpuctl.model.cloud import CloudResource, Listing, ResourceKind

GIB = 1 << 30
Data = Mapping[str, Any]


class GoogleInventory:
    """Implements `ports.Inventory`."""

    def __init__(
        self, project: str, endpoint_compute: str, endpoint_storage: str, credentials: Credentials
    ) -> None:
        self._project = project
        self._compute = RestClient(endpoint_compute, credentials)
        self._storage = RestClient(endpoint_storage, credentials)

    def list_assets(self, kind: ResourceKind) -> Listing[CloudResource]:
        if kind is ResourceKind.BUCKET:
            return Listing(tuple(self._buckets()))
        collection, parse, aggregated = _COLLECTIONS[kind]
        project = f"/compute/v1/projects/{self._project}"
        if aggregated:
            found = self._compute.aggregated(
                f"{project}/aggregated/{collection}", collection, f"list {collection} ({kind})"
            )
            return Listing(tuple(parse(item) for item in found.items), found.unreachable)
        pages = self._compute.pages(f"{project}/global/{collection}", f"list {collection}")
        return Listing(tuple(parse(item) for page in pages for item in page.get("items", ())))

    def _buckets(self) -> Iterator[CloudResource]:
        pages = self._storage.pages("/storage/v1/b", "list buckets", {"project": self._project})
        for page in pages:
            for item in page.get("items", ()):
                bucket = _parse_bucket(item)
                yield replace(bucket, **self._content(bucket.name))

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


def _number(value: Any) -> int | None:
    return None if value in (None, "") else int(value)


def _parse_disk(item: Data) -> CloudResource:
    return CloudResource(
        **_common(ResourceKind.DISK, item),
        type=last_part(str(item.get("type", ""))),
        size_gib=float(item["sizeGb"]) if "sizeGb" in item else None,
        used_by=tuple(last_part(str(user)) for user in item.get("users", ())),
        throughput_mib_s=_number(item.get("provisionedThroughput")),
        iops=_number(item.get("provisionedIops")),
    )


def _parse_copy(kind: ResourceKind, bytes_key: str) -> Callable[[Data], CloudResource]:
    """Snapshots and images are billed by what they store, not by the size of their disk."""

    def parse(item: Data) -> CloudResource:
        stored = _number(item.get(bytes_key))
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


_COLLECTIONS: Mapping[ResourceKind, tuple[str, Callable[[Data], CloudResource], bool]] = {
    ResourceKind.DISK: ("disks", _parse_disk, True),
    ResourceKind.SNAPSHOT: ("snapshots", _parse_copy(ResourceKind.SNAPSHOT, "storageBytes"), False),
    ResourceKind.IMAGE: ("images", _parse_copy(ResourceKind.IMAGE, "archiveSizeBytes"), False),
    ResourceKind.ADDRESS: ("addresses", _parse_address, True),
    ResourceKind.INSTANCE: ("instances", _parse_instance, True),
}
"""Kind → collection, parser, and whether there is a list over all locations; the others are global."""
