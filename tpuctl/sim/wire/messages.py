"""Requests and answers of every HTTP API as plain data, so that APIs can be driven without sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any


@dataclass(frozen=True)
class Request:
    """One HTTP request. Header names are lower case; `path` is still percent-encoded, without the query.

    A body too large for memory is not in `body`, but in the file behind `spooled`.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = b""
    spooled: mmap | None = None
    caller: str = ""
    """The service account that calls; empty for the user."""

    @property
    def content(self) -> memoryview:
        """The whole body, wherever it is."""
        return memoryview(self.body if self.spooled is None else self.spooled)

    def json(self) -> Any:
        return json.loads(self.body) if self.body else {}


@dataclass(frozen=True)
class Response:
    """One HTTP answer."""

    status: int
    body: bytes | memoryview = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    more_headers: Sequence[tuple[str, str]] = ()
    """Those whose name comes more than once."""


def json_response(data: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(data).encode(), {"content-type": "application/json; charset=UTF-8"})
