"""`lacks`, `place`, `serve` and `fetch` on a host in memory: contents by digest, and where they go."""

from __future__ import annotations

import hashlib
import itertools
import json
import posixpath
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from tests.support.memory.files import Entry, InTheWayError
from tests.support.memory.process import Process, Wait
from tests.support.memory.requests import (
    Json,
    Refused,
    Row,
    area_of,
    blobs_of,
    find_tree,
    has_blob,
    need,
    store_blob,
)

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost
_PORTS = itertools.count(50000)


def lacks(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
    if request.get("size") is not None:
        size = need(request, "size", int)
        data = yield from process.read_exactly(size)
        store_blob(process.host, request.get("area"), request["tree"], size, data)
    return lacking_of(process.host, request)


def lacking_of(host: MemoryHost, request: Json) -> Json:
    area = request.get("area")
    entries = find_tree(host, area, need(request, "tree", str))
    if entries is None:
        return {"tree": False, "lacking": ""}
    lies_at: dict[tuple[str, int], list[str]] = {}
    if request.get("destination") is not None:
        find = placement(host, request)
        for entry in entries:
            if entry[0] == "f":
                lies_at.setdefault((entry[3], entry[4]), []).append(find(entry[1]))
    bits, begun = 0, []
    for number, (digest, size) in enumerate(blobs_of(entries)):
        there = any(file_matches(host, path, digest) for path in lies_at.get((digest, size), ()))
        if not there and not has_blob(host, area, digest, size):
            bits |= 1 << number
            came = len(area_of(host, area).get(f"{digest}.part", b""))
            begun += [[number, came]] if came else []
    return {"tree": True, "lacking": f"{bits:x}", "begun": begun}


def file_matches(host: MemoryHost, path: str, digest: str) -> bool:
    found = host.files.find(path)
    return found is not None and found.kind == "f" and hashlib.sha256(found.content).hexdigest() == digest


def placement(host: MemoryHost, request: Json) -> Callable[[str], str]:
    """Where the paths of a tree belong, as with cp."""
    text = need(request, "destination", str)
    destination = posixpath.normpath(posixpath.join(host.home, text))
    single = len(need(request, "names", list)) == 1
    if text.endswith("/") or not single or destination == host.home or host.files.is_folder(destination):
        return lambda path: posixpath.join(destination, path)
    return lambda path: posixpath.join(destination, *path.split("/")[1:])


def place(host: MemoryHost, request: Json) -> Json:
    area, tree = request["area"], request["tree"]
    entries = find_tree(host, area, tree)
    if entries is None:
        raise Refused("missing-blob", "the host lost the list of files meanwhile")
    find = placement(host, request)
    keep_reused(host, area, entries, find)
    try:
        for entry in entries:
            host.files.put(find(entry[1]), entry_of(host, area, entry))
    except InTheWayError as error:
        raise Refused("in-the-way", str(error)) from error
    for digest in [tree, *(digest for digest, _ in blobs_of(entries))]:
        host.blobs[area].pop(digest, None)
    return {"placed": len(entries)}


def keep_reused(host: MemoryHost, area: str, entries: Sequence[Row], find: Callable[[str], str]) -> None:
    """Content that was not sent because it lies in one of its places already."""
    for entry in entries:
        if entry[0] == "f" and entry[3] not in host.blobs[area]:
            for other in entries:
                if other[0] == "f" and other[3] == entry[3] and file_matches(host, find(other[1]), entry[3]):
                    host.blobs[area][entry[3]] = host.files.read(find(other[1]))


def entry_of(host: MemoryHost, area: str, entry: Row) -> Entry:
    if entry[0] == "l":
        return Entry("l", content=entry[2].encode("utf-8", "surrogateescape"))
    if entry[0] == "d":
        return Entry("d", entry[2])
    if entry[3] not in host.blobs[area]:
        raise Refused("missing-blob", f"the host lost {entry[3]} meanwhile")
    return Entry("f", entry[2], host.blobs[area][entry[3]], entry[5] if len(entry) > 5 else 0)


def serve(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
    host, address = process.host, request["address"]
    area_of(host, request.get("area"))
    if address not in (host.internal_ip, host.external_ip):
        raise Refused("no-address", f"cannot listen on {address}: it is not an address of this host")
    where, held = (address, next(_PORTS)), request.get("silence_s")
    process.silence_s = float(held or "inf")
    token = hashlib.sha256(f"{where} {host.host_key}".encode()).hexdigest()
    process.env["SERVED"] = json.dumps({"area": request["area"], "token": token})
    host.network.serving[where] = process
    host.network.asked_at[where] = process.now
    process.print(json.dumps({"progress": "serving", "port": where[1], "token": token}))
    ends, idle_s = process.now + float(request.get("deadline_s", 600.0)), float(request.get("idle_s", "inf"))
    try:
        while not (held and process.at_eof):
            left = min(ends, host.network.asked_at[where] + idle_s) - process.now
            if left <= 0:
                break
            process.stdin.clear()
            yield Wait(left, stdin=bool(held))
    finally:
        del host.network.serving[where]
    return {"served": True}


def fetch(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
    """Content after content, each whole when it has come."""
    host, area, tree = process.host, request["area"], request["tree"]
    where = request["address"], request["port"]
    server = host.network.serving.get(where)
    if server is None or not server.alive:
        raise Refused("no-peer", f"cannot fetch from {where[0]}: connection refused")
    served = json.loads(server.env["SERVED"])
    if served["token"] != request["token"]:
        raise Refused("no-peer", "the other host does not know the token")
    theirs, ours = server.host.blobs[served["area"]], host.blobs[area]
    count = 0
    wanted = [tree] if find_tree(host, area, tree) is None else []
    while True:
        took_all = sum(len(theirs.get(digest, b"")) for digest in wanted) / host.network.copy_bytes_per_s
        host.network.asked_at[where] = max(host.network.asked_at[where], process.now + took_all)
        for digest in wanted:
            if digest not in theirs:
                continue
            if took := len(theirs[digest]) / host.network.copy_bytes_per_s:
                yield took
            if not server.alive:
                raise Refused("no-peer", f"cannot fetch from {where[0]}: the other host hung up")
            ours[digest] = theirs[digest]
            count += len(theirs[digest])
            process.print(json.dumps({"progress": "fetching", "bytes": count}))
        bits = int(lacking_of(host, request)["lacking"] or "0", 16)
        blobs = blobs_of(find_tree(host, area, tree))
        more = [digest for n, (digest, _) in enumerate(blobs) if bits >> n & 1 and digest in theirs]
        if not more:
            return {**lacking_of(host, request), "bytes": count}
        wanted = more
