"""The discovery document of the TPU API, from which googleapiclient makes its client when asked for one by URL.

Autoscalers do that for versions that the client does not carry: https://developers.google.com/discovery/v1/reference.
It names the methods that the simulator has, not those that Google has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tpuctl.sim.api.tpu_rest import BODIES, TYPES_OF, routes_of
from tpuctl.sim.wire.calls import Call
from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.payload import ApiTypes, load_types
from tpuctl.sim.wire.status import Json, invalid_argument

PATHS = ("/$discovery/rest", "/%24discovery/rest")
PREFERRED = "v2"
"""What SkyPilot and Ray get: they ask by a URL without a version, and say theirs where nobody reads it
(sky/provision/gcp/instance_utils.py, ray/autoscaler/_private/gcp/config.py)."""
CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
_ROOT = "https://tpu.googleapis.com/"
_VERBS: Mapping[str, str] = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
_KINDS: Mapping[str, Json] = {
    "bool": {"type": "boolean"},
    "double": {"type": "number", "format": "double"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "string", "format": "int64"},
    "any": {"type": "any"},
}


def answer_discovery(request: Request) -> Response:
    """The document of the version that is asked for, or else of the one that Google prefers. Raises
    INVALID_ARGUMENT for one that nobody has."""
    version = request.query.get("version", [PREFERRED])[-1]
    if version not in TYPES_OF:
        raise invalid_argument(f"Discovery document not found for version: {version}")
    return json_response(discovery_document(version))


def discovery_document(version: str) -> Json:
    """Methods and types of a version of the API."""
    types = load_types(f"tpu.{TYPES_OF[version]}")
    document: Json = {
        "kind": "discovery#restDescription",
        "discoveryVersion": "v1",
        "id": f"tpu:{version}",
        "name": "tpu",
        "version": version,
        "title": "Cloud TPU API",
        "protocol": "rest",
        "rootUrl": _ROOT,
        "baseUrl": _ROOT,
        "servicePath": "",
        "batchPath": "batch",
        # Without it googleapiclient calls with no credentials at all.
        "auth": {"oauth2": {"scopes": {CLOUD_PLATFORM: {"description": "See, edit and configure your data"}}}},
        "parameters": {"alt": {"type": "string", "location": "query"}},
        "schemas": {},
        "resources": {},
    }
    for name, fields in types.messages.items():
        properties = {field: _schema(types, kind) for field, kind in fields.items()}
        document["schemas"][_id(name)] = {"id": _id(name), "type": "object", "properties": properties}
    for route in routes_of(version):
        _add_method(document, types, version, route.call)
    return document


def _add_method(document: Json, types: ApiTypes, version: str, call: Call) -> None:
    match = re.fullmatch(r"\{([\w.]+)=([^}]+)\}(?:/(\w+))?(?::(\w+))?", call.template)
    if match is None:
        raise ValueError(call.template)
    param, inner, below, custom = match.groups()
    param = param.rsplit(".", 1)[-1]
    chain = [*inner.split("/")[::2], *([below] if below else [])]
    place = document
    for part in chain:
        place = place.setdefault("resources", {}).setdefault(part, {})
    name = custom or ("list" if call.verb == "GET" and below else _VERBS[call.verb])
    pattern = "^" + "/".join("[^/]+" if part == "*" else part for part in inner.split("/")) + "$"
    tail = (f"/{below}" if below else "") + (f":{custom}" if custom else "")
    method: Json = {
        "id": ".".join(["tpu", *chain, name]),
        "path": f"{version}/{{+{param}}}{tail}",
        "httpMethod": call.verb,
        "parameters": {param: {"type": "string", "location": "path", "required": True, "pattern": pattern}},
        "parameterOrder": [param],
        "response": {"$ref": "Empty"},
    }
    for field, kind in types.queries[call.rpc].items():
        shown = _schema(types, kind.strip("[]"))
        method["parameters"][field] = {**shown, "location": "query", "repeated": kind.startswith("[")}
    if call.body:
        message = BODIES.get(call.body, f"{call.rpc}Request")
        method["request"] = {"$ref": _id(message) if message in types.messages else "Empty"}
    place.setdefault("methods", {})[name] = method


def _id(message: str) -> str:
    return message.replace(".", "")


def _schema(types: ApiTypes, kind: str) -> Json:
    if kind.startswith("["):
        return {"type": "array", "items": _schema(types, kind[1:-1])}
    if kind.startswith("{"):
        return {"type": "object", "additionalProperties": _schema(types, kind[1:-1])}
    if kind in types.messages:
        return {"$ref": _id(kind)}
    if kind in types.enums:
        return {"type": "string", "enum": list(types.enums[kind])}
    return dict(_KINDS.get(kind, {"type": "string"}))
