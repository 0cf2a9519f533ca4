"""What the API checks before it accepts a node, with the texts real users were shown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tpuctl.core.topology import AcceleratorType
from tpuctl.sim.kernel import Json, Kernel, Node, Queued, copy_json
from tpuctl.sim.paths import ResourcePath, check_labels
from tpuctl.sim.quotas import TPU_QUOTA_NAMES
from tpuctl.sim.status import ApiError, Code, bad_request

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
        raise bad_request(
            f'The requested accelerator configuration for accelerator type, "{wanted}", could not be found in '
            f'the zonal accelerator configurations for "{path.zone}".; the accelerator {wanted} was not found '
            f"in zone {path.zone}",
            kernel.ids.eid(),
        )
    return offer


def prepare_spec(kernel: Kernel, path: ResourcePath, spec: Json) -> tuple[Json, AcceleratorType]:
    """A node spec without output-only fields, checked; and the offer that it means."""
    kernel.check_zone(path)
    offer = find_offer(kernel, path, spec)
    clean = {key: copy_json(value) for key, value in spec.items() if key in _INPUT_FIELDS}
    clean.setdefault("acceleratorType", offer.name)
    clean.setdefault("acceleratorConfig", {"type": offer.config_type, "topology": offer.topology})
    version = clean.get("runtimeVersion")
    if not version:
        raise ApiError(Code.INVALID_ARGUMENT, "Node.runtime_version is required.")
    if version not in kernel.catalog.runtime_versions(path.zone):
        raise bad_request(
            f'The requested runtime version "{version}" could not be found in zone "{path.zone}"',
            kernel.ids.eid(),
        )
    if len(clean.get("description", "")) > MAX_DESCRIPTION:
        raise ApiError(Code.INVALID_ARGUMENT, f"Node.description is longer than {MAX_DESCRIPTION}.")
    check_labels(clean.get("labels") or {})
    _check_metadata(clean.get("metadata") or {})
    _check_network(clean)
    size = (clean.get("bootDiskConfig") or {}).get("diskSizeGb")
    if size is not None and int(size) < IMAGE_GB:
        text = f"Node.boot_disk_config.disk_size_gb must be at least the size of the image, {IMAGE_GB} GB."
        raise ApiError(Code.INVALID_ARGUMENT, text)
    scheduling = clean.get("schedulingConfig") or {}
    if scheduling.get("spot") and scheduling.get("preemptible"):
        raise ApiError(Code.INVALID_ARGUMENT, "A node is either spot or preemptible, not both.")
    return clean, offer


def _check_metadata(metadata: Json) -> None:
    """Compute Engine's limits, since the hosts are its instances."""
    for key, value in metadata.items():
        if len(str(value).encode()) > MAX_METADATA:
            text = f"Value for metadata key '{key}' is too large: maximum size {MAX_METADATA} bytes."
            raise ApiError(Code.INVALID_ARGUMENT, text)


def _check_network(spec: Json) -> None:
    if spec.get("networkConfig") and spec.get("networkConfigs"):
        raise ApiError(
            Code.INVALID_ARGUMENT, "Only one of network_config and network_configs can be specified."
        )
    for tag in spec.get("tags") or ():
        if not _TAG.match(str(tag)):
            raise ApiError(Code.INVALID_ARGUMENT, f'Invalid tag "{tag}".')


def _used_chips(nodes: Iterable[Node], queued: Iterable[Queued], zone: str, generation: str) -> int:
    """Queued resources count from acceptance until deletion, dead ones too; a preempted direct node does
    not."""
    direct = sum(
        n.offer.chips
        for n in nodes
        if n.queued is None
        and n.path.zone == zone
        and n.state != "PREEMPTED"
        and generation in ("", n.offer.generation)
    )
    requests = sum(q.chips for q in queued if q.path.zone == zone and generation in ("", q.offer.generation))
    return direct + requests


def check_quota(kernel: Kernel, path: ResourcePath, offer: AcceleratorType, chips: int, *, spot: bool) -> None:
    """Refuses what the zone's quota does not hold; expects the world's lock to be held."""
    for key, generation in ((path.zone, ""), (f"{path.zone}/{offer.generation}", offer.generation)):
        limit = kernel.quotas.get(key)
        if limit is None:
            continue
        if _used_chips(kernel.nodes.values(), kernel.queued.values(), path.zone, generation) + chips > limit:
            name = TPU_QUOTA_NAMES[offer.generation].format("Preemptible" if spot else "")
            text = (
                f"Quota limit '{name}PerProjectPerZoneForTPUAPI' has been exceeded. "
                f"Limit: {limit} in zone {path.zone}."
            )
            violation = {"subject": f"project:{path.project}", "description": text}
            detail = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}
            raise ApiError(Code.RESOURCE_EXHAUSTED, text, [detail])
