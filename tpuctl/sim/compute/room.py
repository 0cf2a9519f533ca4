"""Whether there is room and quota for machines with chips, by Compute Engine's own pools.

Its quota of chips is another than that of the TPU API: of a family in a region, and of preemptible chips, which
Spot and flex-start draw on, in a zone. Names of the quotas are those that users of v6e read in the Cloud Quotas
API; those of other generations follow them.
"""

from __future__ import annotations

from tpuctl.lib.names import region_of
from tpuctl.sim.compute.catalog import Machine
from tpuctl.sim.wire.status import ApiError, Json
from tpuctl.sim.world.faults import preset_error
from tpuctl.sim.world.paths import ResourcePath
from tpuctl.sim.world.quotas import (
    PLENTY,
    TPU_FAMILIES,
    TPU_FAMILY_METRIC,
    exceeded,
    machine_quota_id,
    preemptible_metric,
)
from tpuctl.sim.world.state import Kernel

_PREEMPTIBLE = ("SPOT", "PREEMPTIBLE", "FLEX_START")


def lack_of_room(kernel: Kernel, zone: str, machine: Machine, count: int, model: str) -> ApiError | None:
    """Why so many more machines cannot be made: quota first, then chips. Expects the lock to be held."""
    chips = count * machine.chips
    error = _over_quota(kernel, zone, machine.generation, chips, spot=model in _PREEMPTIBLE)
    if error is not None or chips <= kernel.room(zone):
        return error
    return preset_error("stockout-instances", ResourcePath(kernel.project, zone))


def reservation_of(properties: Json) -> str:
    """The reservation that a machine is bound to; empty for none."""
    affinity = properties.get("reservationAffinity") or {}
    bound = affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION"
    return str((affinity.get("values") or [""])[0]).rsplit("/", 1)[-1] if bound else ""


def _over_quota(kernel: Kernel, zone: str, generation: str, chips: int, *, spot: bool) -> ApiError | None:
    region, family = region_of(zone), TPU_FAMILIES[generation]
    metric = preemptible_metric(generation) if spot else TPU_FAMILY_METRIC
    key = f"{metric}/{zone}" if spot else f"{metric}/{region}/{family}"
    limit = kernel.quotas.get(key, PLENTY)
    if _used(kernel, zone, generation, spot=spot) + chips <= limit:
        return None
    place = f"zone {zone}" if spot else f"region {region}"
    dimensions = {"zone": zone} if spot else {"region": region, "tpu_family": family}
    info: Json = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": machine_quota_id(metric, "zone" if spot else "region"),
        "dimensions": dimensions,
        "limit": limit,
    }
    return exceeded(metric, limit, f"in {place}", {"quotaInfo": info})


def _used(kernel: Kernel, zone: str, generation: str, *, spot: bool) -> int:
    """Chips that instances hold of the same pool."""
    place = zone if spot else region_of(zone)
    return sum(
        each.chips
        for each in kernel.instances.values()
        if each.generation == generation
        and each.holds_chips
        and place in (each.path.zone, region_of(each.path.zone))
        and (each.data["scheduling"]["provisioningModel"] in _PREEMPTIBLE) == spot
    )
