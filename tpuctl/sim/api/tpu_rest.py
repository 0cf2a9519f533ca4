"""The Cloud TPU API by REST: /v2, /v2alpha1, and what /v1 reads.

The routes are those of google-cloud-tpu 1.28 (`google.api.http` options of its REST transport), plus the
methods that only v2alpha1 and v1 have (their discovery documents, revision 20261001).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from urllib.parse import unquote

from tpuctl.sim.wire.fields import FieldsError, shaped
from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.payload import ApiTypes, load_types, parse_body, read_message, read_query, snake
from tpuctl.sim.wire.status import ApiError, Code, Json, unknown_method
from tpuctl.sim.world.world import World


def _place(param: str) -> str:
    return f"{{{param}=projects/*/locations/*}}"


def _one(collection: str, param: str = "name") -> str:
    return f"{{{param}=projects/*/locations/*/{collection}/*}}"


def _all(collection: str) -> str:
    return f"{_place('parent')}/{collection}"


COMMON_ROUTES = (
    ("GET", "{name=projects/*}/locations", "ListLocations", None),
    ("GET", _place("name"), "GetLocation", None),
    ("POST", _place("parent") + ":generateServiceIdentity", "GenerateServiceIdentity", "*"),
    ("GET", _all("nodes"), "ListNodes", None),
    ("POST", _all("nodes"), "CreateNode", "node"),
    ("GET", _one("nodes"), "GetNode", None),
    ("DELETE", _one("nodes"), "DeleteNode", None),
    ("PATCH", _one("nodes", "node.name"), "UpdateNode", "node"),
    ("POST", _one("nodes") + ":start", "StartNode", "*"),
    ("POST", _one("nodes") + ":stop", "StopNode", "*"),
    ("POST", _one("nodes") + ":getGuestAttributes", "GetGuestAttributes", "*"),
    ("GET", _all("queuedResources"), "ListQueuedResources", None),
    ("POST", _all("queuedResources"), "CreateQueuedResource", "queuedResource"),
    ("GET", _one("queuedResources"), "GetQueuedResource", None),
    ("DELETE", _one("queuedResources"), "DeleteQueuedResource", None),
    ("POST", _one("queuedResources") + ":reset", "ResetQueuedResource", "*"),
    ("GET", _all("acceleratorTypes"), "ListAcceleratorTypes", None),
    ("GET", _one("acceleratorTypes"), "GetAcceleratorType", None),
    ("GET", _all("runtimeVersions"), "ListRuntimeVersions", None),
    ("GET", _one("runtimeVersions"), "GetRuntimeVersion", None),
    ("GET", _place("name") + "/operations", "ListOperations", None),
    ("GET", _one("operations"), "GetOperation", None),
    ("DELETE", _one("operations"), "DeleteOperation", None),
    ("POST", _one("operations") + ":cancel", "CancelOperation", "*"),
)
ALPHA_ROUTES = (
    ("POST", _one("nodes") + ":simulateMaintenanceEvent", "SimulateMaintenanceEvent", "*"),
    ("POST", _one("nodes") + ":performMaintenance", "PerformMaintenance", "*"),
    (
        "POST",
        _one("queuedResources") + ":performMaintenanceQueuedResource",
        "PerformMaintenanceQueuedResource",
        "*",
    ),
    ("GET", _all("reservations"), "ListReservations", None),
    ("GET", _one("queuedResources") + ":getMaintenanceInfo", "GetMaintenanceInfo", None),
)
_OLD = ("ListLocations", "GetLocation", "ListNodes", "GetNode", "ListAcceleratorTypes", "GetAcceleratorType")
OLD_ROUTES = (
    *(row for row in COMMON_ROUTES if row[2] in (*_OLD, "ListOperations", "GetOperation")),
    ("GET", _all("tensorflowVersions"), "ListTensorFlowVersions", None),
    ("GET", _one("tensorflowVersions"), "GetTensorFlowVersion", None),
)
"""What /v1 reads; TPU nodes of its kind can no longer be made."""
_NEWEST = (*COMMON_ROUTES, *ALPHA_ROUTES)
ROUTES = {"v1": OLD_ROUTES, "v2": COMMON_ROUTES, "v2alpha1": _NEWEST, "v2alpha": _NEWEST}
TYPES_OF = {"v1": "v1", "v2": "v2", "v2alpha1": "v2alpha1", "v2alpha": "v2alpha1"}
"""Ray's autoscaler calls v2alpha1 by a name that is in no directory of APIs."""
_ANSWERS = {
    "GetNode": ("Node", ""),
    "ListNodes": ("Node", "nodes"),
    "GetQueuedResource": ("QueuedResource", ""),
    "ListQueuedResources": ("QueuedResource", "queuedResources"),
}
"""What an RPC answers, where the types have it: the message, and where it is in a list."""
BODIES = {"node": "Node", "queuedResource": "QueuedResource"}


@dataclass(frozen=True)
class Route:
    """One HTTP binding of an RPC."""

    verb: str
    pattern: re.Pattern[str]
    param: str
    rpc: str
    body: str | None


def compile_route(version: str, verb: str, template: str, rpc: str, body: str | None) -> Route:
    """`{name=projects/*/…}:verb` → a regular expression with one group."""
    match = re.fullmatch(r"\{([\w.]+)=([^}]+)\}(.*)", template)
    if match is None:
        raise ValueError(template)
    param, inner, tail = match.groups()
    expression = re.escape(inner).replace(r"\*", "[^/:]+")
    return Route(verb, re.compile(f"/{version}/({expression}){re.escape(tail)}"), param, rpc, body)


@cache
def _routes_of(version: str) -> list[Route]:
    """Compiled when the version is first asked for: few clients use more than one."""
    return [compile_route(version, *row) for row in ROUTES[version]]


def build_request(types: ApiTypes, route: Route, value: str, request: Request) -> Json:
    """The RPC's request from path, query and body, in camelCase. Raises ApiError, INVALID_ARGUMENT."""
    built = read_query(types, route.rpc, request.query)
    if route.body == "*":
        message = f"{route.rpc}Request"
        known = message if message in types.messages else "Empty"
        built |= read_message(types, known, parse_body(request))
    elif route.body is not None:
        built[route.body] = read_message(types, BODIES[route.body], parse_body(request), snake(route.body))
    if route.param == "node.name":
        built["node"]["name"] = value
    else:
        built[route.param] = value
    return built


def _shown(request: Request, types: ApiTypes, rpc: str, answer: Json) -> Response:
    """An answer in the form that was asked for. Raises INVALID_ARGUMENT in the front end's words."""
    message, rows = _ANSWERS.get(rpc, ("", ""))
    if isinstance(answer.get("response"), dict):
        kind = str(answer["response"].get("@type", "")).rpartition(".")[2]
        shown = shaped(replace(request, query=_without_fields(request)), answer["response"], types, kind)
        answer = {**answer, "response": shown}
    try:
        return json_response(shaped(request, answer, types, message, rows))
    except FieldsError as error:
        text = f"Error expanding 'fields' parameter. Cannot find matching fields for path '{error}'."
        violation = {"field": str(error), "description": text}
        detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}
        text = "Request contains an invalid argument."
        raise ApiError(Code.INVALID_ARGUMENT, text, [detail]) from None


def _without_fields(request: Request) -> dict[str, list[str]]:
    return {key: values for key, values in request.query.items() if key not in ("fields", "$fields")}


class TpuRestApi:
    """Answers every path below /v2 and /v2alpha1, and what /v1 has of TPUs; raises ApiError for refusals."""

    def __init__(self, world: World) -> None:
        self._world = world

    def owns(self, path: str) -> bool:
        """Whether a path below /v1, which several APIs share, is of this one."""
        return (
            re.match(r"/v1/projects/[^/]+/locations(?!/global/(services/|quotaPreferences))", unquote(path))
            is not None
        )

    def handle(self, request: Request) -> Response:
        path = unquote(request.path)
        version = path.split("/")[1]
        for route in _routes_of(version):
            match = route.pattern.fullmatch(path)
            if match is not None and route.verb == request.method:
                known = TYPES_OF[version]
                types = load_types(f"tpu.{known}")
                built = build_request(types, route, match.group(1), request)
                return _shown(request, types, route.rpc, self._world.call(route.rpc, built, known))
        raise unknown_method(f"{request.method} {path}")
