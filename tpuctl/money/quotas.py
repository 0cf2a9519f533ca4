"""Quotas: what the project may have, what holds it, and whether a slice fits beside what is there.

A TPU slice draws on two kinds: the TPU quotas of its zone and region, and quotas of Compute Engine that nobody
thinks of (external addresses, instances, health checks). Limits come from the API. The API tells the use of
Compute Engine's quotas; the use of TPU quotas is counted from what the project has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.lib.names import region_of
from tpuctl.lib.text import counted
from tpuctl.model.accelerators import AcceleratorType, Catalog
from tpuctl.model.cloud import (
    INCARNATION_LABEL,
    Api,
    CloudResource,
    NodeInfo,
    NodeState,
    QueuedInfo,
    QueuedState,
    ResourceKind,
    Tier,
)
from tpuctl.model.quota import QUOTA_SERVICES, ComputeQuota, TpuQuota
from tpuctl.model.resources import gcloud_command
from tpuctl.money.grants import same_pool

ADDRESSES = "IN_USE_ADDRESSES"
INSTANCES = "INSTANCES"
HEALTH_CHECKS = "HEALTH_CHECKS"
REQUEST_IDS: Mapping[str, str] = {
    ADDRESSES: "IN-USE-ADDRESSES-per-project-region",
    INSTANCES: "INSTANCES-per-project-region",
    HEALTH_CHECKS: "HEALTH-CHECKS-per-project",
}
"""Ids of the Cloud Quotas API for what is asked there (service compute.googleapis.com)."""
HEALTH_CHECKS_PER_NODE = 2
"""The TPU service makes at least `…-tensorflow-service` and `…-preemption-event` for each node; users saw up to
five. So only a quota without any room is a sure refusal."""

DEAD_QUEUED = frozenset({QueuedState.SUSPENDED, QueuedState.FAILED})


def quota_unit(kind: AcceleratorType, api: Api = Api.TPU) -> str:
    """What the quota of a type counts, `chips` or `tensorcores`: Compute Engine always the first."""
    return "chips" if api is Api.COMPUTE else kind.quota_unit


def quota_units(kind: AcceleratorType, api: Api = Api.TPU) -> int:
    """What a slice takes of its TPU quota."""
    return kind.cores if quota_unit(kind, api) == "tensorcores" else kind.chips


class Holding(Struct, frozen=True):
    """Something in the project that holds TPU quota: a node, or a queued resource with or without nodes.

    `tier` is that of `resource`: every TPU has one. `units` and `chips` are None for a type that the table does
    not know. `dead` will never give chips again.
    """

    resource: CloudResource
    tier: Tier
    hosts: int
    generation: str = ""
    chips: int | None = None
    units: int | None = None
    dead: bool = False

    @property
    def slice_name(self) -> str:
        """The slice that it was made for; empty for what tpuctl did not make."""
        return self.resource.slice_name if INCARNATION_LABEL in self.resource.labels else ""

    @property
    def draws(self) -> bool:
        """Whether it counts against its quota: what is dead does only as a queued resource, until somebody
        deletes it, and instances do while they are not stopped."""
        found = self.resource
        stopped = found.api is Api.COMPUTE and found.state == NodeState.STOPPED
        return found.kind is ResourceKind.QUEUED or not (self.dead or stopped)


def find_holdings(
    catalog: Catalog, nodes: Iterable[NodeInfo], queued: Iterable[QueuedInfo]
) -> tuple[Holding, ...]:
    """Who holds what. A queued resource with living nodes is counted by these, one without by its request; what
    is half made in Compute Engine has no chips."""
    listed = [node for node in nodes if node.state is not NodeState.HALF_MADE]
    with_nodes = {(node.zone, node.queued_resource) for node in listed if node.queued_resource}
    held = [_of_node(catalog, node) for node in listed]
    held += [_of_queued(catalog, item) for item in queued if (item.zone, item.name) not in with_nodes]
    return tuple(
        sorted(held, key=lambda each: (each.resource.user, each.resource.location, each.resource.name))
    )


def holders_of(holdings: Iterable[Holding], generation: str, zone: str, tier: Tier) -> tuple[Holding, ...]:
    """What draws on the quota of one generation and pool in the region of `zone`, the largest first.

    TPU quotas are per zone or per region (Cloud TPU documentation, "quotas"), so the whole region counts.
    """
    region = region_of(zone)
    found = [
        each
        for each in holdings
        if each.generation == generation
        and region_of(each.resource.location) == region
        and same_pool(each.tier, tier)
        and each.draws
    ]
    return tuple(sorted(found, key=lambda each: (-(each.chips or 0), each.resource.name)))


def _of_node(catalog: Catalog, node: NodeInfo) -> Holding:
    found = catalog.find(node.accelerator_type)
    resource = node.resource
    if node.queued_resource:
        resource = replace(resource, kind=ResourceKind.QUEUED, name=node.queued_resource)
    return Holding(
        resource=resource,
        tier=node.tier,
        hosts=len(node.endpoints) or (found.hosts if found else 0),
        generation=found.generation if found else "",
        chips=found.chips if found else None,
        units=quota_units(found, node.api) if found else None,
        dead=node.is_dead,
    )


def _of_queued(catalog: Catalog, item: QueuedInfo) -> Holding:
    found = catalog.find(item.accelerator_type)
    count = max(1, len(item.node_ids))
    return Holding(
        resource=item.resource,
        tier=item.tier,
        hosts=0,
        generation=found.generation if found else "",
        chips=count * found.chips if found else None,
        units=count * quota_units(found) if found else None,
        dead=item.state in DEAD_QUEUED,
    )


def collect_command(holding: Holding, ours: frozenset[str], project: str) -> str | None:
    """What removes a dead holding; None for a living one. `ours` are the slices of this store."""
    if not holding.dead:
        return None
    if holding.slice_name in ours:
        return "tpuctl watch once"
    found = holding.resource
    return f"{gcloud_command('delete', found.kind, found.name, found.location)} --project {project} --quiet"


def units_used(holdings: Iterable[Holding], quota: TpuQuota) -> int | None:
    """How much of a TPU quota is taken; None when something of unknown size draws on it."""
    total = 0
    for each in holdings:
        there = quota.location in (each.resource.location, region_of(each.resource.location))
        if not there or each.resource.api is not quota.api or not each.draws:
            continue
        if each.units is None:
            return None
        if quota.covers(each.generation, each.tier, quota.api) and quota.takes(each.units):
            total += each.units
    return total


def find_tpu_quotas(
    quotas: Iterable[TpuQuota], zone: str, generation: str, tier: Tier, units: int, api: Api = Api.TPU
) -> tuple[TpuQuota, ...]:
    """The quotas on which a slice that takes `units` draws; all of them must have room.

    For flex-start "preemptible quota is consumed. If your project lacks preemptible quota, then standard quota
    is consumed" (https://docs.cloud.google.com/compute/docs/instances/provisioning-models).
    """
    places = (zone, region_of(zone))
    there = [quota for quota in quotas if quota.location in places and quota.takes(units)]
    drawn = tuple(quota for quota in there if quota.covers(generation, tier, api))
    if api is Api.COMPUTE and tier is Tier.FLEX_START and not all(quota.limit for quota in drawn):
        return tuple(quota for quota in there if quota.covers(generation, Tier.ON_DEMAND, api))
    return drawn


def request_command(project: str, service: str, quota_id: str, value: int, dimension: str = "") -> str:
    """The command that asks Google for more; `dimension` is like `region=us-east1`. Every increase needs an
    address, says the API's reference."""
    where = f" --dimensions={dimension}" if dimension else ""
    return (
        f"gcloud beta quotas preferences create --service={service} --quota-id={quota_id} "
        f'--preferred-value={value}{where} --project={project} --email="$(gcloud config get-value account)"'
    )


def ask_for_tpus(project: str, quota: TpuQuota, units: int) -> str:
    """The command that asks Google for so much of a TPU quota."""
    kind = "zone" if "zone" in quota.quota_id.lower() else "region"
    family = f",tpu_family={quota.family}" if quota.family else ""
    where = f"{kind}={quota.location}{family}"
    return request_command(project, QUOTA_SERVICES[quota.api], quota.quota_id, units, where)


INTERNAL_IPS = (
    "or `--internal-ips`: the workers then need Cloud NAT to reach the Internet, and this machine must be in "
    "their network (--internal-ip) or go through iap, jump_host or proxy_command"
)


class Shortage(Struct, frozen=True):
    """A side quota that has no room for a slice. Only where `certain` is the create known to be refused."""

    quota: ComputeQuota
    need: int
    certain: bool
    ways_out: tuple[str, ...]

    @property
    def text(self) -> str:
        found = self.quota
        return (
            f"{found.metric} in {found.place}: {self.need} needed, {found.free} free "
            f"({found.usage} of {found.limit} in use)"
        )


def find_shortages(
    quotas: Sequence[ComputeQuota], project: str, *, hosts: int, nodes: int = 1, external_ips: bool
) -> tuple[Shortage, ...]:
    """The side quotas that hold up a slice, the certain ones first.

    Every worker with an external address takes one of IN_USE_ADDRESSES. That hosts count as INSTANCES is what
    users say and no page of Google's, so it is never certain.
    """
    found = []
    for quota in quotas:
        if quota.metric == ADDRESSES and external_ips and hosts > quota.free:
            found.append(_shortage(quota, project, hosts, certain=True, more=(INTERNAL_IPS,)))
        elif quota.metric == INSTANCES and hosts > quota.free:
            found.append(_shortage(quota, project, hosts, certain=False))
        elif quota.metric == HEALTH_CHECKS and HEALTH_CHECKS_PER_NODE * nodes > quota.free:
            need = HEALTH_CHECKS_PER_NODE * nodes
            way = "or delete health checks of dead nodes: gcloud compute health-checks list --filter=name~^tpu-"
            found.append(_shortage(quota, project, need, certain=quota.free == 0, more=(way,)))
    return tuple(sorted(found, key=lambda each: not each.certain))


def _shortage(
    quota: ComputeQuota, project: str, need: int, *, certain: bool, more: tuple[str, ...] = ()
) -> Shortage:
    dimension = f"region={quota.region}" if quota.region else ""
    value = quota.usage + need
    ask = request_command(project, "compute.googleapis.com", REQUEST_IDS[quota.metric], value, dimension)
    return Shortage(quota, need, certain, (ask, *more))


DISK_QUOTAS: Mapping[str, str] = {
    "DISKS_TOTAL_GB": "pd-standard",
    "SSD_TOTAL_GB": "pd-balanced/ssd",
    "HDB_TOTAL_GB": "hyperdisk-balanced",
}
"""Regional quotas of GB, and the types of disks that draw on them: compute.v1.Quota, and gcpdiag, rule
gce/WARN/2022_009."""
SNAPSHOTS = "SNAPSHOTS"


class Headroom(Struct, frozen=True):
    """How many more hosts, nodes, GiB of disks or snapshots a side quota allows now."""

    quota: ComputeQuota
    hosts: int | None = None
    nodes: int | None = None
    disk_gib: int | None = None
    snapshots: int | None = None

    @property
    def words(self) -> str:
        if self.hosts is not None:
            with_address = " with an address" if self.quota.metric == ADDRESSES else ""
            return f"{counted(self.hosts, 'more host')}{with_address}"
        if self.disk_gib is not None:
            return f"{self.disk_gib} GiB {DISK_QUOTAS[self.quota.metric]}"
        if self.snapshots is not None:
            return counted(self.snapshots, "more snapshot")
        return f"{counted(self.nodes or 0, 'more slice')} at most"


def room_of(quota: ComputeQuota) -> Headroom | None:
    """What a quota of Compute Engine allows; None for one that neither TPU hosts nor disks touch."""
    if quota.metric in (ADDRESSES, INSTANCES):
        return Headroom(quota, quota.free)
    if quota.metric == HEALTH_CHECKS:
        return Headroom(quota, nodes=quota.free // HEALTH_CHECKS_PER_NODE)
    if quota.metric in DISK_QUOTAS:
        return Headroom(quota, disk_gib=quota.free)
    if quota.metric == SNAPSHOTS:
        return Headroom(quota, snapshots=quota.free)
    return None
