"""Queued resources: wire messages to our data and back.

A queued resource has no labels of its own; ours are those of its first node spec.
"""

from __future__ import annotations

from google.cloud import tpu_v2

from tpuctl.cloud.nodes import render_node
from tpuctl.core.model import CloudErrorInfo, NodeRequest, QueuedInfo, QueuedState, Tier


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
        node_ids=tuple(spec.node_id for spec in specs if spec.node_id),
        accelerator_type=node.accelerator_type,
        tier=_tier(queued, node),
        labels=dict(node.labels),
        error=CloudErrorInfo(failed.code, failed.message) if failed.code else None,
        create_time=queued.create_time.isoformat() if queued.create_time else "",
    )


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
    """One queued resource for one node, both called `request.name`.

    The tier is said on the queued resource (`spot`, `guaranteed`); saying spot in the node's scheduling
    configuration as well is refused by the API.
    """
    node = render_node(request)
    if request.tier is Tier.SPOT:
        node.scheduling_config = tpu_v2.SchedulingConfig()
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=parent, node_id=request.name, node=node)
    queued = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
    if request.tier is Tier.SPOT:
        queued.spot = tpu_v2.QueuedResource.Spot()
    elif request.tier is not Tier.PREEMPTIBLE:
        queued.guaranteed = tpu_v2.QueuedResource.Guaranteed()
    return tpu_v2.CreateQueuedResourceRequest(
        parent=parent, queued_resource_id=request.name, queued_resource=queued
    )
