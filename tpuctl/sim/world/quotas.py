"""The quotas of the simulated project: set by key, enforced on every node, shown by the quota APIs.

Keys are `ZONE` and `ZONE/GENERATION`, `REGION` and `REGION/GENERATION` (most chips), with `:serving` after v5e
for its slices of up to eight chips (without such a key they count with the rest), `METRIC` and `METRIC/REGION`
for Compute Engine's quotas that TPU hosts use up on the side, `TPUS_PER_TPU_FAMILY/REGION/FAMILY` and
`PREEMPTIBLE_TPU_GENERATION/ZONE` for chips of its own machines. What hosts use up besides is not documented;
users report one address per worker with an external address, and two or more health checks per node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import UsageError
from tpuctl.lib.names import region_of
from tpuctl.model.accelerators import AcceleratorType
from tpuctl.sim.wire.status import ApiError, Code, Json
from tpuctl.sim.world.catalog import DISK_TYPES, SimCatalog
from tpuctl.sim.world.iam import COMPUTE, PROJECT_NUMBER, TPU
from tpuctl.sim.world.paths import ResourcePath
from tpuctl.sim.world.state import Kernel, Node

ADDRESSES = "IN_USE_ADDRESSES"
INSTANCES = "INSTANCES"
HEALTH_CHECKS = "HEALTH_CHECKS"
SNAPSHOTS = "SNAPSHOTS"
DISK_METRICS = {name: each.quota for name, each in DISK_TYPES.items() if each.quota}
"""Disk type → the regional quota of its GB."""
COMPUTE_QUOTA_IDS: Mapping[str, str] = {
    "IN-USE-ADDRESSES-per-project-region": ADDRESSES,
    "INSTANCES-per-project-region": INSTANCES,
    "HEALTH-CHECKS-per-project": HEALTH_CHECKS,
}
"""What the Cloud Quotas API calls them."""
REGIONAL_METRICS = (ADDRESSES, INSTANCES)
PROJECT_METRICS = (HEALTH_CHECKS,)
PLENTY = 100_000
"""What a quota that nobody set allows: the simulated project has never run into one."""
NO_LIMIT = -1
"""What users read of preemptible chips in all zones for which nobody asked."""
HEALTH_CHECKS_PER_NODE = 2

TPU_QUOTA_NAMES: Mapping[str, str] = {
    "v2": "TPUV2s{}Pod",
    "v3": "TPUV3s{}Pod",
    "v4": "TPUV4s{}Pod",
    "v5e": "TPUV5s{}Litepod",
    "v5p": "TPUV5P{}",
    "v6e": "TPUV6E{}",
}

TPU_FAMILY_METRIC = "TPUS_PER_TPU_FAMILY"
TPU_FAMILIES: Mapping[str, str] = {"v5p": "CT5P", "v6e": "CT6E", "tpu7x": "TPU7X"}
"""Generations that Compute Engine has machines of, and what it calls their families."""


def preemptible_metric(generation: str) -> str:
    """Compute Engine's quota of preemptible chips in a zone: `PREEMPTIBLE_TPU_V6E`."""
    return f"PREEMPTIBLE_TPU_{generation.upper()}"


SERVING = "Serving"
_SMALL: Mapping[str, tuple[int, str]] = {
    "v2": (4, "TPUV2s{}"),
    "v3": (4, "TPUV3s{}"),
    "v5e": (8, "TPUV5s{}LitepodServing"),
}
"""Up to so many chips draw on a quota of their own: single devices of v2 and v3, and up to eight chips of v5e,
where a user's v5litepod-8 was refused (https://cloud.google.com/tpu/docs/quota)."""


def quota_id(generation: str, chips: int, kind: str, *, preemptible: bool) -> str:
    """The quota that so many chips of a generation draw on; `kind` is zone or region."""
    most, small = _SMALL.get(generation, (0, ""))
    name = (small if chips <= most else TPU_QUOTA_NAMES[generation]).format(
        "Preemptible" if preemptible else ""
    )
    return f"{name}PerProjectPer{kind.capitalize()}ForTPUAPI"


@dataclass(frozen=True)
class TpuQuotaId:
    """What the id of a TPU quota says. `chips` is a size of slice that draws on it, `kind` zone or region."""

    generation: str
    chips: int
    kind: str
    preemptible: bool

    @property
    def id(self) -> str:
        return quota_id(self.generation, self.chips, self.kind, preemptible=self.preemptible)


def _tpu_quotas() -> Iterator[TpuQuotaId]:
    for generation in TPU_QUOTA_NAMES:
        for preemptible in (False, True):
            for kind in ("zone", "region"):
                for chips in (1, PLENTY) if generation in _SMALL else (PLENTY,):
                    yield TpuQuotaId(generation, chips, kind, preemptible)


def tpu_quota_of(id: str) -> TpuQuotaId | None:
    return next((each for each in _tpu_quotas() if each.id == id), None)


def keys_of_tpu_quota(set_now: Mapping[str, int], quota: TpuQuotaId, place: str) -> list[str]:
    """The keys of the limits that hold back what draws on a quota in a place: its own, and the one of all
    chips there, if that is set."""
    serving = quota.chips != PLENTY and SERVING in _SMALL[quota.generation][1]
    own = serving_key(place, quota.generation) if serving else f"{place}/{quota.generation}"
    return [own, *([place] if place in set_now else [])]


def serves(offer: AcceleratorType) -> bool:
    """Whether slices of this type draw on the serving quota."""
    most, small = _SMALL.get(offer.generation, (0, ""))
    return offer.chips <= most and SERVING in small


def serving_key(place: str, generation: str) -> str:
    return f"{place}/{generation}:serving"


def quota_units(offer: AcceleratorType, chips: int) -> int:
    """So many chips in the unit of their quota, in which the service counts and speaks."""
    return chips * (offer.cores_per_chip if offer.quota_unit == "tensorcores" else 1)


def check_keys(quotas: Mapping[str, int], catalog: SimCatalog) -> None:
    """Raises UsageError for a key that limits nothing, or a limit below zero."""
    zones = set(catalog.zones())
    regions = {region_of(zone) for zone in zones}
    for key, limit in quotas.items():
        place, _, rest = key.partition("/")
        chips = place in zones | regions and rest in ("", *TPU_QUOTA_NAMES, "v5e:serving")
        disks = tuple(dict.fromkeys(DISK_METRICS.values()))
        regional = place in (*REGIONAL_METRICS, *disks) and (rest == "" or rest in regions)
        if not (chips or regional or key in (*PROJECT_METRICS, SNAPSHOTS) or _of_machines(key, zones)):
            named = f"{HEALTH_CHECKS}, {SNAPSHOTS}, and with or without /REGION {ADDRESSES}, {INSTANCES}"
            raise UsageError(
                f"no quota called {key!r}",
                hint=f"ZONE or REGION[/GENERATION], …/v5e:serving, {named}, {', '.join(disks)}, "
                f"{TPU_FAMILY_METRIC}/REGION/CT6E, {preemptible_metric('v6e')}/ZONE",
            )
        if limit < 0:
            raise UsageError(f"quota {key}: {limit} is less than 0", hint=f"{key}=0")


def _of_machines(key: str, zones: set[str]) -> bool:
    """`TPUS_PER_TPU_FAMILY/REGION/FAMILY` or `PREEMPTIBLE_TPU_GENERATION/ZONE`, of Compute Engine's chips."""
    metric, _, place = key.partition("/")
    if metric == TPU_FAMILY_METRIC:
        region, _, family = place.partition("/")
        return region in {region_of(zone) for zone in zones} and family in TPU_FAMILIES.values()
    return metric in map(preemptible_metric, TPU_FAMILIES) and place in zones


def _lives(node: Node) -> bool:
    return node.state != "PREEMPTED"


def has_addresses(spec: Mapping[str, Any]) -> bool:
    """Whether a node's workers get external addresses."""
    return bool((spec.get("networkConfig") or {}).get("enableExternalIps"))


def exceeded(metric: str, limit: int, where: str, *details: Json) -> ApiError:
    """How Compute Engine says it."""
    text = f"Quota '{metric}' exceeded.  Limit: {limit}.0 {where}."
    return ApiError(Code.RESOURCE_EXHAUSTED, text, details)


class Quotas:
    """Limits and use as they are now. Expects the world's lock to be held."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def limit(self, metric: str, region: str = "") -> int:
        limits = self._kernel.quotas
        return limits.get(f"{metric}/{region}", limits.get(metric, PLENTY))

    def usage(self, metric: str, region: str = "") -> int:
        """Of what nodes take; that of disks and snapshots is for who keeps them."""
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
                raise exceeded(metric, limit, f"in region {region}")
        if self.usage(HEALTH_CHECKS) + HEALTH_CHECKS_PER_NODE > self.limit(HEALTH_CHECKS):
            raise ApiError(Code.RESOURCE_EXHAUSTED, "You have reached HEALTH_CHECKS limit")

    # What the APIs show.

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
        """The quotaInfos of the Cloud Quotas API for the TPU API: per generation and tier, by zone; by
        region, and for single devices of v2 and v3, only where a limit is set."""
        return [
            self._tpu_info(quota)
            for quota in _tpu_quotas()
            if (quota.kind == "zone" and (quota.chips == PLENTY or SERVING in _SMALL[quota.generation][1]))
            or self._limits(quota.generation, quota.kind, quota.chips)
        ]

    def places(self, quota: TpuQuotaId) -> dict[str, int]:
        """Where a TPU quota is, each with how many of its units a chip is."""
        return {
            place: quota_units(offer, 1) for place, offer in self._offers(quota.generation, quota.kind).items()
        }

    def _limits(self, generation: str, kind: str, size: int) -> dict[str, int]:
        """The limits for slices of so many chips that are set, in the unit of the quota, by zone or region."""
        found: dict[str, int] = {}
        for place, offer in self._offers(generation, kind).items():
            chips = self._chips(place, generation, size)
            if chips is not None:
                found[place] = quota_units(offer, chips)
        return found

    def _offers(self, generation: str, kind: str) -> dict[str, AcceleratorType]:
        """Where there is such an accelerator, and one of them."""
        catalog = self._kernel.catalog
        found = {zone: _offer_of(catalog, zone, generation) for zone in catalog.zones()}
        return {region_of(zone) if kind == "region" else zone: each for zone, each in found.items() if each}

    def _tpu_info(self, quota: TpuQuotaId) -> Json:
        id, generation, kind = quota.id, quota.generation, quota.kind
        limits = self._limits(generation, kind, quota.chips)
        rest = [place for place in self._offers(generation, kind) if place not in limits]
        return _quota_info(
            f"{TPU}/{_kebab(id.partition('PerProject')[0])}",
            id,
            f"{'Preemptible ' if quota.preemptible else ''}TPU {generation} cores",
            (kind,),
            [
                *(_dimension({kind: place}, limit, [place]) for place, limit in limits.items()),
                _dimension({}, PLENTY, rest),
            ],
        )

    def machine_infos(self) -> list[Json]:
        """The quotaInfos of Compute Engine's own chips: of families by region, of preemptible ones by zone."""
        limits = self._kernel.quotas
        families = []
        infos = []
        for generation, family in TPU_FAMILIES.items():
            regions = {
                place: {"region": place, "tpu_family": family} for place in self._offers(generation, "region")
            }
            families += _dimensions(
                limits, regions, f"{TPU_FAMILY_METRIC}/{{}}/{family}", {"tpu_family": family}
            )
            metric = preemptible_metric(generation)
            zones = {place: {"zone": place} for place in self._offers(generation, "zone")}
            rows = _dimensions(limits, zones, f"{metric}/{{}}", {}, NO_LIMIT)
            infos.append(_machine_info(metric, f"Preemptible TPU {generation} chips", ("zone",), rows))
        kinds = ("region", "tpu_family")
        return [_machine_info(TPU_FAMILY_METRIC, "TPUs per TPU family", kinds, families), *infos]

    def keys_of_machines(self, id: str, dimensions: Mapping[str, str]) -> list[str] | None:
        """The keys of the limits of Compute Engine's own chips that a request means, of all places where it
        names none; empty where it means none that there is. None for another quota."""
        for generation, family in TPU_FAMILIES.items():
            metric = preemptible_metric(generation)
            if id == machine_quota_id(metric, "zone"):
                return self._keys_in(generation, "zone", dimensions, f"{metric}/{{}}")
            if id == machine_quota_id(TPU_FAMILY_METRIC, "region") and dimensions.get("tpu_family") == family:
                place = {key: value for key, value in dimensions.items() if key != "tpu_family"}
                return self._keys_in(generation, "region", place, f"{TPU_FAMILY_METRIC}/{{}}/{family}")
        return [] if id == machine_quota_id(TPU_FAMILY_METRIC, "region") else None

    def _keys_in(self, generation: str, kind: str, dimensions: Mapping[str, str], key: str) -> list[str]:
        places = self._offers(generation, kind)
        asked = [dimensions[kind]] if kind in dimensions else list(places)
        known = not set(dimensions) - {kind} and set(asked) <= places.keys()
        return [key.format(place) for place in asked] if known else []

    def _chips(self, zone: str, generation: str, size: int) -> int | None:
        limits, serving = self._kernel.quotas, serving_key(zone, generation)
        if serving in limits and size <= _SMALL[generation][0]:
            return limits[serving]
        found = [limits[key] for key in (zone, f"{zone}/{generation}") if key in limits]
        return min(found) if found else None


def _offer_of(catalog: SimCatalog, zone: str, generation: str) -> AcceleratorType | None:
    return next((offer for offer in catalog.in_zone(zone) if offer.generation == generation), None)


def _dimension(dimensions: Mapping[str, str], value: int, locations: list[str]) -> Json:
    # An int64 of 0 is left out, as everywhere in proto3's JSON.
    shown: Json = {"details": {"value": str(value)} if value else {}, "applicableLocations": locations}
    return {"dimensions": dict(dimensions), **shown} if dimensions else shown


def _dimensions(
    limits: Mapping[str, int],
    places: Mapping[str, Mapping[str, str]],
    key: str,
    rest: Mapping[str, str],
    default: int = PLENTY,
) -> list[Json]:
    """The limits that are set, and one entry for all other places, with the `default`."""
    told = {place: limits[key.format(place)] for place in places if key.format(place) in limits}
    rows = [_dimension(places[place], limit, [place]) for place, limit in told.items()]
    return [*rows, _dimension(rest, default, [place for place in places if place not in told])]


def machine_quota_id(metric: str, place: str) -> str:
    """What the Cloud Quotas API calls a quota of Compute Engine; `place` is zone or region."""
    return f"{metric.replace('_', '-')}-per-project-{place}"


def _machine_info(metric: str, title: str, kinds: Sequence[str], rows: list[Json]) -> Json:
    id = machine_quota_id(metric, kinds[0])
    return _quota_info(f"{COMPUTE}/{metric.lower()}", id, title, kinds, rows)


def _quota_info(metric: str, id: str, title: str, kinds: Sequence[str], rows: list[Json]) -> Json:
    service = metric.partition("/")[0]
    return {
        "name": f"projects/{PROJECT_NUMBER}/locations/global/services/{service}/quotaInfos/{id}",
        "quotaId": id,
        "metric": metric,
        "service": service,
        "isPrecise": True,
        "containerType": "PROJECT",
        "dimensions": list(kinds),
        "metricDisplayName": title,
        "quotaDisplayName": f"{title} per project per {kinds[0]}",
        "metricUnit": "1",
        "quotaIncreaseEligibility": {"isEligible": True},
        "dimensionsInfos": rows,
    }


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
