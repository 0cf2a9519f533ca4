"""The quotas of the simulated project: set by key, enforced on every node, shown by the quota doors.

Keys are `ZONE` and `ZONE/GENERATION` (most chips), `METRIC` and `METRIC/REGION` for Compute Engine's quotas
that TPU hosts use up on the side. The real cloud's own accounting of the latter is not documented; users report
one address per worker with an external address, and two or more health checks per node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tpuctl.core.naming import region_of
from tpuctl.core.topology import AcceleratorType
from tpuctl.errors import UsageError
from tpuctl.sim.catalog import SimCatalog
from tpuctl.sim.kernel import Json, Kernel, Node
from tpuctl.sim.paths import ResourcePath
from tpuctl.sim.status import ApiError, Code

ADDRESSES = "IN_USE_ADDRESSES"
INSTANCES = "INSTANCES"
HEALTH_CHECKS = "HEALTH_CHECKS"
REGIONAL_METRICS = (ADDRESSES, INSTANCES)
PROJECT_METRICS = (HEALTH_CHECKS,)
PLENTY = 100_000
"""What a quota that nobody set allows: the simulated project has never run into one."""
HEALTH_CHECKS_PER_NODE = 2

TPU_QUOTA_NAMES: Mapping[str, str] = {
    "v2": "TPUV2s{}Pod",
    "v3": "TPUV3s{}Pod",
    "v4": "TPUV4s{}Pod",
    "v5e": "TPUV5s{}Litepod",
    "v5p": "TPUV5P{}",
    "v6e": "TPUV6E{}",
}


def check_keys(quotas: Mapping[str, int], catalog: SimCatalog) -> None:
    """Raises UsageError for a key that limits nothing, or a limit below zero."""
    zones = set(catalog.zones())
    regions = {region_of(zone) for zone in zones}
    for key, limit in quotas.items():
        place, _, rest = key.partition("/")
        chips = place in zones and rest in ("", *TPU_QUOTA_NAMES)
        regional = place in REGIONAL_METRICS and (rest == "" or rest in regions)
        if not (chips or regional or key in PROJECT_METRICS):
            raise UsageError(
                f"no quota called {key!r}",
                hint=f"ZONE, ZONE/GENERATION, {HEALTH_CHECKS}, {ADDRESSES} or {INSTANCES}[/REGION]",
            )
        if limit < 0:
            raise UsageError(f"quota {key}: {limit} is less than 0", hint=f"{key}=0")


def _lives(node: Node) -> bool:
    return node.state != "PREEMPTED"


def has_addresses(spec: Mapping[str, Any]) -> bool:
    """Whether a node's workers get external addresses."""
    return bool((spec.get("networkConfig") or {}).get("enableExternalIps"))


class Quotas:
    """Limits and use as they are now. Expects the world's lock to be held."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def limit(self, metric: str, region: str = "") -> int:
        limits = self._kernel.quotas
        return limits.get(f"{metric}/{region}", limits.get(metric, PLENTY))

    def usage(self, metric: str, region: str = "") -> int:
        nodes = [node for node in self._kernel.nodes.values() if _lives(node)]
        if metric == HEALTH_CHECKS:
            return HEALTH_CHECKS_PER_NODE * len(nodes)
        there = [node for node in nodes if region_of(node.path.zone) == region]
        if metric == ADDRESSES:
            there = [node for node in there if has_addresses(node.data)]
        return sum(node.offer.hosts for node in there)

    def check_side(self, path: ResourcePath, offer: AcceleratorType, spec: Json) -> None:
        """Refuses a node for which Compute Engine's quotas leave no room."""
        region = region_of(path.zone)
        need = {INSTANCES: offer.hosts, ADDRESSES: offer.hosts if has_addresses(spec) else 0}
        for metric, count in need.items():
            limit = self.limit(metric, region)
            if count and self.usage(metric, region) + count > limit:
                text = f"Quota '{metric}' exceeded.  Limit: {limit}.0 in region {region}."
                raise ApiError(Code.RESOURCE_EXHAUSTED, text)
        if self.usage(HEALTH_CHECKS) + HEALTH_CHECKS_PER_NODE > self.limit(HEALTH_CHECKS):
            raise ApiError(Code.RESOURCE_EXHAUSTED, "You have reached HEALTH_CHECKS limit")

    # What the doors show.

    def of_region(self, region: str) -> list[Json]:
        """Compute Engine's `quotas` of a region."""
        return [self._shown(metric, region) for metric in REGIONAL_METRICS]

    def of_project(self) -> list[Json]:
        """Compute Engine's `quotas` of the project."""
        return [self._shown(metric, "") for metric in PROJECT_METRICS]

    def _shown(self, metric: str, region: str) -> Json:
        limit, usage = self.limit(metric, region), self.usage(metric, region)
        return {"metric": metric, "limit": float(limit), "usage": float(usage)}

    def tpu_infos(self) -> list[Json]:
        """The quotaInfos of the Cloud Quotas API for the TPU API: per generation and tier, by zone."""
        return [
            self._tpu_info(generation, preemptible)
            for generation in TPU_QUOTA_NAMES
            for preemptible in (False, True)
        ]

    def _tpu_info(self, generation: str, preemptible: bool) -> Json:
        catalog = self._kernel.catalog
        offers = {zone: _offer_of(catalog, zone, generation) for zone in catalog.zones()}
        zones = [zone for zone, offer in offers.items() if offer is not None]
        name = TPU_QUOTA_NAMES[generation].format("Preemptible" if preemptible else "")
        quota_id = f"{name}PerProjectPerZoneForTPUAPI"
        parent = f"projects/{self._kernel.project}/locations/global/services/tpu.googleapis.com"
        infos: list[Json] = []
        for zone in zones:
            limit = self._chips(zone, generation)
            offer = offers[zone]
            if limit is not None and offer is not None:
                value = limit * (offer.cores_per_chip if offer.quota_unit == "tensorcores" else 1)
                infos.append(_dimension({"zone": zone}, value, [zone]))
        special = {info["dimensions"]["zone"] for info in infos}
        infos.append(_dimension({}, PLENTY, [zone for zone in zones if zone not in special]))
        return {
            "name": f"{parent}/quotaInfos/{quota_id}",
            "quotaId": quota_id,
            "metric": f"tpu.googleapis.com/{_kebab(name)}",
            "service": "tpu.googleapis.com",
            "isPrecise": True,
            "containerType": "PROJECT",
            "dimensions": ["zone"],
            "metricUnit": "1",
            "dimensionsInfos": infos,
        }

    def _chips(self, zone: str, generation: str) -> int | None:
        limits = self._kernel.quotas
        found = [limits[key] for key in (zone, f"{zone}/{generation}") if key in limits]
        return min(found) if found else None


def _offer_of(catalog: SimCatalog, zone: str, generation: str) -> AcceleratorType | None:
    return next((offer for offer in catalog.in_zone(zone) if offer.generation == generation), None)


def _dimension(dimensions: Mapping[str, str], value: int, locations: list[str]) -> Json:
    shown: Json = {"details": {"value": str(value)}, "applicableLocations": locations}
    return {"dimensions": dict(dimensions), **shown} if dimensions else shown


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
