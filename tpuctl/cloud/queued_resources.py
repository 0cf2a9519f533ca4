"""Queued resources: wire messages to our data and back.

A queued resource has no labels of its own; ours are those of its first node spec.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from google.cloud import tpu_v2

from tpuctl.cloud.nodes import parse_status, render_node
from tpuctl.core.model import NodeRequest, QueuedInfo, QueuedState, Tier


def parse_queued(queued: tpu_v2.QueuedResource) -> QueuedInfo:
    """A queued resource of the API as data."""
    parts = queued.name.split("/")
    specs = list(queued.tpu.node_spec)
    node = specs[0].node if specs else tpu_v2.Node()
    state = queued.state
    failed = state.failed_data.error
    return QueuedInfo(
        name=parts[-1],
        zone=parts[3] if len(parts) > 3 else "",
        state=QueuedState.parse(getattr(state.state, "name", str(state.state))),
        initiator=_initiator(state),
        node_ids=tuple(name for spec in specs for name in _node_ids(spec, parts[-1])),
        accelerator_type=node.accelerator_type,
        tier=_tier(queued, node),
        labels=dict(node.labels),
        error=parse_status(failed) if failed.code else None,
        create_time=queued.create_time.isoformat() if queued.create_time else "",
    )


def _node_ids(spec: tpu_v2.QueuedResource.Tpu.NodeSpec, queued_id: str) -> tuple[str, ...]:
    """Names of the nodes of one spec, which names one or counts several."""
    several = spec.multislice_params
    if several.node_count:
        prefix = several.node_id_prefix or queued_id
        return tuple(f"{prefix}-{index}" for index in range(several.node_count))
    return (spec.node_id,) if spec.node_id else ()


def _initiator(state: tpu_v2.QueuedResourceState) -> str:
    initiator = getattr(state.state_initiator, "name", "")
    return initiator if initiator in {"USER", "SERVICE"} else ""


def _tier(queued: tpu_v2.QueuedResource, node: tpu_v2.Node) -> Tier:
    if "spot" in queued:
        return Tier.SPOT
    if node.scheduling_config.preemptible:
        return Tier.PREEMPTIBLE
    if queued.reservation_name or node.scheduling_config.reserved:
        return Tier.RESERVED
    return Tier.ON_DEMAND


def render_create(parent: str, request: NodeRequest) -> tpu_v2.CreateQueuedResourceRequest:
    """One queued resource called `request.name` for one node of that name, or for several.

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
    return tpu_v2.CreateQueuedResourceRequest(
        parent=parent, queued_resource_id=request.name, queued_resource=queued
    )


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
