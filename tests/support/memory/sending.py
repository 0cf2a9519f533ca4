"""`survey` and `send` on a host in memory: what lies at a path, and the parts that the client lacks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from tests.support.memory.process import Process, Wait
from tests.support.memory.requests import Json, Refused, need

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost

PIECE = 1 << 18


def _path(host: MemoryHost, request: Json) -> str:
    text: str = need(request, "path", str)
    return text if text.startswith("/") else f"{host.home}/{text}"


def survey(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
    host = process.host
    top = _path(host, request)
    try:
        found = host.files.survey(top)
    except FileNotFoundError:
        raise Refused("not-found", f"no such file or directory: {top}") from None
    entries: list[list[Any]] = []
    for name, entry in found:
        if entry.kind == "f":
            entries.append(["f", name, entry.mode, len(entry.content), entry.mtime * 10**9])
        elif entry.kind == "l":
            entries.append(["l", name, entry.content.decode("utf-8", "surrogateescape")])
        else:
            entries.append(["d", name, entry.mode])
    process.print(json.dumps({"surveying": need(request, "limit", int)}))
    yield 0.0
    process.print(json.dumps({"entries": entries}))
    return {"surveyed": len(entries), "left_out": 0, "unread": [], "unread_count": 0}


def send(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
    size = need(request, "size", int)
    wanted = json.loads((yield from process.read_exactly(size)))
    process.silence_s = float(request.get("silence_s", 15.0))
    files = dict(process.host.files.survey(_path(process.host, request)))
    process.print(json.dumps({"sending": len(wanted)}))
    for number, (name, count, digest, whole) in enumerate(wanted):
        entry = files[name]
        content = entry.content
        fits = count == len(content) if whole else count <= len(content)
        start = count if count and fits and hashlib.sha256(content[:count]).hexdigest() == digest else 0
        about = {"file": number, "size": len(content), "mode": entry.mode, "mtime_ns": entry.mtime * 10**9}
        process.print(json.dumps({**about, "from": start}))
        for at in range(start, len(content), PIECE):
            process.print(json.dumps({"data": len(content[at : at + PIECE])}))
            process.write(content[at : at + PIECE])
            yield 0.0
        process.print(json.dumps({"end": number, "sha256": hashlib.sha256(content).hexdigest()}))
    return {"done": len(wanted)}
