"""What the TPU API says about itself: locations, accelerator types, runtime versions, reservations."""

from __future__ import annotations

from tpuctl.model.accelerators import AcceleratorType
from tpuctl.sim.wire.status import Json, not_found
from tpuctl.sim.world.iam import PROJECT_NUMBER
from tpuctl.sim.world.listing import list_resources, page_of
from tpuctl.sim.world.paths import ResourcePath, parse_path
from tpuctl.sim.world.reservations import chips_used
from tpuctl.sim.world.state import Kernel, Reservation


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

    def _types(self) -> list[tuple[ResourcePath, Json]]:
        kernel = self._kernel
        return [
            (path, _show_type(path, offer))
            for zone in kernel.catalog.zones()
            for offer in kernel.catalog.in_zone(zone)
            for path in [ResourcePath(kernel.project, zone, "acceleratorTypes", offer.name)]
        ]

    def list_accelerator_types(self, request: Json) -> Json:
        return list_resources(self._kernel, request, "acceleratorTypes", self._types())

    def get_accelerator_type(self, request: Json) -> Json:
        return self._get(request["name"], self._types())

    def _versions(self) -> list[tuple[ResourcePath, Json]]:
        kernel = self._kernel
        return [
            (path, {"name": path.name, "version": version})
            for zone in kernel.catalog.zones()
            for version in kernel.catalog.runtime_versions(zone)
            for path in [ResourcePath(kernel.project, zone, "runtimeVersions", version)]
        ]

    def list_runtime_versions(self, request: Json) -> Json:
        return list_resources(self._kernel, request, "runtimeVersions", self._versions())

    def get_runtime_version(self, request: Json) -> Json:
        return self._get(request["name"], self._versions())

    def _tensorflow_versions(self) -> list[tuple[ResourcePath, Json]]:
        """Version 1 calls the same software by another name."""
        return [
            (path, {"name": path.name, "version": data["version"]})
            for found, data in self._versions()
            for path in [ResourcePath(found.project, found.zone, "tensorflowVersions", found.id)]
        ]

    def list_tensorflow_versions(self, request: Json) -> Json:
        return list_resources(self._kernel, request, "tensorflowVersions", self._tensorflow_versions())

    def get_tensorflow_version(self, request: Json) -> Json:
        return self._get(request["name"], self._tensorflow_versions())

    def list_reservations(self, request: Json) -> Json:
        kernel = self._kernel
        found = [
            (path, _show_reservation(path, each, chips_used(kernel, each)))
            for each in kernel.reservations.values()
            for path in [ResourcePath(kernel.project, each.zone, "reservations", each.name)]
        ]
        return list_resources(kernel, request, "reservations", found)

    def service_identity(self, request: Json) -> Json:
        self._kernel.check_zone(parse_path(request["parent"]))
        # https://cloud.google.com/iam/docs/service-agents
        return {"identity": {"email": f"service-{PROJECT_NUMBER}@cloud-tpu.iam.gserviceaccount.com"}}

    def _get(self, name: str, found: list[tuple[ResourcePath, Json]]) -> Json:
        self._kernel.check_zone(parse_path(name))
        for path, data in found:
            if path.name == name:
                return data
        raise not_found(name)


def _show_reservation(path: ResourcePath, reservation: Reservation, used: int) -> Json:
    return {
        "name": path.name,
        "state": "ACTIVE",
        "standard": {
            "size": reservation.chips,
            "capacityUnits": "CHIPS",
            "resourceType": reservation.generation.upper(),
            "usage": {"total": str(used)},
        },
    }


def _show_type(path: ResourcePath, offer: AcceleratorType) -> Json:
    config = {"type": offer.config_type, "topology": offer.topology}
    return {"name": path.name, "type": offer.name, "acceleratorConfigs": [config]}
