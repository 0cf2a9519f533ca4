"""The methods of the GCS JSON API as its discovery document has them (`storage_api.json`): which one
a request means, and its parameters and body by their types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tpuctl.model.shipped_files import read_table
from tpuctl.sim.gcs.buckets import UNDONE
from tpuctl.sim.gcs.wire import Data, GcsError, ObjectName, Preconditions, decode, not_implemented
from tpuctl.sim.wire.messages import Request
from tpuctl.sim.wire.payload import MAX_BODY, ApiTypes, parse_body, read_message, read_query

JSON, BATCH = "/storage/v1/", "/batch/storage/v1"
UPLOADS = ("/upload/storage/v1/", "/resumable/upload/storage/v1/")
DOWNLOADS = "/download/storage/v1/"
JSON_PATHS = (JSON, BATCH, *UPLOADS, DOWNLOADS)
CLOSED_ACLS = ("projectPrivate", "private", "bucketOwnerRead", "bucketOwnerFullControl")
"""Predefined lists that let in nobody but the project, which has one caller here."""


@dataclass(frozen=True)
class Method:
    """`objects.get` and the like."""

    id: str
    verb: str
    pattern: re.Pattern[str]
    body: str


@dataclass(frozen=True)
class Call:
    """A request understood: `names` are the decoded parts of the path; `query` and `body` are of the API's
    types."""

    request: Request
    method: Method
    names: tuple[str, ...]
    query: Data
    body: Data

    @property
    def bucket(self) -> str:
        return self.names[0]

    @property
    def where(self) -> ObjectName:
        return ObjectName(self.names[0], self.names[1])

    def conditions(self, infix: str = "") -> Preconditions:
        return Preconditions.of(self.query, infix)


@cache
def load_api() -> tuple[tuple[Method, ...], ApiTypes]:
    """All methods, and the types of their parameters and bodies."""
    table = json.loads(read_table("storage_api.json"))
    methods = tuple(
        Method(id, verb, re.compile(re.sub(r"\{[^}]+\}", "([^/]+)", path)), body)
        for id, (verb, path, body) in table["methods"].items()
    )
    return methods, ApiTypes(
        table["package"], table["queries"], table["messages"], table["enums"], oneofs={}, presence=True
    )


def find_method(verb: str, path: str) -> tuple[Method, tuple[str, ...]]:
    """What `path`, below /storage/v1/, means. 404 for what Google has neither."""
    others = ""
    for method in load_api()[0]:
        found = method.pattern.fullmatch(path)
        if found and method.verb == verb:
            return method, tuple(decode(part) for part in found.groups())
        others = others or (method.id if found else "")
    if others:
        raise GcsError(405, f"{verb} is not a method of this resource", reason="methodNotAllowed")
    raise GcsError(404, "Not Found")


def read_call(request: Request, method: Method, names: tuple[str, ...], *, with_body: bool = True) -> Call:
    """Parameters and body checked. Raises ApiError and GcsError, 400 for what does not fit.

    Other parameters are ignored, as Cloud Storage does: clients in production send some (Node's library those
    of a list of what it deletes, tensorstore one of its own).
    """
    types = load_api()[1]
    known = types.queries[method.id]
    query = read_query(types, method.id, {key: each for key, each in request.query.items() if key in known})
    for name, what in UNDONE["parameter"].items():
        if query.get(name) not in (None, False, "", *CLOSED_ACLS):
            raise not_implemented(f"{what} ({name})")
    body = {}
    if method.body and with_body:
        body = read_body(request, method.body)
    return Call(request, method, names, query, body)


def read_body(request: Request, message: str) -> Data:
    if request.spooled is not None:
        raise GcsError(400, f"Request payload size exceeds the limit: {MAX_BODY} bytes.")
    try:
        given = parse_body(request)
    except ValueError:
        raise GcsError(400, "Parse Error", reason="parseError") from None
    return read_resource(message, given)


def read_resource(message: str, given: Any) -> Data:
    """`given` as the API's `message`, with nulls, which mean "take it away" in a patch."""
    if not isinstance(given, dict):
        raise GcsError(400, "Parse Error", reason="parseError")
    read = read_message(load_api()[1], message, _without_nulls(given))
    return _with_nulls(read, given)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


def _with_nulls(read: Data, given: Mapping[str, Any]) -> Data:
    for key, value in given.items():
        if value is None:
            read[key] = None
        elif isinstance(value, dict) and isinstance(read.get(key), dict):
            _with_nulls(read[key], value)
    return read
