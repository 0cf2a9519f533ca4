"""What the TPU API says about itself: locations, accelerator types, runtime versions, reservations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tpuctl.sim.wire.status import Json, not_found
from tpuctl.sim.world.iam import PROJECT_NUMBER
from tpuctl.sim.world.listing import list_resources, page_of
from tpuctl.sim.world.paths import ResourcePath, parse_path
from tpuctl.sim.world.reservations import chips_used
from tpuctl.sim.world.state import Kernel


class Inventory:
    """Reads only."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def _location(self, zone: str) -> Json:
        path = ResourcePath(self._kernel.project, zone)
        return {"name": path.location, "locationId": zone, "labels": {"cloud.googleapis.com/zone": zone}}

    def list_locations(self, request: Json) -> Json:
        project = request["name"].removeprefix("projects/")
        zones = self._kernel.catalog.zones()
        self._kernel.check_zone(ResourcePath(project, zones[0]))
        rows = [(zone, self._location(zone)) for zone in zones]
        return page_of(rows, request, "locations")

    def get_location(self, request: Json) -> Json:
        path = parse_path(request["name"])
        self._kernel.check_zone(path)
        return self._location(path.zone)

    def list(self, collection: str) -> Callable[[Json], Json]:
        """What answers a list call of a collection."""
        return lambda request: list_resources(self._kernel, request, collection, self._rows(collection))

    def get(self, collection: str) -> Callable[[Json], Json]:
        """What answers a get call of a collection."""

        def get(request: Json) -> Json:
            self._kernel.check_zone(parse_path(request["name"]))
            found = [data for path, data in self._rows(collection) if path.name == request["name"]]
            if not found:
                raise not_found(request["name"])
            return found[0]

        return get

    def _rows(self, collection: str) -> Sequence[tuple[ResourcePath, Json]]:
        return [
            (path, {"name": path.name, **data})
            for zone in self._kernel.catalog.zones()
            for id, data in COLLECTIONS[collection](self._kernel, zone)
            for path in [ResourcePath(self._kernel.project, zone, collection, id)]
        ]

    def service_identity(self, request: Json) -> Json:
        self._kernel.check_zone(parse_path(request["parent"]))
        # https://cloud.google.com/iam/docs/service-agents
        return {"identity": {"email": f"service-{PROJECT_NUMBER}@cloud-tpu.iam.gserviceaccount.com"}}


Rows = Iterator[tuple[str, Json]]
"""Id and what is shown besides the name."""


def _types(kernel: Kernel, zone: str) -> Rows:
    for offer in kernel.catalog.in_zone(zone):
        config = {"type": offer.config_type or "TYPE_UNSPECIFIED", "topology": offer.topology}
        yield offer.name, {"type": offer.name, "acceleratorConfigs": [config]}


def _versions(kernel: Kernel, zone: str) -> Rows:
    for version in kernel.catalog.runtime_versions(zone):
        yield version, {"version": version}


def _reservations(kernel: Kernel, zone: str) -> Rows:
    for each in kernel.reservations.values():
        if each.zone == zone:
            standard = {
                "size": each.chips,
                "capacityUnits": "CHIPS",
                "resourceType": each.generation.upper(),
                "usage": {"total": str(chips_used(kernel, each))},
            }
            yield each.name, {"state": "ACTIVE", "standard": standard}


COLLECTIONS: Mapping[str, Callable[[Kernel, str], Rows]] = {
    "acceleratorTypes": _types,
    "reservations": _reservations,
    "runtimeVersions": _versions,
    "tensorflowVersions": _versions,  # version 1 calls the same software by another name
}
