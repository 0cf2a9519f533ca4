"""The Cloud TPU API by REST: /v2 and /v2alpha1.

The routes are those of google-cloud-tpu 1.28 (`google.api.http` options of its REST transport), plus the
methods that only v2alpha1 has (its discovery document, revision 20261001).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from tpuctl.sim.kernel import Json
from tpuctl.sim.messages import Request, Response, json_response
from tpuctl.sim.nodes import camel
from tpuctl.sim.status import ApiError, Code, unknown_method
from tpuctl.sim.world import World

_LOCATION = "{PARAM=projects/*/locations/*}"


def _one(collection: str, param: str = "name") -> str:
    return f"{{{param}=projects/*/locations/*/{collection}/*}}"


def _all(collection: str) -> str:
    return _LOCATION.replace("PARAM", "parent") + f"/{collection}"


COMMON_ROUTES = (
    ("GET", "{name=projects/*}/locations", "ListLocations", None),
    ("GET", _LOCATION.replace("PARAM", "name"), "GetLocation", None),
    ("POST", _LOCATION.replace("PARAM", "parent") + ":generateServiceIdentity", "GenerateServiceIdentity", "*"),
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
    ("GET", "{name=projects/*/locations/*}/operations", "ListOperations", None),
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
)
_SYSTEM_PARAMETERS = frozenset({"alt", "$alt", "key", "prettyPrint", "fields", "$.xgafv", "quotaUser"})
_REPEATED = frozenset({"workerIds", "nodeNames"})


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


def build_request(route: Route, value: str, query: Mapping[str, list[str]], body: Json) -> Json:
    """The RPC's request from path, query and body, in camelCase."""
    request: Json = dict(body) if route.body == "*" else {}
    if route.body not in (None, "*"):
        request[str(route.body)] = dict(body)
    for key, values in query.items():
        if key not in _SYSTEM_PARAMETERS:
            name = camel(key)
            request[name] = list(values) if name in _REPEATED else values[-1]
    if route.param == "node.name":
        request["node"]["name"] = value
    else:
        request[route.param] = value
    return request


def parse_body(request: Request) -> Json:
    try:
        body = request.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ApiError(Code.INVALID_ARGUMENT, f"Invalid JSON payload received. {error}") from error
    if not isinstance(body, dict):
        raise ApiError(Code.INVALID_ARGUMENT, "Invalid JSON payload received. Root element must be a message.")
    return body


class TpuRestDoor:
    """Answers every path below /v2 and /v2alpha1; raises ApiError for refusals."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._routes = {
            "v2": [compile_route("v2", *row) for row in COMMON_ROUTES],
            "v2alpha1": [compile_route("v2alpha1", *row) for row in (*COMMON_ROUTES, *ALPHA_ROUTES)],
        }

    def handle(self, request: Request) -> Response:
        path = unquote(request.path)
        version = path.split("/")[1]
        for route in self._routes[version]:
            match = route.pattern.fullmatch(path)
            if match is not None and route.verb == request.method:
                built = build_request(route, match.group(1), request.query, parse_body(request))
                return json_response(self._world.call(route.rpc, built, version))
        raise unknown_method(f"{request.method} {path}")
