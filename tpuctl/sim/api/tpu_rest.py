"""The Cloud TPU API by REST: /v2, /v2alpha1, and what /v1 reads."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from urllib.parse import unquote

from msgspec import Struct

from tpuctl.sim.wire.calls import Call, compile_template, field_of, tpu_calls
from tpuctl.sim.wire.fields import FieldsError, shaped
from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.payload import ApiTypes, load_types, parse_body, read_message, read_query, snake
from tpuctl.sim.wire.status import ApiError, Code, Json, unknown_method
from tpuctl.sim.world.world import World

TYPES_OF = {"v1": "v1", "v2": "v2", "v2alpha1": "v2alpha1", "v2alpha": "v2alpha1"}
"""Version → whose types it has. Ray's autoscaler calls v2alpha1 by a name that is in no directory of APIs."""
_ANSWERS = {
    "GetNode": ("Node", ""),
    "ListNodes": ("Node", "nodes"),
    "GetQueuedResource": ("QueuedResource", ""),
    "ListQueuedResources": ("QueuedResource", "queuedResources"),
}
"""What an RPC answers, where the types have it: the message, and where it is in a list."""
BODIES = {"node": "Node", "queuedResource": "QueuedResource"}


class Route(Struct, frozen=True):
    """One call at the paths of a version."""

    call: Call
    pattern: re.Pattern[str]


@cache
def routes_of(version: str) -> tuple[Route, ...]:
    """Compiled when the version is first asked for: few clients use more than one."""
    calls = [each for each in tpu_calls() if each.http and TYPES_OF[version] in each.versions]
    return tuple(Route(each, compile_template(f"/{version}/{each.template}")) for each in calls)


def build_request(types: ApiTypes, call: Call, value: str, request: Request) -> Json:
    """The RPC's request from path, query and body, in camelCase. Raises ApiError, INVALID_ARGUMENT."""
    built = read_query(types, call.rpc, request.query)
    if call.body == "*":
        message = f"{call.rpc}Request"
        known = message if message in types.messages else "Empty"
        built |= read_message(types, known, parse_body(request))
    elif call.body:
        built[call.body] = read_message(types, BODIES[call.body], parse_body(request), snake(call.body))
    param = field_of(call.template)
    if param == "node.name":
        built["node"]["name"] = value
    else:
        built[param] = value
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
        for route in routes_of(version):
            match = route.pattern.fullmatch(path)
            if match is not None and route.call.verb == request.method:
                known, rpc = TYPES_OF[version], route.call.rpc
                types = load_types(f"tpu.{known}")
                built = build_request(types, route.call, match.group(1), request)
                return _shown(request, types, rpc, self._world.call(rpc, built, known))
        raise unknown_method(f"{request.method} {path}")
