"""What every HTTP front door speaks: plain data, so that doors can be driven without sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """One HTTP request. Header names are lower case; `path` is still percent-encoded, without the query."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body) if self.body else {}


@dataclass(frozen=True)
class Response:
    """One HTTP answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def json_response(data: Any, status: int = 200) -> Response:
    return Response(status, json.dumps(data).encode(), {"content-type": "application/json; charset=UTF-8"})
