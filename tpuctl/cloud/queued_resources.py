"""Queued resources: JSON of the API to our data.

A queued resource has no labels of its own; ours are those of its first node spec.
"""

from __future__ import annotations

from tpuctl.cloud import wire
from tpuctl.cloud.nodes import parse_status
from tpuctl.cloud.wire import Json
from tpuctl.model.cloud import QueuedInfo, QueuedState, Tier
from tpuctl.model.shipped_files import load_accelerators


def parse_queued(queued: Json) -> QueuedInfo:
    """A queued resource of the API as data. Raises TransientError for one without a name."""
    parts = wire.full_name(queued, "read a queued resource").split("/")
    specs = wire.messages(wire.message(queued.get("tpu")).get("nodeSpec"))
    node = wire.message(specs[0].get("node")) if specs else {}
    state = wire.message(queued.get("state"))
    failed = wire.message(wire.message(state.get("failedData")).get("error"))
    return QueuedInfo(
        name=parts[-1],
        zone=parts[3] if len(parts) > 3 else "",
        state=QueuedState.parse(wire.text(state.get("state"))),
        initiator=_initiator(state),
        node_ids=tuple(name for spec in specs for name in _node_ids(spec, parts[-1])),
        accelerator_type=wire.text(node.get("acceleratorType")) or _type_of_shape(node),
        tier=_tier(queued, node),
        labels=wire.strings(node.get("labels")),
        error=parse_status(failed) if failed else None,
        create_time=wire.text(queued.get("createTime")),
        reservation=_reservation(wire.text(queued.get("reservationName"))),
    )


def _reservation(full: str) -> str | None:
    """None for any of the project's, which is called `-`."""
    return full if full and not full.endswith("/-") else None


def _node_ids(spec: Json, queued_id: str) -> tuple[str, ...]:
    """Names of the nodes of one spec, which names one or counts several."""
    several = wire.message(spec.get("multisliceParams"))
    count = wire.integer(several.get("nodeCount"))
    if count:
        prefix = wire.text(several.get("nodeIdPrefix")) or queued_id
        return tuple(f"{prefix}-{index}" for index in range(count))
    name = wire.text(spec.get("nodeId"))
    return (name,) if name else ()


def _type_of_shape(node: Json) -> str:
    """The name of what was asked for by shape: the service shows a node spec as it was sent."""
    config = wire.message(node.get("acceleratorConfig"))
    found = load_accelerators().find_config(wire.text(config.get("type")), wire.text(config.get("topology")))
    return found.name if found else ""


def _initiator(state: Json) -> str:
    initiator = wire.text(state.get("stateInitiator"))
    return initiator if initiator in {"USER", "SERVICE"} else ""


def _tier(queued: Json, node: Json) -> Tier:
    scheduling = wire.message(node.get("schedulingConfig"))
    if "spot" in queued:
        return Tier.SPOT
    if scheduling.get("preemptible"):
        return Tier.PREEMPTIBLE
    if queued.get("reservationName") or scheduling.get("reserved"):
        return Tier.RESERVED
    return Tier.ON_DEMAND
