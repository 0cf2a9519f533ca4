"""Creates as the TPU API wants them: the path and the JSON body of a spec.

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

from tpuctl.model.cloud import Tier
from tpuctl.model.slice_spec import SliceSpec

Body = dict[str, Any]


def create_node(parent: str, node_id: str, spec: SliceSpec) -> tuple[str, Body]:
    """Path and body that ask for a node."""
    body = _node(_to_json(render_node(spec)), spec)
    return f"/{_version(spec)}/{parent}/nodes?nodeId={node_id}", body


def create_queued(parent: str, node_id: str, spec: SliceSpec) -> tuple[str, Body]:
    """Path and body that ask for a queued resource."""
    version, body = _version(spec), _to_json(render_queued(parent, node_id, spec))
    if version == _ALPHA:
        _complete(body, spec)
    return f"/{version}/{parent}/queuedResources?queuedResourceId={node_id}", body


_ALPHA = "v2alpha1"


def _version(spec: SliceSpec) -> str:
    """The API version that can say it."""
    return _ALPHA if spec.tier is Tier.FLEX_START or spec.boot_disk_gib is not None else "v2"


def _complete(body: Body, spec: SliceSpec) -> None:
    """Makes a queued resource of v2 one of v2alpha1."""
    for each in body["tpu"]["nodeSpec"]:
        if "multisliceParams" in each:
            each["multiNodeParams"] = each.pop("multisliceParams")
        each["node"] = _node(each["node"], spec)
    # Beside `spot`, as gcloud alpha says it; whether v2alpha1 takes spot without it is not published.
    models = {Tier.FLEX_START: "FLEX_START", Tier.SPOT: "SPOT"}
    if spec.tier in models:
        body["provisioningModel"] = models[spec.tier]
    if spec.run_duration_s is not None:
        body["runDuration"] = {"maxRunDuration": f"{spec.run_duration_s:g}s"}


def _node(body: Body, spec: SliceSpec) -> Body:
    if spec.boot_disk_gib is not None:
        body["bootDiskConfig"] = {"diskSizeGb": str(spec.boot_disk_gib)}
    return body


def _to_json(message: Any) -> Body:
    found: Body = MessageToDict(type(message).pb(message))
    return found


def render_node(spec: SliceSpec) -> tpu_v2.Node:
    """The node message of a spec. External addresses are off by the API's default, so always said."""
    network = tpu_v2.NetworkConfig(enable_external_ips=spec.external_ips)
    if spec.network:
        network.network = spec.network
    if spec.subnetwork:
        network.subnetwork = spec.subnetwork
    node = tpu_v2.Node(
        description=spec.description or "",
        runtime_version=spec.runtime_version,
        network_config=network,
        labels=dict(spec.labels),
        metadata=dict(spec.metadata),
        tags=list(spec.tags),
    )
    if spec.topology is None:
        node.accelerator_type = spec.accelerator_type
    else:
        kind = getattr(tpu_v2.AcceleratorConfig.Type, str(spec.config_type))
        node.accelerator_config = tpu_v2.AcceleratorConfig(type_=kind, topology=spec.topology)
    if spec.service_account:
        node.service_account = tpu_v2.ServiceAccount(email=spec.service_account)
    flags = {
        Tier.SPOT: tpu_v2.SchedulingConfig(spot=True),
        Tier.PREEMPTIBLE: tpu_v2.SchedulingConfig(preemptible=True),
        Tier.RESERVED: tpu_v2.SchedulingConfig(reserved=True),
    }
    if spec.tier in flags:
        node.scheduling_config = flags[spec.tier]
    return node


def render_queued(parent: str, node_id: str, spec: SliceSpec) -> tpu_v2.QueuedResource:
    """A queued resource for one node called `node_id`, or for several.

    The tier is said on the queued resource (`spot`, `guaranteed`, `reservation_name`); saying spot in the
    node's scheduling configuration as well is refused by the API.
    """
    node = render_node(spec)
    if spec.tier in _SAID_ON_REQUEST:
        node.scheduling_config = tpu_v2.SchedulingConfig()
    node_spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=parent, node=node)
    if spec.slices == 1:
        node_spec.node_id = node_id
    else:
        node_spec.multislice_params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(
            node_count=spec.slices, node_id_prefix=node_id
        )
    queued = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[node_spec]))
    if spec.tier is Tier.SPOT:
        queued.spot = tpu_v2.QueuedResource.Spot()
    elif spec.tier is Tier.ON_DEMAND:
        queued.guaranteed = tpu_v2.QueuedResource.Guaranteed()
    elif spec.tier is Tier.RESERVED:
        queued.reservation_name = _reservation(parent, spec.reservation)
    _set_validity(queued, spec)
    return queued


_SAID_ON_REQUEST = frozenset({Tier.SPOT, Tier.RESERVED, Tier.FLEX_START})


def _reservation(parent: str, name: str | None) -> str:
    """The full name; `-` is any of the project's, as `gcloud … queued-resources create --reserved` asks."""
    return name if name and "/" in name else f"{parent}/reservations/{name or '-'}"


def _set_validity(queued: tpu_v2.QueuedResource, spec: SliceSpec) -> None:
    if spec.valid_until is not None:
        until = datetime.fromtimestamp(spec.valid_until, UTC)
        queued.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(valid_until_time=until)
    elif spec.valid_for_s is not None:
        length = timedelta(seconds=spec.valid_for_s)
        queued.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(valid_until_duration=length)
