"""The metadata server of a simulated host: the part of Compute Engine's that libraries on a TPU host ask.

See the Compute Engine documentation, "VM metadata": the request header `Metadata-Flavor: Google` is required,
and `?wait_for_change=true` answers when the value differs from `last_etag` (or from now), at the latest after
`timeout_sec`. Guest attributes are written by PUT and removed by DELETE, and answer 403 where they are turned
off ("Set and query guest attributes").
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, unquote, urlsplit

PREFIX = "/computeMetadata/v1/instance/"
GUEST_ATTRIBUTES = "guest-attributes/"
BODY_MAX = 65536
POLL_S = 0.2
WAIT_LIMIT_S = 300.0
IDLE_LIMIT_S = 60.0

Lookup = Callable[[str], Awaitable[str | None]]
Publish = Callable[[str, str | None], Awaitable[bool]]


def etag_of(value: str | None) -> str:
    return hashlib.sha256((value or "").encode()).hexdigest()[:16]


async def _value(lookup: Lookup, path: str, query: dict[str, list[str]]) -> str | None:
    value = await lookup(path)
    if query.get("wait_for_change", [""])[0].lower() != "true":
        return value
    known = query.get("last_etag", [etag_of(value)])[0]
    try:
        timeout_s = min(float(query.get("timeout_sec", ["inf"])[0]), WAIT_LIMIT_S)
    except ValueError:
        timeout_s = 0.0
    deadline = asyncio.get_running_loop().time() + timeout_s
    while etag_of(value) == known and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(POLL_S)
        value = await lookup(path)
    return value


async def _change(publish: Publish, method: str, path: str, flavor: str, body: bytes) -> tuple[str, str]:
    """A guest attribute that is written or removed: status line and text."""
    key = path.removeprefix(PREFIX + GUEST_ATTRIBUTES)
    if flavor != "Google":
        return "403 Forbidden", "Missing Metadata-Flavor:Google header.\n"
    if not path.startswith(PREFIX + GUEST_ATTRIBUTES) or not all(key.partition("/")[::2]):
        return "405 Method Not Allowed", "only GET is supported\n"
    if await publish(key, body.decode(errors="replace") if method == "PUT" else None):
        return "200 OK", ""
    return "403 Forbidden", "Guest attributes endpoint access is disabled.\n"


async def _answer(lookup: Lookup, method: str, target: str, flavor: str) -> tuple[str, str]:
    """Status line and text."""
    parts = urlsplit(target)
    path = unquote(parts.path)
    if method not in ("GET", "HEAD"):
        return "405 Method Not Allowed", "only GET is supported\n"
    if path in ("/", "/computeMetadata/", "/computeMetadata/v1/", PREFIX):
        return "200 OK", ""
    if flavor != "Google":
        return "403 Forbidden", "Missing Metadata-Flavor:Google header.\n"
    if not path.startswith(PREFIX):
        return "404 Not Found", "not found\n"
    query = parse_qs(parts.query)
    value = await _value(lookup, path.removeprefix(PREFIX), query)
    if value is None:
        return "404 Not Found", "not found\n"
    return "200 OK", json.dumps(value) if _wants_quotes(query, value) else value


def _wants_quotes(query: dict[str, list[str]], value: str) -> bool:
    """`alt=json` turns plain text into a JSON string; values that are JSON already stay."""
    return query.get("alt") == ["json"] and not value.lstrip().startswith(("{", "["))


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]] | None:
    """Request line and headers in lower case; None when the client is done or talks nonsense."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_LIMIT_S)
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes | None:
    """What follows the headers; None when it is too long or does not come."""
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > BODY_MAX:
        return None
    try:
        return await asyncio.wait_for(reader.readexactly(int(length)), IDLE_LIMIT_S)
    except (TimeoutError, asyncio.IncompleteReadError):
        return None


async def serve_connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lookup: Lookup, publish: Publish
) -> None:
    """Answers the requests of one connection until either side closes it."""
    try:
        while (request := await _read_head(reader)) is not None:
            first, headers = request
            method, _, rest = first.partition(" ")
            target, flavor = rest.partition(" ")[0], headers.get("metadata-flavor", "")
            sent = await _read_body(reader, headers)
            if sent is None:
                return
            if method in ("PUT", "DELETE"):
                path = unquote(urlsplit(target).path)
                status, text = await _change(publish, method, path, flavor, sent)
            else:
                status, text = await _answer(lookup, method, target, flavor)
            body = text.encode()
            head = (
                f"HTTP/1.1 {status}\r\nMetadata-Flavor: Google\r\nServer: Metadata Server for VM\r\n"
                f"Content-Type: application/text\r\nETag: {etag_of(text)}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + (b"" if method == "HEAD" else body))
            await writer.drain()
            if headers.get("connection", "").lower() == "close":
                return
    except ConnectionError:
        return  # the client went away in the middle of an answer
    finally:
        writer.close()
