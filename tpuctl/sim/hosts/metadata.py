"""The metadata server of a simulated host, as Compute Engine's answers.

See the Compute Engine documentation, "VM metadata" and "Query VM metadata": every answer carries
`Metadata-Flavor: Google` and every request but those for the roots must; a path that ends with `/` is a
directory and answers with the names in it, or with `?recursive=true` as JSON (or, with `alt=text`, one line
per value) with names in camelCase; `?wait_for_change=true` answers when the value differs from `last_etag` (or
from now), at the latest after `timeout_sec`. Guest attributes are written by PUT and removed by DELETE, and
answer 403 where they are turned off ("Set and query guest attributes").
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

ROOT = "/computeMetadata/v1/"
GUEST_ATTRIBUTES = "instance/guest-attributes/"
FREE_ROOTS = {"/": "computeMetadata/\n", "/computeMetadata/": "v1/\n"}
"""What is answered without the header, so that a program can find out where it is."""
OWN_WORDS = ("attributes", "guest-attributes")
"""Directories whose names are the user's, so that JSON shows them as they are."""
NOT_IN_JSON = ("token", "identity")
"""Under `service-accounts/`: asked for by name only."""
BODY_MAX = 65536
POLL_S = 0.2
WAIT_LIMIT_S = 300.0
IDLE_LIMIT_S = 60.0

Value = str | int | Mapping[str, Any] | tuple[str, ...] | list[str]
"""A tuple is lines of text and a JSON list; a list or mapping is JSON in both."""
Values = Mapping[str, Value]
"""Everything below `ROOT`, by its path. Nothing at all: the server does not answer."""
Lookup = Callable[[], Awaitable[Values]]
Publish = Callable[[str, str | None], Awaitable[bool]]
Query = Mapping[str, list[str]]


@dataclass(frozen=True)
class Answer:
    """One answer: status line, text, whether it is JSON, and where else to ask."""

    status: str
    text: str
    json: bool = False
    location: str = ""


NOT_FOUND = Answer("404 Not Found", "not found\n")
NO_FLAVOR = Answer("403 Forbidden", "Missing Metadata-Flavor:Google header.\n")
FORWARDED = Answer("403 Forbidden", "X-Forwarded-For header is not allowed.\n")
READ_ONLY = Answer("405 Method Not Allowed", "only GET is supported\n")
NO_IDENTITY = Answer("400 Bad Request", "tpuctl's simulated cloud issues no identity tokens.\n")
NO_AUDIENCE = Answer("400 Bad Request", "non-empty audience parameter required\n")


def etag_of(value: str | None) -> str:
    return hashlib.sha256((value or "").encode()).hexdigest()[:16]


def find(values: Values, path: str, query: Query, host: str = "metadata.google.internal") -> Answer:
    """The answer for a path below `ROOT`."""
    value = values.get(path)
    if value is not None:
        return _render(value, as_json=query.get("alt") == ["json"])
    folder = path if not path or path.endswith("/") else f"{path}/"
    below = {key.removeprefix(folder): each for key, each in values.items() if key.startswith(folder)}
    if not below:
        return NOT_FOUND
    if folder != path:
        return Answer("301 Moved Permanently", "", location=f"http://{host}{ROOT}{folder}")
    if query.get("recursive", [""])[0].lower() == "true":
        return _render_all(folder, below, as_text=query.get("alt") == ["text"])
    names = {name + slash for name, slash, _ in (key.partition("/") for key in below)}
    return Answer("200 OK", "".join(f"{name}\n" for name in sorted(names)))


def _render(value: Value, *, as_json: bool) -> Answer:
    if as_json or isinstance(value, Mapping | list):
        # Text that is JSON already stays as it is.
        text = value if isinstance(value, str) and value.startswith(("{", "[")) else json.dumps(value)
        return Answer("200 OK", text, json=True)
    return Answer("200 OK", "".join(f"{each}\n" for each in value) if isinstance(value, tuple) else str(value))


def _render_all(folder: str, below: Values, *, as_text: bool) -> Answer:
    shown = {key: value for key, value in below.items() if not _secret(folder + key)}
    if as_text:
        lines = [
            f"{key} {_render(value, as_json=False).text.rstrip()}\n" for key, value in sorted(shown.items())
        ]
        return Answer("200 OK", "".join(lines))
    tree: dict[str, Any] = {}
    for key, value in sorted(shown.items()):
        *folders, leaf = (folder + key).split("/")
        place = tree
        for each in folders:
            place = place.setdefault(each, {})
        place[leaf] = value
    for each in folder.split("/")[:-1]:
        tree = tree[each]
    return Answer("200 OK", json.dumps(_as_json(tree, folder.split("/")[-2] if folder else "")), json=True)


def _secret(path: str) -> bool:
    return "service-accounts/" in path and path.rpartition("/")[2] in NOT_IN_JSON


def _as_json(tree: Mapping[str, Any], name: str) -> Any:
    """Names in camelCase, and lists where the names are numbers."""
    inside = {key: _as_json(each, key) if type(each) is dict else each for key, each in tree.items()}
    if inside and all(key.isdecimal() for key in inside):
        return [inside[key] for key in sorted(inside, key=int)]
    if name in OWN_WORDS:
        return inside
    return {key if "@" in key else _camel(key): each for key, each in inside.items()}


def _camel(name: str) -> str:
    return re.sub(r"-(\w)", lambda found: found[1].upper(), name)


async def _value(lookup: Lookup, path: str, query: Query, host: str) -> Answer:
    values = await lookup()
    if not values:
        raise ConnectionResetError("cut off")
    answer = find(values, path, query, host)
    if query.get("wait_for_change", [""])[0].lower() != "true":
        return answer
    known = query.get("last_etag", [etag_of(answer.text)])[0]
    try:
        timeout_s = min(float(query.get("timeout_sec", ["inf"])[0]), WAIT_LIMIT_S)
    except ValueError:
        timeout_s = 0.0
    deadline = asyncio.get_running_loop().time() + timeout_s
    while etag_of(answer.text) == known and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(POLL_S)
        answer = find(await lookup(), path, query, host)
    return answer


async def _change(publish: Publish, method: str, path: str, body: bytes) -> Answer:
    """A guest attribute that is written or removed."""
    key = path.removeprefix(ROOT + GUEST_ATTRIBUTES)
    if not path.startswith(ROOT + GUEST_ATTRIBUTES) or not all(key.partition("/")[::2]):
        return READ_ONLY
    if await publish(key, body.decode(errors="replace") if method == "PUT" else None):
        return Answer("200 OK", "")
    return Answer("403 Forbidden", "Guest attributes endpoint access is disabled.\n")


async def _answer(
    lookup: Lookup, publish: Publish, method: str, target: str, headers: Mapping[str, str], body: bytes
) -> Answer:
    parts = urlsplit(target)
    path, query = unquote(parts.path), parse_qs(parts.query)
    if method in ("GET", "HEAD") and path in FREE_ROOTS:
        return Answer("200 OK", FREE_ROOTS[path])
    if headers.get("metadata-flavor") != "Google":
        return NO_FLAVOR
    if "x-forwarded-for" in headers:
        return FORWARDED
    if method in ("PUT", "DELETE"):
        return await _change(publish, method, path, body)
    if method not in ("GET", "HEAD"):
        return READ_ONLY
    if not path.startswith(ROOT):
        return NOT_FOUND
    if _secret(path) and path.endswith("/identity"):
        return NO_IDENTITY if query.get("audience") else NO_AUDIENCE
    return await _value(lookup, path.removeprefix(ROOT), query, headers.get("host", ""))


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]] | None:
    """Request line and headers in lower case; None when the client is done or talks nonsense."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_LIMIT_S)
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes | None:
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
            sent = await _read_body(reader, headers)
            if sent is None:
                return
            answer = await _answer(lookup, publish, method, rest.partition(" ")[0], headers, sent)
            body = answer.text.encode()
            head = (
                f"HTTP/1.1 {answer.status}\r\nMetadata-Flavor: Google\r\nServer: Metadata Server for VM\r\n"
                f"Content-Type: application/{'json' if answer.json else 'text'}\r\n"
                f"{f'Location: {answer.location}' + chr(13) + chr(10) if answer.location else ''}"
                f"ETag: {etag_of(answer.text)}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + (b"" if method == "HEAD" else body))
            await writer.drain()
            if headers.get("connection", "").lower() == "close":
                return
    except ConnectionError:
        return  # the client went away in the middle of an answer, or gets none
    finally:
        writer.close()
