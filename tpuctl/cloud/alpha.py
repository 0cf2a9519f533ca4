"""Requests that only v2alpha1 takes: flex-start with its run duration, and sizes of boot disks.

google-cloud-tpu 1.28 has none of these fields, neither for v2 nor for v2alpha1, so a request is rendered for v2
and then completed as JSON, by the names of the v2alpha1 discovery document (revision 20261001). Reading needs
no v2alpha1: v2 shows the same resources.
"""

from __future__ import annotations

from typing import Any

from google.cloud import tpu_v2
from google.protobuf.json_format import MessageToDict

from tpuctl.cloud.nodes import read_operation, render_node
from tpuctl.cloud.queued_resources import render_create
from tpuctl.cloud.rest import RestClient
from tpuctl.core.model import NodeRequest, OperationInfo, Tier

Body = dict[str, Any]


def needs_alpha(request: NodeRequest) -> bool:
    """Whether v2 cannot say it."""
    return request.tier is Tier.FLEX_START or request.boot_disk_gib is not None


def create_node(rest: RestClient, parent: str, request: NodeRequest, what: str) -> OperationInfo:
    """Asks for a node. Raises subclasses of TpuctlError."""
    body = _node(_to_json(tpu_v2.Node.pb(render_node(request))), request)
    return read_operation(rest.change("POST", f"/v2alpha1/{parent}/nodes?nodeId={request.name}", what, body))


def create_queued(rest: RestClient, parent: str, request: NodeRequest, what: str) -> OperationInfo:
    """Asks for a queued resource. Raises subclasses of TpuctlError."""
    body = render_queued(parent, request)
    path = f"/v2alpha1/{parent}/queuedResources?queuedResourceId={request.name}"
    return read_operation(rest.change("POST", path, what, body))


def render_queued(parent: str, request: NodeRequest) -> Body:
    """The queued resource as v2alpha1 wants it."""
    body = _to_json(tpu_v2.QueuedResource.pb(render_create(parent, request).queued_resource))
    for spec in body["tpu"]["nodeSpec"]:
        if "multisliceParams" in spec:
            spec["multiNodeParams"] = spec.pop("multisliceParams")
        spec["node"] = _node(spec["node"], request)
    if request.tier is Tier.FLEX_START:
        body["provisioningModel"] = "FLEX_START"
    if request.run_duration_s is not None:
        body["runDuration"] = {"maxRunDuration": f"{request.run_duration_s:g}s"}
    return body


def _node(body: Body, request: NodeRequest) -> Body:
    if request.boot_disk_gib is not None:
        body["bootDiskConfig"] = {"diskSizeGb": str(request.boot_disk_gib)}
    return body


def _to_json(message: Any) -> Body:
    found: Body = MessageToDict(message)
    return found
