"""The Cloud TPU API of one project: JSON over REST.

google-cloud-tpu's types make and check requests (`requests.py`). Answers are read as plain JSON (`wire.py`)
and not by that library, whose REST transport cannot parse the operations of the real API: their metadata is a
`google.cloud.common.OperationMetadata`, of which it has no descriptor. Reads are retried here for transient
errors; calls that change something are sent once, and the workflow's loop looks before it repeats them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from google.auth.credentials import Credentials

from tpuctl.cloud import nodes, wire
from tpuctl.cloud.errors import translate_change
from tpuctl.cloud.rest import RestClient
from tpuctl.errors import NotFoundError
from tpuctl.model.cloud import (
    GuestHostKey,
    Listing,
    NodeInfo,
    OfferInfo,
    OperationInfo,
    QueuedInfo,
)
from tpuctl.model.disks import DataDisk
from tpuctl.model.resources import CloudResource
from tpuctl.model.slice_spec import SliceSpec

T = TypeVar("T")
LIST_TIMEOUT_S = 60.0
"""The wildcard zone asks every zone of the world (marin-community/marin gives the same call 120 s)."""


class GoogleCloud:
    """Implements `cloud_ports.TpuApi`."""

    def __init__(self, project: str, endpoint: str, credentials: Credentials) -> None:
        self._project = project
        self._rest = RestClient(endpoint, credentials)

    def _parent(self, zone: str) -> str:
        return f"projects/{self._project}/locations/{zone}"

    def list_nodes(self, zone: str = "-") -> Listing[NodeInfo]:
        return self._list(f"list nodes in {_place(zone)}", zone, "nodes", nodes.parse_node)

    def find_node(self, zone: str, name: str) -> NodeInfo | None:
        what = f"read node {name} in {zone}"
        return self._rest.find(f"/v2/{self._parent(zone)}/nodes/{name}", what, nodes.parse_node)

    def create_node(self, node_id: str, spec: SliceSpec) -> OperationInfo:
        from tpuctl.cloud import requests as rendering

        path, body = rendering.create_node(self._parent(spec.zone), node_id, spec)
        return self._change("POST", path, f"create node {node_id} in {spec.zone}", body)

    def find_end(self, _zone: str, _uid: str) -> None:
        return None

    def delete_node(self, zone: str, name: str, _proved: CloudResource | None = None) -> OperationInfo | None:
        """A node is one object, and the API deletes by name alone: what was proved was read right before."""
        return self._delete(f"/v2/{self._parent(zone)}/nodes/{name}", f"delete node {name} in {zone}")

    def update_node(
        self, zone: str, name: str, *, labels: Mapping[str, str], metadata: Mapping[str, str] | None = None
    ) -> OperationInfo:
        full = f"{self._parent(zone)}/nodes/{name}"
        mask = "labels" if metadata is None else "labels,metadata"
        body: dict[str, Any] = {"name": full, "labels": dict(labels)}
        if metadata is not None:
            body["metadata"] = dict(metadata)
        return self._change("PATCH", f"/v2/{full}?updateMask={mask}", f"update node {name} in {zone}", body)

    def list_disk_changes(self, zone: str, name: str) -> Mapping[str, tuple[DataDisk, ...] | None]:
        full = f"{self._parent(zone)}/nodes/{name}"
        found: dict[str, tuple[DataDisk, ...] | None] = {}
        path, what = f"/v2/{self._parent(zone)}/operations", f"list the operations on node {name} in {zone}"
        for page in self._rest.pages(path, what):
            for each in wire.messages(page.get("operations")):
                about = wire.message(each.get("metadata"))
                if (about.get("target"), about.get("verb")) == (full, "update") and not each.get("error"):
                    done = each.get("done") is True
                    after = nodes.parse_data_disks(wire.message(each.get("response")))
                    found[wire.text(each.get("name"))] = after if done else None
        return found

    def set_data_disks(self, zone: str, name: str, disks: Sequence[DataDisk]) -> OperationInfo:
        full = f"{self._parent(zone)}/nodes/{name}"
        listed = [
            {
                "sourceDisk": f"projects/{self._project}/zones/{each.zone}/disks/{each.name}",
                "mode": str(each.mode),
            }
            for each in disks
        ]
        body = {"name": full, **({"dataDisks": listed} if listed else {})}
        what = f"change the data disks of node {name} in {zone}"
        return self._change("PATCH", f"/v2/{full}?updateMask=dataDisks", what, body)

    def list_queued(self, zone: str = "-") -> Listing[QueuedInfo]:
        what = f"list queued resources in {_place(zone)}"
        return self._list(what, zone, "queuedResources", nodes.parse_queued)

    def find_queued(self, zone: str, name: str) -> QueuedInfo | None:
        what = f"read queued resource {name} in {zone}"
        return self._rest.find(f"/v2/{self._parent(zone)}/queuedResources/{name}", what, nodes.parse_queued)

    def create_queued(self, node_id: str, spec: SliceSpec) -> OperationInfo:
        from tpuctl.cloud import requests as rendering

        path, body = rendering.create_queued(self._parent(spec.zone), node_id, spec)
        return self._change("POST", path, f"create queued resource {node_id} in {spec.zone}", body)

    def delete_queued(self, zone: str, name: str) -> OperationInfo | None:
        path = f"/v2/{self._parent(zone)}/queuedResources/{name}?force=true"
        return self._delete(path, f"delete queued resource {name} in {zone}")

    def find_operation(self, name: str) -> OperationInfo | None:
        return self._rest.find(f"/v2/{name}", f"read operation {name}", nodes.parse_operation)

    def list_offers(self, zone: str) -> tuple[OfferInfo, ...]:
        what = f"list the accelerator types of {zone}"
        return self._list(what, zone, "acceleratorTypes", nodes.parse_offer).items

    def list_host_keys(self, zone: str, name: str) -> tuple[GuestHostKey, ...]:
        return nodes.parse_host_keys(self._guest_attributes(zone, name, "host keys", ""))

    def list_host_heartbeats(self, zone: str, name: str) -> Mapping[int, str]:
        found = self._guest_attributes(zone, name, "heartbeats", nodes.BEAT_NAMESPACE + "/")
        return nodes.parse_host_heartbeats(found)

    def _guest_attributes(self, zone: str, name: str, what: str, query: str) -> wire.Json:
        """A POST that changes nothing, of all workers (`[""]`, as gcloud asks): asked again like any read."""
        path = f"/v2/{self._parent(zone)}/nodes/{name}:getGuestAttributes"
        doing = f"read {what} of node {name} in {zone}"
        body = {"queryPath": query, "workerIds": [""]}
        return self._rest.read(doing, lambda: self._rest.change("POST", path, doing, body))

    def _list(self, what: str, zone: str, kind: str, parse: Callable[[wire.Json], T]) -> Listing[T]:
        path = f"/v2/{self._parent(zone)}/{kind}"
        return self._rest.listing(path, kind, what, parse, timeout_s=LIST_TIMEOUT_S)

    def _change(self, method: str, path: str, what: str, body: wire.Json | None = None) -> OperationInfo:
        refused = partial(translate_change, verb=_VERBS[method])
        return nodes.parse_operation(self._rest.change(method, path, what, body, translate=refused))

    def _delete(self, path: str, what: str) -> OperationInfo | None:
        try:
            return self._change("DELETE", path, what)
        except NotFoundError:
            return None


_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


def _place(zone: str) -> str:
    """A zone in words; `-` stands for all of them (https://google.aip.dev/159)."""
    return "all zones" if zone == "-" else zone
