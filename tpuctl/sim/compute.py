"""Compute Engine v1 by REST: projects, zones and regions, and what a TPU project holds besides TPUs.

Lists, creates and deletes disks, snapshots, images and addresses; every other method is refused. Lists are not
filtered by the server: a call with `filter` is refused, not answered wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from tpuctl.sim.compute_state import (
    GLOBAL,
    KINDS,
    ROOT,
    ComputeState,
    Kind,
    Scope,
    attached_disk,
    target,
)
from tpuctl.sim.faults import FaultKind
from tpuctl.sim.kernel import Json
from tpuctl.sim.listing import page_of
from tpuctl.sim.messages import Request, Response, json_response
from tpuctl.sim.paths import ResourcePath
from tpuctl.sim.quotas import Quotas
from tpuctl.sim.status import ApiError, Code, DroppedConnectionError, not_found, unknown_method
from tpuctl.sim.tpu_rest import parse_body
from tpuctl.sim.world import World

PREFIX = "/compute/v1/"
_PROJECT = re.compile(r"projects/([^/]+)")
_PLACE = re.compile(r"projects/([^/]+)/(zones|regions)(?:/([^/]+))?")
_AGGREGATED = re.compile(r"projects/([^/]+)/aggregated/([a-z]+)")
_OPERATION = re.compile(r"projects/([^/]+)/(?:zones/[^/]+|regions/[^/]+|global)/operations/([^/]+)(?:/wait)?")
_RESOURCE = re.compile(r"projects/([^/]+)/(?:(zones|regions)/([^/]+)|global)/([a-zA-Z]+)(?:/([^/]+))?")


class ComputeDoor:
    """Answers every path below /compute/v1; raises ApiError for refusals."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._state = ComputeState(world.options.project, world.clock.now, self._attached)

    def reset(self) -> None:
        self._state.reset()

    def handle(self, request: Request) -> Response:
        path = unquote(request.path).removeprefix(PREFIX)
        read = request.method == "GET"
        if read and (match := _PROJECT.fullmatch(path)):
            return self._project(match.group(1))
        if read and (match := _PLACE.fullmatch(path)):
            self._check_project(match.group(1))
            needed = f"compute.{match.group(2)}.{'get' if match.group(3) else 'list'}"
            self._world.access.check_permission(needed, f"projects/{match.group(1)}")
            return self._places(match.group(2), match.group(3))
        if read and (match := _AGGREGATED.fullmatch(path)):
            self._check_project(match.group(1))
            return json_response(self._aggregated(match.group(2), request))
        if match := _OPERATION.fullmatch(path):
            self._check_project(match.group(1))
            return json_response(self._state.operation(match.group(2)))
        if match := _RESOURCE.fullmatch(path):
            self._check_project(match.group(1))
            scope = Scope(match.group(2), match.group(3)) if match.group(2) else Scope(GLOBAL)
            return json_response(self._resource(request, scope, match.group(4), match.group(5)))
        raise unknown_method(f"{request.method} {request.path}")

    def _check_project(self, project: str) -> None:
        if project != self._world.options.project:
            raise ApiError(Code.PERMISSION_DENIED, f"Required permission for 'projects/{project}'")

    def _project(self, project: str) -> Response:
        self._check_project(project)
        self._world.access.check_permission("compute.projects.get", f"projects/{project}")
        return json_response(
            {
                "kind": "compute#project",
                "id": "1",
                "name": project,
                "commonInstanceMetadata": {
                    "kind": "compute#metadata",
                    "fingerprint": "AAAA",
                    "items": [{"key": k, "value": v} for k, v in sorted(self._world.metadata.items())],
                },
                "quotas": self._world.read_quotas(Quotas.of_project),
                "selfLink": f"{ROOT}/projects/{project}",
            }
        )

    def _places(self, kind: str, name: str | None) -> Response:
        zones = self._world.zones()
        names = zones if kind == "zones" else self._regions()
        items = [self._place(kind, each) for each in names]
        if name is None:
            return json_response({"kind": f"compute#{kind[:-1]}List", "items": items})
        found = [item for item in items if item["name"] == name]
        if not found:
            raise not_found(f"projects/{self._world.options.project}/{kind}/{name}")
        return json_response(found[0])

    def _regions(self) -> list[str]:
        return sorted({zone.rsplit("-", 1)[0] for zone in self._world.zones()})

    def _place(self, kind: str, name: str) -> dict[str, Any]:
        base = f"{ROOT}/projects/{self._world.options.project}"
        place: dict[str, Any] = {"kind": f"compute#{kind[:-1]}", "name": name, "status": "UP", "id": "1"}
        place["selfLink"] = f"{base}/{kind}/{name}"
        if kind == "zones":
            place["region"] = f"{base}/regions/{name.rsplit('-', 1)[0]}"
        else:
            place["quotas"] = self._world.read_quotas(lambda quotas: quotas.of_region(name))
        return place

    # Resources.

    def _aggregated(self, collection: str, request: Request) -> Json:
        """All scopes at once, in pages over the resources; scopes that cannot be read carry a warning."""
        kind = self._kind(collection, "aggregatedList", request)
        self._fault(f"{collection}.aggregatedList", target(self._project_id, kind, Scope("-"), ""))
        dark = {f"zones/{zone}" for zone in self._world.faults.unreachable_zones(self._world.zones())}
        rows = [
            (f"{scope}/{name}", {"scope": scope, "resource": data})
            for scope, name, data in self._state.list_all(kind)
            if scope not in dark
        ]
        page = page_of(rows, _paging(request), "rows")
        items: Json = {str(scope): _empty(scope) for scope in self._scopes(kind)}
        for row in page.pop("rows"):
            items.setdefault(row["scope"], {}).pop("warning", None)
            items[row["scope"]].setdefault(collection, []).append(row["resource"])
        unread = sorted(dark & set(items))
        items.update({scope: _unreachable(scope) for scope in unread})
        answer = {"kind": f"compute#{kind.singular}AggregatedList", "id": f"aggregated/{collection}"}
        return {**answer, "items": items, **({"unreachables": unread} if unread else {}), **page}

    def _scopes(self, kind: Kind) -> list[Scope]:
        scopes = [Scope("zones", zone) for zone in self._world.zones() if "zones" in kind.scopes]
        scopes += [Scope("regions", region) for region in self._regions() if "regions" in kind.scopes]
        return [*scopes, *([Scope(GLOBAL)] if GLOBAL in kind.scopes else [])]

    def _resource(self, request: Request, scope: Scope, collection: str, name: str | None) -> Json:
        verb = {"GET": "get" if name else "list", "POST": "insert", "DELETE": "delete"}.get(request.method, "")
        kind = self._kind(collection, verb, request)
        if str(scope) not in {str(known) for known in self._scopes(kind)}:
            raise not_found(f"projects/{self._project_id}/{scope}")
        if verb == "list":
            return self._list(kind, scope, request)
        if verb == "get" and name:
            return self._state.get(kind, scope, name)
        if verb == "insert" and name is None and collection != "instances":
            body = parse_body(request)
            path = target(self._project_id, kind, scope, str(body.get("name") or ""))
            return self._change(f"{collection}.insert", path, lambda: self._state.insert(kind, scope, body))
        if verb == "delete" and name:
            path = target(self._project_id, kind, scope, name)
            return self._change(f"{collection}.delete", path, lambda: self._state.delete(kind, scope, name))
        raise unknown_method(f"{request.method} {request.path}")

    def _list(self, kind: Kind, scope: Scope, request: Request) -> Json:
        self._fault(f"{kind.collection}.list", target(self._project_id, kind, scope, ""))
        found = self._state.list_all(kind)
        rows = [(name, data) for where, name, data in found if where == str(scope)]
        page = page_of(rows, _paging(request), "items")
        return {"kind": f"compute#{kind.singular}List", "id": f"{scope}/{kind.collection}", **page}

    def _kind(self, collection: str, verb: str, request: Request) -> Kind:
        kind = KINDS.get(collection)
        if kind is None or not verb:
            raise unknown_method(f"{request.method} {request.path}")
        if request.query.get("filter"):
            raise ApiError(Code.UNIMPLEMENTED, "the simulator does not filter lists of Compute Engine")
        return kind

    @property
    def _project_id(self) -> str:
        return self._world.options.project

    def _fault(self, method: str, path: ResourcePath) -> None:
        fault = self._world.faults.take(FaultKind.ERROR, method, path)
        if fault is not None:
            raise ApiError(fault.code, fault.text(path))

    def _change(self, method: str, path: ResourcePath, act: Callable[[], Json]) -> Json:
        try:
            self._fault(method, path)
            answer = act()
        except ApiError as error:
            self._world.journal.record(method, path.name, error.code.name)
            raise
        dropped = self._world.faults.take(FaultKind.DROP, method, path) is not None
        self._world.journal.record(method, path.name, "DROPPED" if dropped else "OK")
        if dropped:
            raise DroppedConnectionError(method)
        return answer

    def _attached(self) -> Mapping[tuple[str, str], list[str]]:
        """Which disks the nodes have as data disks: one user for each of their hosts."""
        found: dict[tuple[str, str], list[str]] = {}
        for node in self._world.snapshot()["nodes"]:
            _, project, _, zone, _, name = node["name"].split("/")
            users = [
                f"{ROOT}/projects/{project}/zones/{zone}/instances/{name}-w-{worker}"
                for worker, _ in enumerate(node.get("networkEndpoints", []))
            ]
            for disk in node.get("dataDisks", []):
                key = attached_disk(str(disk.get("sourceDisk")))
                if key is not None:
                    found.setdefault(key, []).extend(users)
        return found


def _paging(request: Request) -> Json:
    """`maxResults` and `pageToken` in the words of the simulator's lists."""
    size = request.query.get("maxResults", [""])[-1]
    if size and not size.isdecimal():
        raise ApiError(Code.INVALID_ARGUMENT, f"Invalid value for field 'maxResults': '{size}'.")
    return {"pageSize": size, "pageToken": request.query.get("pageToken", [""])[-1]}


def _empty(scope: Scope) -> Json:
    message = f"There are no results for scope '{scope}' on this page."
    data = [{"key": "scope", "value": str(scope)}]
    return {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": data}}


def _unreachable(scope: str) -> Json:
    data = [{"key": "scope", "value": scope}]
    return {"warning": {"code": "UNREACHABLE", "message": f"Scope '{scope}' is unreachable.", "data": data}}
