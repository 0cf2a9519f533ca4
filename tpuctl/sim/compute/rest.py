"""Compute Engine v1 by REST: projects, zones and regions, and what a TPU project holds besides TPUs.

Everything that it has can be got, and listed with filter, order and pages. Disks, snapshots, images, addresses
and firewall rules can be made and deleted, by operations that take time. Every other method is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from tpuctl.sim.compute.aggregated import aggregated
from tpuctl.sim.compute.bodies import target
from tpuctl.sim.compute.catalog import (
    GLOBAL,
    KINDS,
    LIKE,
    ROOT,
    UPDATED,
    ComputeCatalog,
    Kind,
    Scope,
    find_public_image,
    public_images,
)
from tpuctl.sim.compute.groups import Groups
from tpuctl.sim.compute.instances import Instances
from tpuctl.sim.compute.operations import Planned, Resources
from tpuctl.sim.compute.refusals import absent, already_there, compute_error, invalid
from tpuctl.sim.compute.state import ComputeState
from tpuctl.sim.wire.batch import handle_batch
from tpuctl.sim.wire.fields import FieldsError, shaped
from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.payload import load_types, parse_body, read_message, read_query
from tpuctl.sim.wire.status import (
    ApiError,
    Code,
    DroppedConnectionError,
    Json,
    invalid_argument,
    unknown_method,
)
from tpuctl.sim.world.faults import Fault, FaultKind
from tpuctl.sim.world.iam import COMPUTE, PROJECT_NUMBER
from tpuctl.sim.world.listing import page_of
from tpuctl.sim.world.paths import ResourcePath
from tpuctl.sim.world.quotas import Quotas
from tpuctl.sim.world.world import World

DEFAULT_NETWORK = "default"
PREFIXES = tuple(f"/compute/{version}/" for version in ("v1", "beta", "alpha"))
"""`gcloud alpha compute tpus tpu-vm ssh` reads the project by alpha. Answers are those of v1 in all."""
BATCH = "/batch/compute/v1"
MAX_RESULTS = 500
Route = tuple[str, re.Pattern[str], Callable[[Request, re.Match[str]], Json]]
"""A verb (empty for any), a path behind the version, and what answers it."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PROJECT = re.compile(r"projects/([^/]+)")
_PLACE = re.compile(r"projects/([^/]+)/(zones|regions)(?:/([^/]+))?")
_AGGREGATED = re.compile(r"projects/([^/]+)/aggregated/([a-zA-Z]+)")
_USABLE = re.compile(r"projects/([^/]+)/aggregated/subnetworks/listUsable")
_WAIT = re.compile(r"projects/([^/]+)/(?:(zones|regions)/([^/]+)|global)/operations/([^/]+)/wait")
_VERB = re.compile(r"projects/([^/]+)/(?:(zones|regions)/([^/]+)|global)/([a-zA-Z]+)/([^/]+)/([a-zA-Z]+)")
_RESOURCE = re.compile(r"projects/([^/]+)/(?:(zones|regions)/([^/]+)|global)/([a-zA-Z]+)(?:/([^/]+))?")
_PUBLIC_IMAGES = re.compile(r"projects/([a-z0-9-]+-(?:cloud|images))/global/images(?:/(family/)?([^/]+))?")
"""Google's own projects, which `gcloud compute images list` asks too: all are empty but that of TPU images."""
_FAMILY = re.compile(r"projects/([^/]+)/global/images/family/([^/]+)")


class ComputeApi:
    """Answers every path below `PREFIXES` and batches of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._project_id = world.options.project
        self._types = load_types("compute.v1")
        self._catalog = ComputeCatalog(
            self._project_id,
            world.catalog.zones(),
            world.catalog.generations,
            self._has_network,
            world.kernel.hosts.address_range,
        )
        self._state = ComputeState(
            world, self._attached, lambda: self._catalog.firewalls(internal=world.options.internal_rule)
        )
        world.kernel.find_disk = self._state.find_disk
        self.instances = Instances(world, self._state, self._has_type)
        self.instances.life.on_change.append(lambda _: world.give_turns())
        groups = Groups(world, self._state, self.instances)
        self._owners: Mapping[str, Resources] = {
            "instances": self.instances,
            **dict.fromkeys(("instanceGroupManagers", "instanceGroups"), groups),
        }
        self._readers: Mapping[str, Callable[[Scope, str, Json], Json]] = {
            "instanceGroupManagers.listErrors": groups.list_errors,
            "instanceGroupManagers.listManagedInstances": groups.list_managed,
            "instanceGroups.listInstances": groups.list_instances,
            "instances.getGuestAttributes": self.instances.guest_attributes,
        }
        self._routes: tuple[Route, ...] = (
            ("GET", _PROJECT, lambda *_: self._project()),
            ("GET", _PLACE, lambda request, found: self._places(found[2], found[3], request)),
            ("GET", _USABLE, lambda request, _: self._usable(request)),
            ("GET", _AGGREGATED, lambda request, found: self._aggregated(found[2], request)),
            ("POST", _WAIT, lambda _, found: self._state.operations.wait(_scope(found), found[4])),
            ("GET", _FAMILY, lambda request, found: self._image_of_family(request, found[0], found[2])),
            ("", _VERB, lambda request, found: self._verb(request, _scope(found), *found.group(4, 5, 6))),
            ("", _RESOURCE, lambda request, found: self._resource(request, _scope(found), found[4], found[5])),
        )

    def close(self) -> None:
        self.instances.close()

    def reset(self) -> None:
        for each in (*self._owners.values(), self._state):
            each.reset()

    def _owner(self, kind: Kind) -> Resources:
        """Who keeps the resources of a collection."""
        return self._owners.get(kind.collection, self._state)

    def handle(self, request: Request) -> Response:
        """Refusals become answers; only DroppedConnectionError passes."""
        try:
            if request.path == BATCH and request.method == "POST":
                return handle_batch(request, self.handle)
            self._world.access.check_token()
            self._world.access.check_service(COMPUTE)
            return json_response(self._shown(request, self._answer(request)))
        except ApiError as error:
            return compute_error(error)

    def _shown(self, request: Request, answer: Json) -> Json:
        """In the form that was asked for."""
        name = str(answer.get("kind", "")).removeprefix("compute#")
        singular = name.removesuffix("List")
        message = next((each.message for each in KINDS.values() if each.singular == singular), "")
        types = self._types if message else None
        try:
            shown: Json = shaped(request, answer, types, message, "" if singular == name else "items")
        except FieldsError as error:
            raise invalid_argument(f"Invalid field selection {error}") from None
        return shown

    def _answer(self, request: Request) -> Json:
        path = unquote(request.path).split("/", 3)[3]
        if request.method == "GET" and (match := _PUBLIC_IMAGES.fullmatch(path)):
            return self._public_images(request, path, *match.groups())
        for verb, pattern, answer in self._routes:
            if verb in ("", request.method) and (match := pattern.fullmatch(path)):
                self._check_project(match.group(1))
                return answer(request, match)
        raise unknown_method(f"{request.method} {request.path}")

    def _verb(self, request: Request, scope: Scope, collection: str, name: str, verb: str) -> Json:
        """Answers a method of a resource that is no get, insert or delete."""
        kind, method = self._kind(collection, request), f"{collection}.{verb}"
        if verb in kind.changes and request.method in ("POST", "PATCH"):
            return self._changed(request, kind, scope, name, verb)
        if kind.reads.get(verb) != request.method:
            raise unknown_method(f"{request.method} {request.path}")
        path = target(self._project_id, kind, scope, name)
        query = self._query(kind.method(scope, verb), request)
        self._admit(kind, verb, path)
        return self._readers[method](scope, name, query)

    def _changed(self, request: Request, kind: Kind, scope: Scope, name: str, verb: str) -> Json:
        """Answers a method that changes a resource and is no insert or delete."""
        method = f"{kind.collection}.{verb}"
        if verb not in kind.changes:
            raise unknown_method(f"{request.method} {request.path}")
        query = self._query(kind.method(scope, verb), request)
        message = kind.changes[verb]
        body = read_message(self._types, message, parse_body(request), "resource") if message else {}
        if method == "disks.update":
            paths = query.pop("paths", None) or []
            if len(paths) != 1 or paths[0] not in UPDATED:
                raise unknown_method(f"{method} of anything but one of {', '.join(UPDATED)}")
            body = {key: value for key, value in body.items() if key == paths[0]}
        body |= {key: query.pop(key) for key in kind.parameters.get(verb, ()) if key in query}
        return self._change(verb, kind, scope, query, {**body, "resource": name})

    def _check_project(self, project: str) -> None:
        if project not in (self._project_id, PROJECT_NUMBER):
            raise ApiError(Code.PERMISSION_DENIED, f"Required permission for 'projects/{project}'")

    def _query(self, method: str, request: Request) -> Json:
        """The query parameters of a method that the API has; `maxResults` as `pageSize`."""
        method = LIKE.get(method, method)
        if method not in self._types.queries:
            raise unknown_method(f"{request.method} {request.path}")
        query = read_query(self._types, method, request.query)
        size = query.pop("maxResults", 0)
        if size > MAX_RESULTS:
            raise invalid("maxResults", size, f"Values must be between 0 and {MAX_RESULTS}.")
        return {**query, "pageSize": size}

    def _project(self) -> Json:
        self._world.access.check_permission("compute.projects.get", f"projects/{self._project_id}")
        quotas = [*self._world.read_quotas(Quotas.of_project), *self._state.quotas()]
        return self._catalog.project(self._world.metadata, quotas)

    # Places.

    def _places(self, kind: str, name: str | None, request: Request) -> Json:
        verb = "get" if name else "list"
        self._world.access.check_permission(f"compute.{kind}.{verb}", f"projects/{self._project_id}")
        query = self._query(f"{kind}.{verb}", request)
        names = self._world.catalog.zones() if kind == "zones" else self._catalog.regions()
        if name is None:
            rows = [(each, self._place(kind, each)) for each in names]
            page = page_of(rows, query, "items")
            return {"kind": f"compute#{kind[:-1]}List", "id": f"projects/{self._project_id}/{kind}", **page}
        if name not in names:
            raise absent(f"projects/{self._project_id}/{kind}/{name}")
        return self._place(kind, name)

    def _place(self, kind: str, name: str) -> Json:
        place = self._catalog.place(kind, name)
        if kind == "regions":
            hosts = self._world.read_quotas(lambda quotas: quotas.of_region(name))
            place["quotas"] = [*hosts, *self._state.quotas(name)]
        return place

    # Images.

    def _public_images(self, request: Request, path: str, project: str, by_family: str, name: str) -> Json:
        """Those of one of Google's projects, or one of them."""
        if not name:
            query = self._query("images.list", request)
            page = page_of([(each["name"], each) for each in public_images(project)], query, "items")
            return {"kind": "compute#imageList", "id": path, "selfLink": f"{ROOT}/{path}", **page}
        found = find_public_image(project, by_family, name)
        if found is None:
            raise absent(path)
        return found

    def _image_of_family(self, request: Request, path: str, family: str) -> Json:
        """The newest image of a family of the project."""
        self._query("images.getFromFamily", request)
        here = target(self._project_id, KINDS["images"], Scope(GLOBAL), family)
        self._check_permission(KINDS["images"], "getFromFamily", here)
        found = self._state.find_image(path)
        if found is None:
            raise absent(path)
        return found

    # Resources.

    def _rows(self, kind: Kind) -> list[tuple[str, str, Json]]:
        """(scope, name, resource) of a collection, everywhere."""
        if kind.collection == "operations":
            return self._state.operations.rows()
        if kind.collection == "firewalls" and not self._has_network(DEFAULT_NETWORK):
            return []
        kept = kind.message or kind.collection in self._owners
        return [*self._catalog.rows(kind), *(self._owner(kind).rows(kind) if kept else ())]

    def _aggregated(self, collection: str, request: Request) -> Json:
        """All scopes at once, in pages over the resources; scopes that cannot be read carry a warning."""
        kind = self._kind(collection, request)
        query = self._query(kind.method(None, "aggregatedList"), request)
        everywhere = target(self._project_id, kind, Scope("-"), "")
        self._admit(kind, "aggregatedList", everywhere)
        dark = {f"zones/{zone}" for zone in self._world.faults.unreachable_zones(self._world.catalog.zones())}
        found = [row for row in self._rows(kind) if row[0] not in dark]
        scopes = [str(scope) for scope in self._catalog.scopes(kind)]
        return aggregated(f"projects/{self._project_id}", kind, found, dark, scopes, query)

    def _usable(self, request: Request) -> Json:
        query = self._query("subnetworks.listUsable", request)
        rows = [(each["subnetwork"], each) for each in self._catalog.usable_subnetworks()]
        here = f"projects/{self._project_id}/aggregated/subnetworks/listUsable"
        shown = {"kind": "compute#usableSubnetworksAggregatedList", "id": here, "selfLink": f"{ROOT}/{here}"}
        return {**shown, **page_of(rows, query, "items")}

    def _resource(self, request: Request, scope: Scope, collection: str, name: str | None) -> Json:
        verb = {"GET": "get" if name else "list", "POST": "insert", "DELETE": "delete"}.get(request.method, "")
        kind = self._kind(collection, request)
        if request.method == "PATCH" and name:
            return self._changed(request, kind, scope, name, "patch" if "patch" in kind.changes else "update")
        made = verb in ("insert", "delete")
        if not verb or (made and not kind.message) or (verb == ("insert" if name else "delete")):
            raise unknown_method(f"{request.method} {request.path}")
        query = self._query(kind.method(scope, verb), request)
        if str(scope) not in {str(known) for known in self._catalog.scopes(kind)}:
            field = scope.kind.removesuffix("s")
            raise invalid(field, scope.name, f"Unknown {field}.")
        if verb == "list":
            return self._list(kind, scope, query)
        if verb == "get":
            self._check_permission(kind, "get", target(self._project_id, kind, scope, name or ""))
            found = [row[2] for row in self._rows(kind) if row[:2] == (str(scope), name)]
            if not found:
                raise absent(f"projects/{self._project_id}/{scope}/{collection}/{name}")
            return found[0]
        body = read_message(self._types, kind.message, parse_body(request), "resource") if not name else {}
        return self._change(verb, kind, scope, query, {"name": name, **body})

    def _list(self, kind: Kind, scope: Scope, query: Json) -> Json:
        path = target(self._project_id, kind, scope, "")
        self._admit(kind, "list", path)
        rows = [(name, data) for where, name, data in self._rows(kind) if where == str(scope)]
        page = page_of(rows, query, "items")
        here = f"projects/{self._project_id}/{scope}/{kind.collection}"
        shown = {"kind": f"compute#{kind.singular}List", "id": here, "selfLink": f"{ROOT}/{here}"}
        return {**shown, **page}

    def _kind(self, collection: str, request: Request) -> Kind:
        if collection not in KINDS:
            raise unknown_method(f"{request.method} {request.path}")
        return KINDS[collection]

    def _check_permission(self, kind: Kind, verb: str, path: ResourcePath) -> None:
        self._world.access.check_permission(kind.permission(verb), path.name)

    def _admit(self, kind: Kind, verb: str, path: ResourcePath) -> None:
        """Raises ApiError for who may not, and for a fault that was planned."""
        self._check_permission(kind, verb, path)
        fault = self._take(FaultKind.ERROR, f"{kind.collection}.{verb}", path)
        if fault is not None:
            raise fault.error(path)

    # Changes.

    def _take(self, kind: FaultKind, method: str, path: ResourcePath, *, late: bool = False) -> Fault | None:
        return self._world.faults.take(kind, method, path, in_operation=late)

    def _change(self, verb: str, kind: Kind, scope: Scope, query: Json, body: Json) -> Json:
        """Inserts or deletes once per `requestId`, with the faults that were planned for it."""
        method = f"{kind.collection}.{verb}"
        path = target(self._project_id, kind, scope, str(body.get("resource") or body.get("name") or ""))
        unsupported = sorted(key for key in set(query) - {"requestId", "pageSize"} if query[key])
        if unsupported:
            raise unknown_method(f"{method} with {unsupported[0]}")

        def act() -> Json:
            self._admit(kind, verb, path)
            slow = self._take(FaultKind.SLOW_OPERATION, method, path)
            fault = self._take(FaultKind.ERROR, method, path, late=True)
            planned = Planned(slow, None if fault is None else ApiError(fault.code, fault.text(path)))
            asked = {key: value for key, value in body.items() if key != "resource"}
            if verb == "createSnapshot":
                return self._state.create_snapshot(scope, path.id, asked, planned)
            if verb in kind.changes:
                return self._owner(kind).change(verb, kind, scope, path.id, asked, planned)
            if kind.collection == "networks":
                return self._make_network(verb, scope, path.id, asked, planned)
            if verb == "insert":
                return self._owner(kind).insert(kind, scope, body, planned)
            return self._owner(kind).delete(kind, scope, path.id, planned)

        request_id = str(query.get("requestId") or "")
        if request_id and (not _UUID.fullmatch(request_id) or not request_id.strip("0-")):
            raise invalid("requestId", request_id, "It must be a valid UUID other than zero.")
        try:
            answer = self._state.operations.once(method, request_id, act)
        except ApiError as error:
            self._world.journal.record(method, path.name, error.code.name)
            raise
        dropped = self._take(FaultKind.DROP, method, path) is not None
        self._world.journal.record(method, path.name, "DROPPED" if dropped else "OK")
        if dropped:
            raise DroppedConnectionError(method)
        return answer

    def _has_type(self, zone: str, machine_type: str) -> bool:
        rows = self._catalog.rows(KINDS["machineTypes"])
        return (f"zones/{zone}", machine_type) in {row[:2] for row in rows}

    def _has_network(self, name: str) -> bool:
        return name == DEFAULT_NETWORK and not self._world.faults.standing(FaultKind.NO_NETWORK, name)

    def _make_network(self, verb: str, scope: Scope, name: str, body: Json, planned: Planned) -> Json:
        """The default network in auto mode, where the project has none; others are not simulated."""
        if verb != "insert" or name != DEFAULT_NETWORK or not body.get("autoCreateSubnetworks"):
            raise unknown_method(f"networks.{verb} of anything but {DEFAULT_NETWORK} in auto mode")
        path = f"projects/{self._project_id}/{scope}/networks/{name}"
        if self._has_network(name):
            raise already_there(path)
        if planned.error is None:
            for fault in self._world.faults.standing(FaultKind.NO_NETWORK, name):
                self._world.faults.remove(fault.id)
        return self._state.make_network(scope, {"selfLink": f"{ROOT}/{path}", "id": "1000"}, planned)

    def _attached(self) -> Mapping[tuple[str, str], Json]:
        """What disks show of the nodes that have them as data disks: one user for each of their hosts."""
        kernel = self._world.kernel
        with kernel.lock:
            found: dict[tuple[str, str], Json] = {key: dict(times) for key, times in kernel.disk_times.items()}
            for held in (each for machine in kernel.machines() for each in machine.attachments()):
                users = found.setdefault(held.disk, {}).setdefault("users", [])
                users.extend(f"{ROOT}/{user}" for user in held.users)
            return found


def _scope(match: re.Match[str]) -> Scope:
    return Scope(match.group(2), match.group(3)) if match.group(2) else Scope(GLOBAL)
