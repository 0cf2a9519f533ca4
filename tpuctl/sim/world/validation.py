"""What the API checks before it accepts a node, with the texts real users were shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tpuctl.lib.names import region_of
from tpuctl.model.accelerators import AcceleratorType
from tpuctl.sim.wire.status import ApiError, Code, Json, invalid_argument
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.iam import PROJECT_NUMBER
from tpuctl.sim.world.paths import ResourcePath, check_labels
from tpuctl.sim.world.quotas import quota_id, quota_units, serves, serving_key
from tpuctl.sim.world.state import Kernel, Node, Queued, copy_json

_INPUT_FIELDS = frozenset(
    {
        "description",
        "acceleratorType",
        "acceleratorConfig",
        "runtimeVersion",
        "networkConfig",
        "networkConfigs",
        "cidrBlock",
        "serviceAccount",
        "schedulingConfig",
        "labels",
        "metadata",
        "tags",
        "dataDisks",
        "shieldedInstanceConfig",
        "bootDiskConfig",
        "autocheckpointEnabled",
        "protectionTier",
    }
)
MAX_DESCRIPTION = 512
MAX_METADATA = 256 * 1024
IMAGE_GB = 100
_TAG = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")


def find_offer(kernel: Kernel, path: ResourcePath, spec: Json) -> AcceleratorType:
    """The accelerator that a node spec asks for; raises INVALID_ARGUMENT as the API does."""
    config = spec.get("acceleratorConfig") or {}
    wanted = str(spec.get("acceleratorType") or f"{config.get('type')} {config.get('topology')}")
    if config:
        offer = kernel.catalog.find_config(str(config.get("type")), str(config.get("topology")))
    else:
        offer = kernel.catalog.find(wanted)
    if offer is None or path.zone not in (*offer.zones, *offer.listed_zones):
        raise kernel.bad_request(
            f'The requested accelerator configuration for accelerator type, "{wanted}", could not be found in '
            f'the zonal accelerator configurations for "{path.zone}".; the accelerator {wanted} was not found '
            f"in zone {path.zone}"
        )
    return offer


def prepare_spec(kernel: Kernel, path: ResourcePath, spec: Json) -> tuple[Json, AcceleratorType]:
    """A node spec without output-only fields, checked; and the offer that it means."""
    kernel.check_zone(path)
    offer = find_offer(kernel, path, spec)
    clean = {key: copy_json(value) for key, value in spec.items() if key in _INPUT_FIELDS}
    clean.setdefault("acceleratorType", offer.name)
    if offer.config_type is not None:
        clean.setdefault("acceleratorConfig", {"type": offer.config_type, "topology": offer.topology})
    version = clean.get("runtimeVersion")
    if not version:
        raise invalid_argument("Node.runtime_version is required.")
    if version not in kernel.catalog.runtime_versions(path.zone):
        raise kernel.bad_request(
            f'The requested runtime version "{version}" could not be found in zone "{path.zone}"'
        )
    if len(clean.get("description", "")) > MAX_DESCRIPTION:
        raise invalid_argument(f"Node.description is longer than {MAX_DESCRIPTION}.")
    check_labels(clean.get("labels") or {})
    _check_metadata(clean.get("metadata") or {})
    _check_network(clean)
    _check_project(kernel, path, clean)
    size = (clean.get("bootDiskConfig") or {}).get("diskSizeGb")
    if size is not None and int(size) < IMAGE_GB:
        text = f"Node.boot_disk_config.disk_size_gb must be at least the size of the image, {IMAGE_GB} GB."
        raise invalid_argument(text)
    scheduling = clean.get("schedulingConfig") or {}
    if scheduling.get("spot") and scheduling.get("preemptible"):
        raise invalid_argument("A node is either spot or preemptible, not both.")
    return clean, offer


def _check_metadata(metadata: Json) -> None:
    """Compute Engine's limits, since the hosts are its instances."""
    for key, value in metadata.items():
        if len(str(value).encode()) > MAX_METADATA:
            text = f"Value for metadata key '{key}' is too large: maximum size {MAX_METADATA} bytes."
            raise invalid_argument(text)


def _check_network(spec: Json) -> None:
    if spec.get("networkConfig") and spec.get("networkConfigs"):
        raise invalid_argument("Only one of network_config and network_configs can be specified.")
    for tag in spec.get("tags") or ():
        if not _TAG.match(str(tag)):
            raise invalid_argument(f'Invalid tag "{tag}".')


def _check_project(kernel: Kernel, path: ResourcePath, spec: Json) -> None:
    """The network that hosts are to be in, and the service account that the caller makes them act as."""
    for config in [spec.get("networkConfig") or {}, *(spec.get("networkConfigs") or ())]:
        network = _own_name(config.get("network"), path)
        if network not in ("default", "") or kernel.faults.standing(FaultKind.NO_NETWORK, network):
            text = f"The resource 'projects/{path.project}/global/networks/{network}' was not found"
            raise kernel.bad_request(text)
        subnetwork = _own_name(config.get("subnetwork"), path)
        if subnetwork not in ("default", ""):
            there = f"projects/{path.project}/regions/{region_of(path.zone)}/subnetworks/{subnetwork}"
            raise kernel.bad_request(f"The resource '{there}' was not found")
    permission = "iam.serviceAccounts.actAs"
    if kernel.faults.standing(FaultKind.NO_PERMISSION, permission):
        account = (spec.get("serviceAccount") or {}).get("email") or f"{PROJECT_NUMBER}-{DEFAULT}"
        text = f"Permission '{permission}' denied on service account {account} (or it may not exist)."
        raise ApiError(Code.PERMISSION_DENIED, text)


def _own_name(value: Any, path: ResourcePath) -> str:
    """What a network is called in this project; empty for one that another project shares with it."""
    words = str(value or "default").split("projects/")[-1].split("/")
    lent = len(words) > 2 and words[0] not in (path.project, PROJECT_NUMBER)
    return "" if lent else words[-1]


DEFAULT = "compute@developer.gserviceaccount.com"


def _used_chips(
    nodes: Iterable[Node], queued: Iterable[Queued], place: str, generation: str, serving: bool | None
) -> int:
    """Those of a zone or region. Queued resources count from acceptance until deletion, dead ones too; a
    preempted direct node does not. `serving`: only those that draw on the serving quota, or only the others."""

    def counts(zone: str, offer: AcceleratorType) -> bool:
        here = place in (zone, region_of(zone)) and generation in ("", offer.generation)
        return here and serving in (None, serves(offer))

    direct = (n for n in nodes if n.queued is None and n.state != "PREEMPTED")
    return sum(each.offer.chips for each in direct if counts(each.path.zone, each.offer)) + sum(
        each.chips for each in queued if counts(each.path.zone, each.offer)
    )


def check_quota(kernel: Kernel, path: ResourcePath, offer: AcceleratorType, chips: int, *, spot: bool) -> None:
    """Refuses what the quotas of region and zone do not hold, with all that it runs into; expects the world's
    lock to be held."""
    exceeded: list[tuple[str, int, str]] = []
    for kind, place in (("region", region_of(path.zone)), ("zone", path.zone)):
        serving = serving_key(place, offer.generation)
        kind_of = serves(offer) if serving in kernel.quotas else None
        own = serving if kind_of else f"{place}/{offer.generation}"
        limits = {("", None): kernel.quotas.get(place), (offer.generation, kind_of): kernel.quotas.get(own)}
        for (generation, some), limit in limits.items():
            used = _used_chips(kernel.nodes.values(), kernel.queued.values(), place, generation, some)
            if limit is not None and used + chips > limit:
                name = quota_id(offer.generation, chips, kind, preemptible=spot)
                exceeded.append((name, quota_units(offer, limit), f"{kind} {place}"))
                break
    if not exceeded:
        return
    names, limits_hit, places = (
        ",".join(str(each) for each in column) for column in zip(*exceeded, strict=True)
    )
    violations = [
        {
            "subject": f"project:{path.project}",
            "description": f"Quota '{limit_name}' exhausted. Limit {limit} in {place}",
        }
        for limit_name, limit, place in exceeded
    ]
    raise ApiError(
        Code.RESOURCE_EXHAUSTED,
        f"Quota limit '{names}' has been exceeded. Limit: {limits_hit} in {places}.",
        [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations}],
    )
