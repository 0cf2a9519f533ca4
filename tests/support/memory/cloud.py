"""The `Cloud` port over a simulated world in the same process: no sockets, and the product's own translations.

Requests are rendered and answers parsed by `tpuctl.cloud`, refusals translated by it, so that only HTTP is left
out. What was read is remembered as long as nothing changed in the world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import requests
from google.api_core import exceptions

from tpuctl.cloud import nodes
from tpuctl.cloud import requests as rendering
from tpuctl.cloud.errors import translate, translate_change
from tpuctl.cloud.retry import of_read
from tpuctl.engine.ports import Clock
from tpuctl.errors import NotFoundError, TransientError
from tpuctl.model.cloud import (
    GuestHostKey,
    Listing,
    NodeInfo,
    OfferInfo,
    OperationInfo,
    QueuedInfo,
)
from tpuctl.model.disks import DataDisk
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.sim.wire.status import HTTP_STATUS, ApiError, DroppedConnectionError, Json
from tpuctl.sim.world.world import World

READ_TRIES = 4
READ_PAUSE_S = 0.5

T = TypeVar("T")
Info = TypeVar("Info", NodeInfo, QueuedInfo)


class _Body:
    """What `requests` would give for a refusal."""

    def __init__(self, data: Json) -> None:
        self._data = data

    def json(self) -> Json:
        return self._data


class ParsedLists:
    """Parsed resources by name, kept while their JSON stays the same; and whole answers, kept while `changes`
    (called before each) stays the same and is not None."""

    def __init__(self, changes: Callable[[], int | None] = lambda: None) -> None:
        self._changes = changes
        self._parsed: dict[str, tuple[Json, Any]] = {}
        self._lists: dict[tuple[str, str], tuple[int, Any]] = {}

    def parse(self, data: Json, parse: Callable[[Json], T]) -> T:
        known = self._parsed.get(data["name"])
        if known is not None and known[0] == data:
            found: T = known[1]
            return found
        fresh = parse(data)
        self._parsed[data["name"]] = (data, fresh)
        return fresh

    def list(self, kind: str, zone: str, read: Callable[[], T]) -> T:
        now = self._changes()
        known = self._lists.get((kind, zone))
        if now is not None and known is not None and known[0] == now:
            found: T = known[1]
            return found
        answer = read()
        if now is not None:
            self._lists[kind, zone] = (now, answer)
        return answer


class WorldCloud:
    """Implements `ports.Cloud`. `lists` may be shared by several clients of one world; `beat` lets
    hosts in memory publish their heartbeats before they are read."""

    def __init__(
        self,
        world: World,
        clock: Clock,
        lists: ParsedLists | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._world = world
        self._clock = clock
        self._project = world.options.project
        self._lists = lists or ParsedLists()
        self._beat = beat

    def list_nodes(self, zone: str = "-") -> Listing[NodeInfo]:
        return self._list("nodes", "ListNodes", zone, nodes.parse_node)

    def list_queued(self, zone: str = "-") -> Listing[QueuedInfo]:
        return self._list("queuedResources", "ListQueuedResources", zone, nodes.parse_queued)

    def find_node(self, zone: str, name: str) -> NodeInfo | None:
        full = self._name(zone, "nodes", name)
        return self._find(f"node {name} in {zone}", "GetNode", full, nodes.parse_node)

    def find_queued(self, zone: str, name: str) -> QueuedInfo | None:
        full = self._name(zone, "queuedResources", name)
        parse = nodes.parse_queued
        return self._find(f"queued resource {name} in {zone}", "GetQueuedResource", full, parse)

    def create_node(self, node_id: str, spec: SliceSpec) -> OperationInfo:
        path, body = rendering.create_node(self._parent(spec.zone), node_id, spec)
        return self._create(f"create node {node_id} in {spec.zone}", path, body)

    def create_queued(self, node_id: str, spec: SliceSpec) -> OperationInfo:
        path, body = rendering.create_queued(self._parent(spec.zone), node_id, spec)
        return self._create(f"create queued resource {node_id} in {spec.zone}", path, body)

    def _create(self, what: str, path: str, body: Json) -> OperationInfo:
        url = urlsplit(path)
        _, version, parent = url.path.split("/", 2)
        parent, collection = parent.rsplit("/", 1)
        method, field = _CREATES[collection]
        request = {"parent": parent, **dict(parse_qsl(url.query)), field: body}
        return nodes.parse_operation(self._change(what, method, request, version))

    def delete_node(self, zone: str, name: str) -> OperationInfo | None:
        full = self._name(zone, "nodes", name)
        return self._delete(f"delete node {name} in {zone}", "DeleteNode", {"name": full})

    def update_node(
        self, zone: str, name: str, *, labels: Mapping[str, str], metadata: Mapping[str, str] | None = None
    ) -> OperationInfo:
        node: Json = {"name": self._name(zone, "nodes", name), "labels": dict(labels)}
        request: Json = {"node": node, "updateMask": "labels"}
        if metadata is not None:
            node["metadata"] = dict(metadata)
            request["updateMask"] = "labels,metadata"
        return nodes.parse_operation(self._change(f"update node {name} in {zone}", "UpdateNode", request))

    def set_data_disks(self, zone: str, name: str, disks: Sequence[DataDisk]) -> OperationInfo:
        listed = [
            {
                "sourceDisk": f"projects/{self._project}/zones/{each.zone}/disks/{each.name}",
                "mode": str(each.mode),
            }
            for each in disks
        ]
        node: Json = {"name": self._name(zone, "nodes", name), "dataDisks": listed}
        request: Json = {"node": node, "updateMask": "dataDisks"}
        what = f"change the data disks of node {name} in {zone}"
        return nodes.parse_operation(self._change(what, "UpdateNode", request))

    def list_disk_changes(self, zone: str, name: str) -> Mapping[str, tuple[DataDisk, ...] | None]:
        found: dict[str, tuple[DataDisk, ...] | None] = {}
        request: Json = {"name": self._parent(zone)}
        what = f"list the operations on node {name} in {zone}"
        while True:
            page = self._read(what, "ListOperations", request)
            for each in page.get("operations", ()):
                about = each.get("metadata", {})
                ours = about.get("target") == self._name(zone, "nodes", name) and about.get("verb") == "update"
                if ours and not each.get("error"):
                    done = each.get("done") is True
                    found[each["name"]] = nodes.parse_data_disks(each.get("response", {})) if done else None
            if not page.get("nextPageToken"):
                return found
            request = {**request, "pageToken": page["nextPageToken"]}

    def delete_queued(self, zone: str, name: str) -> OperationInfo | None:
        full = self._name(zone, "queuedResources", name)
        request = {"name": full, "force": "true"}
        return self._delete(f"delete queued resource {name} in {zone}", "DeleteQueuedResource", request)

    def find_operation(self, name: str) -> OperationInfo | None:
        return self._find(f"operation {name}", "GetOperation", name, nodes.parse_operation)

    def list_offers(self, zone: str) -> tuple[OfferInfo, ...]:
        what = f"list the accelerator types of {zone}"
        answer = self._read(what, "ListAcceleratorTypes", {"parent": self._parent(zone)})
        return tuple(nodes.parse_offer(each) for each in answer["acceleratorTypes"])

    def list_host_keys(self, zone: str, name: str) -> tuple[GuestHostKey, ...]:
        request = {"name": self._name(zone, "nodes", name), "queryPath": "", "workerIds": [""]}
        answer = self._read(f"read host keys of node {name} in {zone}", "GetGuestAttributes", request)
        return nodes.parse_host_keys(answer)

    def list_host_heartbeats(self, zone: str, name: str) -> Mapping[int, str]:
        self._beat()
        path = nodes.BEAT_NAMESPACE + "/"
        request = {"name": self._name(zone, "nodes", name), "queryPath": path, "workerIds": [""]}
        answer = self._read(f"read heartbeats of node {name} in {zone}", "GetGuestAttributes", request)
        return nodes.parse_host_heartbeats(answer)

    def _parent(self, zone: str) -> str:
        return f"projects/{self._project}/locations/{zone}"

    def _name(self, zone: str, collection: str, name: str) -> str:
        return f"{self._parent(zone)}/{collection}/{name}"

    def _list(self, key: str, method: str, zone: str, parse: Callable[[Json], Info]) -> Listing[Info]:
        def read() -> Listing[Info]:
            rows: list[Json] = []
            unreachable: set[str] = set()
            request: Json = {"parent": self._parent(zone)}
            while True:
                page = self._read(f"list {key} in {zone}", method, request)
                rows += page.get(key, ())
                unreachable.update(each.rsplit("/", 1)[-1] for each in page.get("unreachable", ()))
                if not page.get("nextPageToken"):
                    break
                request = {**request, "pageToken": page["nextPageToken"]}
            return Listing(tuple(self._lists.parse(row, parse) for row in rows), frozenset(unreachable))

        return self._lists.list(key, zone, read)

    def _change(self, what: str, method: str, request: Json, version: str = "v2") -> Json:
        verb = _VERBS.get(method[:6])
        try:
            return self._world.call(method, request, version)
        except ApiError as error:
            said = _as_google_says(error)
            raise (translate_change(said, what, verb) if verb else of_read(translate(said, what))) from error
        except DroppedConnectionError as error:
            raise translate(requests.ConnectionError("Remote end closed connection"), what) from error

    def _read(self, what: str, method: str, request: Json) -> Json:
        """Like a change, but asked again after passing trouble."""
        for remaining in reversed(range(READ_TRIES)):
            try:
                return self._change(what, method, request)
            except TransientError:
                if remaining == 0:
                    raise
                self._clock.sleep(READ_PAUSE_S * 2 ** (READ_TRIES - 1 - remaining))
        raise AssertionError("unreachable")

    def _find(self, what: str, method: str, name: str, parse: Callable[[Json], T]) -> T | None:
        def read() -> T | None:
            try:
                found = self._read(what, method, {"name": name})
            except NotFoundError:
                return None
            return self._lists.parse(found, parse)

        if self._world._kernel.hidden:  # tests hide nodes from one moment to the next, by no call
            return read()
        return self._lists.list(method, name, read)

    def _delete(self, what: str, method: str, request: Json) -> OperationInfo | None:
        try:
            return nodes.parse_operation(self._change(what, method, request))
        except NotFoundError:
            return None


_VERBS = {"Create": "create", "Update": "patch", "Delete": "delete"}
_CREATES = {
    "nodes": ("CreateNode", "node"),
    "queuedResources": ("CreateQueuedResource", "queuedResource"),
}


def _as_google_says(error: ApiError) -> exceptions.GoogleAPICallError:
    body = error.to_http_body()
    return exceptions.from_http_status(  # type: ignore[no-untyped-call,no-any-return]
        HTTP_STATUS[error.code],
        error.message,
        details=body["error"].get("details", ()),
        response=_Body(body),
    )
