"""Nodes, operations and guest attributes: wire messages to our data and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.cloud import tpu_v2

from tpuctl.cloud.errors import plain_details
from tpuctl.core.model import (
    CloudErrorInfo,
    Endpoint,
    GuestHostKey,
    NodeInfo,
    NodeRequest,
    NodeState,
    OperationInfo,
    Tier,
)


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def parse_node(node: tpu_v2.Node) -> NodeInfo:
    """A node of the API as data. `name` of the wire is the full resource name."""
    parts = node.name.split("/")
    return NodeInfo(
        name=parts[-1],
        zone=parts[3] if len(parts) > 3 else "",
        uid=str(node.id),
        state=NodeState.parse(getattr(node.state, "name", str(node.state))),
        accelerator_type=node.accelerator_type,
        runtime_version=node.runtime_version,
        tier=_tier(node.scheduling_config),
        health=getattr(node.health, "name", str(node.health)),
        health_description=node.health_description,
        endpoints=tuple(
            Endpoint(found.ip_address, found.access_config.external_ip or None)
            for found in node.network_endpoints
        ),
        labels=dict(node.labels),
        metadata=dict(node.metadata),
        create_time=node.create_time.isoformat() if node.create_time else "",
        queued_resource=_last(node.queued_resource) or None,
    )


def _tier(scheduling: tpu_v2.SchedulingConfig) -> Tier:
    if scheduling.spot:
        return Tier.SPOT
    if scheduling.preemptible:
        return Tier.PREEMPTIBLE
    return Tier.RESERVED if scheduling.reserved else Tier.ON_DEMAND


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


def parse_operation(operation: Any) -> OperationInfo:
    """A google.longrunning.Operation as data."""
    error = None
    if operation.done and operation.HasField("error"):
        error = parse_status(operation.error)
    return OperationInfo(name=operation.name, done=operation.done, error=error)


def parse_status(status: Any) -> CloudErrorInfo:
    """A google.rpc.Status as data."""
    return CloudErrorInfo(status.code, status.message, tuple(plain_details(status.details)))


def read_operation(answer: Mapping[str, Any]) -> OperationInfo:
    """An operation from its JSON."""
    error = answer.get("error")
    return OperationInfo(
        name=str(answer["name"]),
        done=bool(answer.get("done")),
        error=_read_status(error) if error else None,
    )


def _read_status(error: Mapping[str, Any]) -> CloudErrorInfo:
    """A google.rpc.Status from its JSON."""
    details = tuple(plain_details(error.get("details", ())))
    return CloudErrorInfo(int(error.get("code", 2)), str(error.get("message", "")), details)


BEAT_NAMESPACE = "tpuctl"
_BEAT_KEY = "heartbeat"


def parse_host_beats(answer: tpu_v2.GetGuestAttributesResponse) -> dict[int, str]:
    """The heartbeats that workers published, by worker: one entry per worker, in worker order, as below."""
    beats: dict[int, str] = {}
    for worker, attributes in enumerate(answer.guest_attributes):
        for item in attributes.query_value.items:
            if (item.namespace, item.key) == (BEAT_NAMESPACE, _BEAT_KEY):
                beats[worker] = item.value
    return beats


_HOST_KEY_NAMESPACE = "hostkeys"
_ED25519 = "ssh-ed25519"


def parse_host_keys(answer: tpu_v2.GetGuestAttributesResponse) -> tuple[GuestHostKey, ...]:
    """The ed25519 host keys that workers published; workers without one are left out.

    The answer has one entry per worker, in worker order (gcloud relies on it). Values come as the bare base64
    key or as `ssh-ed25519 AAAA…`.
    """
    keys: list[GuestHostKey] = []
    for worker, attributes in enumerate(answer.guest_attributes):
        values = {(e.namespace, e.key): e.value for e in attributes.query_value.items}
        value = values.get((_HOST_KEY_NAMESPACE, _ED25519), "").strip()
        if not value:
            continue
        bare = re.sub(rf"^{_ED25519}\s+", "", value).split()[0]
        hostname = next((v for (_, key), v in values.items() if key == "hostname"), "")
        keys.append(GuestHostKey(worker, f"{_ED25519} {bare}", hostname))
    return tuple(keys)
