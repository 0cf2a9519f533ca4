"""Creates as the TPU API wants them: the path and the JSON body of a request.

google-cloud-tpu's types make and check what v2 can say. Two things only v2alpha1 takes, flex-start with its run
duration and sizes of boot disks; google-cloud-tpu 1.28 has none of these fields for either version, so such a
request is rendered for v2 and completed by the names of the v2alpha1 discovery document (revision 20261001).
Reading needs no v2alpha1: v2 shows the same resources.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from google.cloud import tpu_v2
from google.protobuf.json_format import MessageToDict

from tpuctl.model.cloud import NodeRequest, Tier

Body = dict[str, Any]


def create_node(parent: str, request: NodeRequest) -> tuple[str, Body]:
    """Path and body that ask for a node."""
    body = _node(_to_json(render_node(request)), request)
    return f"/{_version(request)}/{parent}/nodes?nodeId={request.name}", body


def create_queued(parent: str, request: NodeRequest) -> tuple[str, Body]:
    """Path and body that ask for a queued resource."""
    version, body = _version(request), _to_json(render_queued(parent, request))
    if version == _ALPHA:
        _complete(body, request)
    return f"/{version}/{parent}/queuedResources?queuedResourceId={request.name}", body


_ALPHA = "v2alpha1"


def _version(request: NodeRequest) -> str:
    """The API version that can say it."""
    return _ALPHA if request.tier is Tier.FLEX_START or request.boot_disk_gib is not None else "v2"


def _complete(body: Body, request: NodeRequest) -> None:
    """Makes a queued resource of v2 one of v2alpha1."""
    for spec in body["tpu"]["nodeSpec"]:
        if "multisliceParams" in spec:
            spec["multiNodeParams"] = spec.pop("multisliceParams")
        spec["node"] = _node(spec["node"], request)
    # Beside `spot`, as gcloud alpha says it; whether v2alpha1 takes spot without it is not published.
    models = {Tier.FLEX_START: "FLEX_START", Tier.SPOT: "SPOT"}
    if request.tier in models:
        body["provisioningModel"] = models[request.tier]
    if request.run_duration_s is not None:
        body["runDuration"] = {"maxRunDuration": f"{request.run_duration_s:g}s"}


def _node(body: Body, request: NodeRequest) -> Body:
    if request.boot_disk_gib is not None:
        body["bootDiskConfig"] = {"diskSizeGb": str(request.boot_disk_gib)}
    return body


def _to_json(message: Any) -> Body:
    found: Body = MessageToDict(type(message).pb(message))
    return found


def render_node(request: NodeRequest) -> tpu_v2.Node:
    """The node message of a request. External addresses are off by the API's default, so always said."""
    network = tpu_v2.NetworkConfig(enable_external_ips=request.external_ips)
    if request.network:
        network.network = request.network
    if request.subnetwork:
        network.subnetwork = request.subnetwork
    node = tpu_v2.Node(
        runtime_version=request.runtime_version,
        network_config=network,
        labels=dict(request.labels),
        metadata=dict(request.metadata),
        tags=list(request.tags),
    )
    if request.topology is None:
        node.accelerator_type = request.accelerator_type
    else:
        kind = getattr(tpu_v2.AcceleratorConfig.Type, str(request.config_type))
        node.accelerator_config = tpu_v2.AcceleratorConfig(type_=kind, topology=request.topology)
    if request.service_account:
        node.service_account = tpu_v2.ServiceAccount(email=request.service_account)
    flags = {
        Tier.SPOT: tpu_v2.SchedulingConfig(spot=True),
        Tier.PREEMPTIBLE: tpu_v2.SchedulingConfig(preemptible=True),
        Tier.RESERVED: tpu_v2.SchedulingConfig(reserved=True),
    }
    if request.tier in flags:
        node.scheduling_config = flags[request.tier]
    return node


def render_queued(parent: str, request: NodeRequest) -> tpu_v2.QueuedResource:
    """A queued resource for one node called `request.name`, or for several.

    The tier is said on the queued resource (`spot`, `guaranteed`, `reservation_name`); saying spot in the
    node's scheduling configuration as well is refused by the API.
    """
    node = render_node(request)
    if request.tier in _SAID_ON_REQUEST:
        node.scheduling_config = tpu_v2.SchedulingConfig()
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=parent, node=node)
    if request.slices == 1:
        spec.node_id = request.name
    else:
        spec.multislice_params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(
            node_count=request.slices, node_id_prefix=request.name
        )
    queued = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
    if request.tier is Tier.SPOT:
        queued.spot = tpu_v2.QueuedResource.Spot()
    elif request.tier is Tier.ON_DEMAND:
        queued.guaranteed = tpu_v2.QueuedResource.Guaranteed()
    elif request.tier is Tier.RESERVED:
        queued.reservation_name = _reservation(parent, request.reservation)
    _set_validity(queued, request)
    return queued


_SAID_ON_REQUEST = frozenset({Tier.SPOT, Tier.RESERVED, Tier.FLEX_START})


def _reservation(parent: str, name: str | None) -> str:
    """The full name; `-` is any of the project's, as `gcloud … queued-resources create --reserved` asks."""
    return name if name and "/" in name else f"{parent}/reservations/{name or '-'}"


def _set_validity(queued: tpu_v2.QueuedResource, request: NodeRequest) -> None:
    if request.valid_until is not None:
        until = datetime.fromtimestamp(request.valid_until, UTC)
        queued.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(valid_until_time=until)
    elif request.valid_for_s is not None:
        length = timedelta(seconds=request.valid_for_s)
        queued.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(valid_until_duration=length)
