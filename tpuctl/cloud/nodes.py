"""Nodes, operations and guest attributes: JSON of the API to our data.

A queued resource has no labels of its own; ours are those of its first node spec.
"""

from __future__ import annotations

import re

from tpuctl.cloud import wire
from tpuctl.cloud.instances import ALL_APIS, options_of
from tpuctl.cloud.wire import Json
from tpuctl.model.cloud import (
    CloudErrorInfo,
    Endpoint,
    GuestHostKey,
    NodeInfo,
    NodeState,
    OfferInfo,
    OperationInfo,
    QueuedInfo,
    QueuedState,
    Tier,
)
from tpuctl.model.disks import DataDisk, DiskMode
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceOptions


def parse_node(node: Json) -> NodeInfo:
    """A node of the API as data. Raises TransientError for one without its full resource name."""
    parts = wire.full_name(node, "read a node").split("/")
    return NodeInfo(
        name=parts[-1],
        zone=parts[3] if len(parts) > 3 else "",
        uid=wire.text(node.get("id")),
        state=NodeState.parse(wire.text(node.get("state"))),
        accelerator_type=wire.text(node.get("acceleratorType")),
        runtime_version=wire.text(node.get("runtimeVersion")),
        tier=_tier(wire.message(node.get("schedulingConfig"))),
        health=wire.text(node.get("health")),
        health_description=wire.text(node.get("healthDescription")),
        endpoints=tuple(_endpoint(each) for each in wire.messages(node.get("networkEndpoints"))),
        labels=wire.strings(node.get("labels")),
        metadata=wire.strings(node.get("metadata")),
        create_time=wire.text(node.get("createTime")),
        queued_resource=wire.text(node.get("queuedResource")).rsplit("/", 1)[-1] or None,
        data_disks=parse_data_disks(node),
        options=parse_options(node),
        tags=wire.texts(node.get("tags")),
        unsaid=_unsaid(node),
    )


_UNSAID = (
    ("networkConfig", "canIpForward"),
    ("networkConfig", "queueCount"),
    ("shieldedInstanceConfig", "enableSecureBoot"),
)


def parse_options(node: Json) -> SliceOptions:
    """The other way round of `requests.render_node`: with which options the node was asked for. Full names in
    its own project come as short ones; the default network and service account come as None."""
    network, account = wire.message(node.get("networkConfig")), wire.message(node.get("serviceAccount"))
    return options_of(wire.text(node.get("name")), network, account, wire.strings(node.get("metadata")), node)


def _unsaid(node: Json) -> tuple[str, ...]:
    found = [f"{part}.{field}" for part, field in _UNSAID if wire.message(node.get(part)).get(field)]
    scopes = wire.texts(wire.message(node.get("serviceAccount")).get("scope"))
    if scopes and ALL_APIS not in scopes:
        found.append("serviceAccount.scope")
    return (*found, *(("networkConfigs",) if node.get("networkConfigs") else ()))


def _endpoint(found: Json) -> Endpoint:
    access = wire.message(found.get("accessConfig"))
    return Endpoint(wire.text(found.get("ipAddress")), wire.text(access.get("externalIp")) or None)


def parse_data_disks(node: Json) -> tuple[DataDisk, ...]:
    """The data disks of a node, in its order."""
    return tuple(_data_disk(each) for each in wire.messages(node.get("dataDisks")))


def _data_disk(found: Json) -> DataDisk:
    """An entry without a mode is written to; one of a mode that nobody knows, too: it is left alone."""
    parts = wire.text(found.get("sourceDisk")).split("/")
    zone = parts[-3] if len(parts) > 2 else ""
    read_only = found.get("mode") == DiskMode.READ_ONLY
    return DataDisk(
        zone,
        parts[-1],
        DiskMode.READ_ONLY if read_only else DiskMode.READ_WRITE,
        wire.texts(found.get("workerIds")),
    )


def _tier(scheduling: Json) -> Tier:
    if scheduling.get("spot"):
        return Tier.SPOT
    if scheduling.get("preemptible"):
        return Tier.PREEMPTIBLE
    return Tier.RESERVED if scheduling.get("reserved") else Tier.ON_DEMAND


def parse_operation(operation: Json) -> OperationInfo:
    """A google.longrunning.Operation as data; pending ones come with `done: false` or without it.

    Raises TransientError for one without a name.
    """
    error = wire.message(operation.get("error"))
    return OperationInfo(
        name=wire.full_name(operation, "read an operation"),
        done=operation.get("done") is True,
        error=parse_status(error) if error else None,
    )


_UNKNOWN = 2
"""`google.rpc.Code.UNKNOWN`, for a status whose code cannot be read."""


def parse_status(status: Json) -> CloudErrorInfo:
    """A google.rpc.Status as data. Its details stay JSON, whatever their types."""
    code = wire.integer(status.get("code"), _UNKNOWN)
    return CloudErrorInfo(code, wire.text(status.get("message")), wire.messages(status.get("details")))


def parse_offer(found: Json) -> OfferInfo:
    """An accelerator type of a zone; one without a name has an empty one."""
    config = wire.first(found.get("acceleratorConfigs"))
    name = wire.text(found.get("type")) or wire.text(found.get("name")).rsplit("/", 1)[-1]
    return OfferInfo(name, wire.text(config.get("type")), wire.text(config.get("topology")))


BEAT_NAMESPACE = "tpuctl"
_BEAT_KEY = "heartbeat"


def parse_host_heartbeats(answer: Json) -> dict[int, str]:
    """The heartbeats that workers published, by worker: one entry per worker, in worker order, as below."""
    found = enumerate(_guest_values(answer))
    key = (BEAT_NAMESPACE, _BEAT_KEY)
    return {worker: values[key] for worker, values in found if key in values}


def _guest_values(answer: Json) -> list[dict[tuple[str, str], str]]:
    """By worker: (namespace, key) → value."""
    return [
        {
            (wire.text(item.get("namespace")), wire.text(item.get("key"))): wire.text(item.get("value"))
            for item in wire.messages(wire.message(attributes.get("queryValue")).get("items"))
        }
        for attributes in wire.messages(answer.get("guestAttributes"))
    ]


_HOST_KEY_NAMESPACE = "hostkeys"
_ED25519 = "ssh-ed25519"


def parse_host_keys(answer: Json) -> tuple[GuestHostKey, ...]:
    """The ed25519 host keys that workers published; workers without one are left out.

    The answer has one entry per worker, in worker order (gcloud relies on it). Values come as the bare base64
    key or as `ssh-ed25519 AAAA…`.
    """
    keys: list[GuestHostKey] = []
    for worker, values in enumerate(_guest_values(answer)):
        value = values.get((_HOST_KEY_NAMESPACE, _ED25519), "").strip()
        if not value:
            continue
        bare = re.sub(rf"^{_ED25519}\s+", "", value).split()[0]
        hostname = next((v for (_, key), v in values.items() if key == "hostname"), "")
        keys.append(GuestHostKey(worker, f"{_ED25519} {bare}", hostname))
    return tuple(keys)


def parse_queued(queued: Json) -> QueuedInfo:
    """A queued resource of the API as data. Raises TransientError for one without a name."""
    parts = wire.full_name(queued, "read a queued resource").split("/")
    specs = wire.messages(wire.message(queued.get("tpu")).get("nodeSpec"))
    node = wire.message(wire.first(wire.message(queued.get("tpu")).get("nodeSpec")).get("node"))
    state = wire.message(queued.get("state"))
    failed = wire.message(wire.message(state.get("failedData")).get("error"))
    return QueuedInfo(
        name=parts[-1],
        zone=parts[3] if len(parts) > 3 else "",
        state=QueuedState.parse(wire.text(state.get("state"))),
        initiator=_initiator(state),
        node_ids=tuple(name for spec in specs for name in _node_ids(spec, parts[-1])),
        accelerator_type=wire.text(node.get("acceleratorType")) or _type_of_shape(node),
        tier=_queued_tier(queued, node),
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


def _queued_tier(queued: Json, node: Json) -> Tier:
    scheduling = wire.message(node.get("schedulingConfig"))
    if "spot" in queued:
        return Tier.SPOT
    if scheduling.get("preemptible"):
        return Tier.PREEMPTIBLE
    if queued.get("reservationName") or scheduling.get("reserved"):
        return Tier.RESERVED
    return Tier.ON_DEMAND
