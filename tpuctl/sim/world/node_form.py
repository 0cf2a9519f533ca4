"""What the TPU API fills into nodes and queued resources, and what it leaves out of them.

As recorded: GoogleCloudPlatform/k8s-config-connector, mockgcp/mocktpu/testdata/node/crud/_http.log, and for
queued resources the `describe` that Google's documentation of TPU v6e prints. What is false, empty or zero is
left out by the API's front end already, as proto3's JSON does it; here comes what the service itself adds.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace

from tpuctl.lib.names import region_of
from tpuctl.sim.hosts.backend import HostAddress
from tpuctl.sim.wire.status import Json
from tpuctl.sim.world.iam import PROJECT_NUMBER
from tpuctl.sim.world.identity import DEFAULT_ACCOUNT, SCOPES
from tpuctl.sim.world.paths import ResourcePath
from tpuctl.sim.world.quotas import has_addresses
from tpuctl.sim.world.state import copy_json

TPU_PORT = 8470
_BLOCK_BITS = 20
"""Prefix length of a node's `cidrBlock`: that of the default network's subnetworks."""
_LEFT_OUT_EMPTY = ("labels", "metadata", "tags", "description", "dataDisks")


def fill_node(spec: Json, path: ResourcePath) -> Json:
    """A checked node spec as the node shows it from the beginning."""
    node: Json = {key: copy_json(value) for key, value in spec.items()}
    if node.get("networkConfigs"):
        node["networkConfigs"] = [_network(each, path) for each in node["networkConfigs"]]
    else:
        node["networkConfig"] = _network(node.get("networkConfig") or {}, path)
    account = node.get("serviceAccount") or {}
    node["serviceAccount"] = {
        "email": account.get("email") or DEFAULT_ACCOUNT,
        "scope": list(account.get("scope") or SCOPES),
    }
    for config in ("schedulingConfig", "shieldedInstanceConfig"):
        node[config] = {key: value for key, value in (node.get(config) or {}).items() if value}
    return _leave_out_empty(node)


def change_node(node: Json, fields: Sequence[str], change: Json, addresses: Sequence[HostAddress]) -> None:
    """Changes `node` by an update mask. Of a network only its external addresses can be changed
    (https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes/patch)."""
    for each in fields:
        if each != "networkConfig":
            node[each] = copy_json(change.get(each) or {})
            continue
        network = {key: value for key, value in node["networkConfig"].items() if key != "enableExternalIps"}
        external = (change.get(each) or {}).get("enableExternalIps")
        node[each] = network | ({"enableExternalIps": True} if external else {})
        fill_addresses(node, addresses)
    _leave_out_empty(node)


def _leave_out_empty(node: Json) -> Json:
    """Fields that hold nothing are not shown."""
    for key in _LEFT_OUT_EMPTY:
        if not node.get(key, True):
            del node[key]
    return node


def _network(config: Json, path: ResourcePath) -> Json:
    """Full names for short ones; the subnetwork of an auto mode network is called like it."""
    name = str(config.get("network") or "default")
    network = name if "/" in name else f"projects/{path.project}/global/networks/{name}"
    subnetwork = str(config.get("subnetwork") or network.rpartition("/")[2])
    if "/" not in subnetwork:
        subnetwork = f"projects/{path.project}/regions/{region_of(path.zone)}/subnetworks/{subnetwork}"
    shown = {key: value for key, value in config.items() if value not in (False, "", [])}
    return {**shown, "network": network, "subnetwork": subnetwork}


def fill_addresses(node: Json, addresses: Sequence[HostAddress]) -> None:
    """What a node shows once it has hosts. `accessConfig` is there, and empty, without an external address."""
    external = has_addresses(node)
    node["networkEndpoints"] = [
        {
            "ipAddress": each.internal_ip,
            "port": TPU_PORT,
            "accessConfig": {"externalIp": each.external_ip} if external else {},
        }
        for each in addresses
    ]
    if addresses and not node.get("cidrBlock"):
        first = ipaddress.ip_interface(f"{addresses[0].internal_ip}/{_BLOCK_BITS}")
        node["cidrBlock"] = str(first.network)


def show_spec(spec: Json, node: Json, queued: ResourcePath) -> Json:
    """A node spec of a queued resource: as it was sent, with the project's number where the service names it.

    `bootDisk` and `useTpuVm` are in no discovery document; gcloud shows them all the same.
    """
    numbered = number_project(queued)
    shown = {key: value for key, value in copy_json(node).items() if value not in ("", [], None)}
    empty: Json = {each: {} for each in ("schedulingConfig", "serviceAccount", "shieldedInstanceConfig")}
    return {
        **{key: value for key, value in spec.items() if key not in ("node", "parent")},
        "parent": numbered.location,
        "node": {"bootDisk": {}, **empty, **shown, "queuedResource": numbered.name, "useTpuVm": True},
    }


def number_project(path: ResourcePath) -> ResourcePath:
    """The same with the project's number, as the service writes names of its own accord."""
    return replace(path, project=PROJECT_NUMBER)
