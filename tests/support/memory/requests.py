"""What all verbs of the agent in memory need: refusals, checked requests, contents by digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost

Json = Mapping[str, Any]
Row = Sequence[Any]
"""One entry of a tree: `["f", path, mode, sha256, size]`, `["l", path, target]` or `["d", path, mode]`."""


class Refused(Exception):
    """A request that is answered with an error code instead of being done."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def need(request: Json, key: str, kind: type) -> Any:
    value = request.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Refused("bad-request", f"{key!r} is missing or not of type {kind.__name__}")
    return value


def area_of(host: MemoryHost, area: object) -> dict[str, bytes]:
    if not isinstance(area, str) or area not in host.blobs:
        raise Refused("bad-request", f"no such area: {area!r}")
    return host.blobs[area]


def find_tree(host: MemoryHost, area: object, digest: str) -> list[Row] | None:
    data = area_of(host, area).get(digest)
    if data is None:
        return None
    try:
        return list(json.loads(data)["entries"])
    except (ValueError, KeyError, TypeError) as error:
        raise Refused("bad-bundle", f"not a usable tree: {error}") from error


def blobs_of(entries: Sequence[Row] | None) -> list[tuple[str, int]]:
    """(sha256, size) of every content once, in order of first appearance."""
    return list(dict.fromkeys((entry[3], entry[4]) for entry in entries or () if entry[0] == "f"))


def has_blob(host: MemoryHost, area: object, digest: str, size: int) -> bool:
    data = area_of(host, area).get(digest)
    return data is not None and len(data) == size


def store_blob(host: MemoryHost, area: object, digest: str, size: int, data: bytes) -> None:
    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
        raise Refused("bad-payload", f"received {len(data)} of {size} bytes, or another content")
    area_of(host, area)[digest] = data
