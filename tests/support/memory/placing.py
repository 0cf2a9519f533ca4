"""`serve` and `fetch` on a host in memory: contents from host to host, at the speed of their network."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from tests.support.memory.agent import Json, Refused, agent, on
from tests.support.memory.process import Process, Wait

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost
_PORTS = itertools.count(50000)


def find_tree(host: MemoryHost, area: str, digest: str) -> Any:
    """The entries of a tree as the agent has them, or None."""
    with on(host):
        return agent.contents.find_tree(area, digest)


def lacking_of(host: MemoryHost, request: Json) -> Json:
    with on(host):
        found: Json = agent.placing.lacking_of(request)
    return found


def hand_over(giver: MemoryHost, taker: MemoryHost, theirs: str, ours: str, digest: str) -> int:
    """Copies one content; its size."""
    data = giver.blob(theirs, digest).read_bytes()
    with on(taker):
        agent.contents.store_blob(ours, digest, len(data), [data])
    return len(data)


def serve(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
    host, address = process.host, request["address"]
    host.blob(request["area"], "0" * 64)
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
    count = 0
    wanted = [tree] if find_tree(host, area, tree) is None else []
    while True:
        paths = {digest: server.host.blob(served["area"], digest) for digest in wanted}
        there = {digest: path.stat().st_size for digest, path in paths.items() if path.exists()}
        took_all = sum(there.values()) / host.network.copy_bytes_per_s
        host.network.asked_at[where] = max(host.network.asked_at[where], process.now + took_all)
        for digest, size in there.items():
            if took := size / host.network.copy_bytes_per_s:
                yield took
            if not server.alive:
                raise Refused("no-peer", f"cannot fetch from {where[0]}: the other host hung up")
            count += hand_over(server.host, host, served["area"], area, digest)
            process.print(json.dumps({"progress": "fetching", "bytes": count}))
        lacking = lacking_of(host, request)
        bits = int(lacking["lacking"] or "0", 16)
        blobs = agent.contents.blobs_of(find_tree(host, area, tree) or [])
        more = [digest for n, (digest, _) in enumerate(blobs) if bits >> n & 1]
        wanted = [digest for digest in more if server.host.blob(served["area"], digest).exists()]
        if not wanted:
            return {**lacking, "bytes": count}
