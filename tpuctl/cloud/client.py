"""The Cloud TPU API of one project, through google-cloud-tpu over REST.

REST is used for every endpoint because one construction (credentials and `api_endpoint`) then serves the real
API and any local one. What v2 cannot say goes to v2alpha1 as JSON (`alpha.py`). Endpoints are always explicit.
Reads are retried here for transient errors; calls that change something are sent once, and the workflow's loop
looks before it repeats them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.api_core.client_options import ClientOptions
from google.auth.credentials import Credentials
from google.cloud import tpu_v2
from google.protobuf.field_mask_pb2 import FieldMask

from tpuctl.cloud import alpha, nodes, queued_resources
from tpuctl.cloud.errors import translate
from tpuctl.cloud.rest import RestClient
from tpuctl.cloud.retry import read
from tpuctl.core.model import (
    GuestHostKey,
    Listing,
    NodeInfo,
    NodeRequest,
    OperationInfo,
    QueuedInfo,
)
from tpuctl.errors import NotFoundError

CALL_TIMEOUT_S = 20.0
"""The library's own default is no timeout at all."""

T = TypeVar("T")


class GoogleCloud:
    """Implements `ports.Cloud`."""

    def __init__(self, project: str, endpoint: str, credentials: Credentials) -> None:
        self._project = project
        self._client = tpu_v2.TpuClient(
            transport="rest",
            credentials=credentials,
            client_options=ClientOptions(api_endpoint=endpoint),
        )
        self._rest = RestClient(endpoint, credentials)

    def _parent(self, zone: str) -> str:
        return f"projects/{self._project}/locations/{zone}"

    def list_nodes(self, zone: str = "-") -> Listing[NodeInfo]:
        found = read(
            f"list nodes in {_place(zone)}",
            lambda: _pages(self._client.list_nodes, tpu_v2.ListNodesRequest(parent=self._parent(zone))),
        )
        items, unreachable = found
        return Listing(tuple(nodes.parse_node(item) for item in items), unreachable)

    def find_node(self, zone: str, name: str) -> NodeInfo | None:
        full = f"{self._parent(zone)}/nodes/{name}"
        found = self._find(f"read node {name} in {zone}", lambda: self._client.get_node(name=full, **_ONCE))
        return None if found is None else nodes.parse_node(found)

    def create_node(self, request: NodeRequest) -> OperationInfo:
        what, parent = f"create node {request.name} in {request.zone}", self._parent(request.zone)
        if alpha.needs_alpha(request):
            return alpha.create_node(self._rest, parent, request, what)
        message = tpu_v2.CreateNodeRequest(parent=parent, node_id=request.name, node=nodes.render_node(request))
        return self._change(what, lambda: self._client.create_node(request=message, **_ONCE))

    def delete_node(self, zone: str, name: str) -> OperationInfo | None:
        full = f"{self._parent(zone)}/nodes/{name}"
        return self._delete(
            f"delete node {name} in {zone}", lambda: self._client.delete_node(name=full, **_ONCE)
        )

    def update_node(
        self, zone: str, name: str, *, labels: Mapping[str, str], metadata: Mapping[str, str] | None = None
    ) -> OperationInfo:
        full = f"{self._parent(zone)}/nodes/{name}"
        node = tpu_v2.Node(name=full, labels=dict(labels), metadata=dict(metadata or {}))
        paths = ["labels"] if metadata is None else ["labels", "metadata"]
        message = tpu_v2.UpdateNodeRequest(node=node, update_mask=FieldMask(paths=paths))
        return self._change(
            f"update node {name} in {zone}", lambda: self._client.update_node(request=message, **_ONCE)
        )

    def list_queued(self, zone: str = "-") -> Listing[QueuedInfo]:
        request = tpu_v2.ListQueuedResourcesRequest(parent=self._parent(zone))
        items, unreachable = read(
            f"list queued resources in {_place(zone)}",
            lambda: _pages(self._client.list_queued_resources, request),
        )
        return Listing(tuple(queued_resources.parse_queued(item) for item in items), unreachable)

    def find_queued(self, zone: str, name: str) -> QueuedInfo | None:
        full = f"{self._parent(zone)}/queuedResources/{name}"
        found = self._find(
            f"read queued resource {name} in {zone}",
            lambda: self._client.get_queued_resource(name=full, **_ONCE),
        )
        return None if found is None else queued_resources.parse_queued(found)

    def create_queued(self, request: NodeRequest) -> OperationInfo:
        what, parent = f"create queued resource {request.name} in {request.zone}", self._parent(request.zone)
        if alpha.needs_alpha(request):
            return alpha.create_queued(self._rest, parent, request, what)
        message = queued_resources.render_create(parent, request)
        return self._change(what, lambda: self._client.create_queued_resource(request=message, **_ONCE))

    def delete_queued(self, zone: str, name: str) -> OperationInfo | None:
        full = f"{self._parent(zone)}/queuedResources/{name}"
        message = tpu_v2.DeleteQueuedResourceRequest(name=full, force=True)
        return self._delete(
            f"delete queued resource {name} in {zone}",
            lambda: self._client.delete_queued_resource(request=message, **_ONCE),
        )

    def find_operation(self, name: str) -> OperationInfo | None:
        """As plain JSON: the library cannot read an operation that v2alpha1 began, whose types it does not
        know."""
        try:
            return nodes.read_operation(self._rest.get(f"/v2/{name}", f"read operation {name}"))
        except NotFoundError:
            return None

    def list_host_keys(self, zone: str, name: str) -> tuple[GuestHostKey, ...]:
        full = f"{self._parent(zone)}/nodes/{name}"
        request = tpu_v2.GetGuestAttributesRequest(name=full, query_path="", worker_ids=[""])
        answer = read(
            f"read host keys of node {name} in {zone}",
            lambda: self._client.get_guest_attributes(request=request, **_ONCE),
        )
        return nodes.parse_host_keys(answer)

    def list_host_beats(self, zone: str, name: str) -> Mapping[int, str]:
        full = f"{self._parent(zone)}/nodes/{name}"
        request = tpu_v2.GetGuestAttributesRequest(
            name=full, query_path=nodes.BEAT_NAMESPACE + "/", worker_ids=[""]
        )
        answer = read(
            f"read heartbeats of node {name} in {zone}",
            lambda: self._client.get_guest_attributes(request=request, **_ONCE),
        )
        return nodes.parse_host_beats(answer)

    def _find(self, what: str, call: Callable[[], T]) -> T | None:
        try:
            return read(what, call)
        except NotFoundError:
            return None

    def _change(self, what: str, call: Callable[[], Any]) -> OperationInfo:
        try:
            return nodes.parse_operation(call().operation)
        except Exception as error:
            raise translate(error, what) from error

    def _delete(self, what: str, call: Callable[[], Any]) -> OperationInfo | None:
        try:
            return self._change(what, call)
        except NotFoundError:
            return None


_ONCE: Mapping[str, Any] = {"timeout": CALL_TIMEOUT_S, "retry": None}


def _pages(method: Callable[..., Any], request: Any) -> tuple[list[Any], frozenset[str]]:
    """All items of a paged list and every location named unreachable on any page."""
    items: list[Any] = []
    unreachable: set[str] = set()
    for page in method(request=request, **_ONCE).pages:
        items.extend(getattr(page, "nodes", None) or getattr(page, "queued_resources", None) or [])
        unreachable.update(location.rsplit("/", 1)[-1] for location in page.unreachable)
    return items, frozenset(unreachable)


def _place(zone: str) -> str:
    """A zone in words; `-` stands for all of them (https://google.aip.dev/159)."""
    return "all zones" if zone == "-" else zone
