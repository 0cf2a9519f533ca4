"""What a project holds besides TPUs, through Compute Engine v1 and the Cloud Storage JSON API. Reads only.

Lists go over all locations in one call where the API has an aggregated list. What such a list could not read,
it says in `unreachables` or as a warning of the scope; absence there proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from google.auth.credentials import Credentials
from msgspec.structs import replace

from tpuctl.cloud.disks import parse_disk
from tpuctl.cloud.rest import EVERYWHERE, RestClient, last_part
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


def _number(value: Any) -> int | None:
    return None if value in (None, "") else int(value)


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


_COLLECTIONS: Mapping[ResourceKind, tuple[str, Callable[[Data], CloudResource], str]] = {
    ResourceKind.DISK: ("disks", lambda item: parse_disk(item).resource, "aggregated"),
    ResourceKind.SNAPSHOT: ("snapshots", _parse_copy(ResourceKind.SNAPSHOT, "storageBytes"), "global"),
    ResourceKind.IMAGE: ("images", _parse_copy(ResourceKind.IMAGE, "archiveSizeBytes"), "global"),
    ResourceKind.ADDRESS: ("addresses", _parse_address, "aggregated"),
    ResourceKind.INSTANCE: ("instances", _parse_instance, "aggregated"),
}
"""Kind → collection, parser, and the list of all locations; some are in none."""
