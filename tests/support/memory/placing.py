"""`serve` and `fetch` on a host in memory: contents from host to host, at the speed of their network."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

from tests.support.memory.agent import module
from tests.support.memory.blocking import the_process, wait
from tests.support.memory.process import Wait

Json = Mapping[str, Any]
_PORTS = itertools.count(50000)


def refused(code: str, message: str) -> Exception:
    made: Exception = module("client").Refused(code, message)
    return made


def serve(request: Json, _stdin: Any) -> Json:
    process, address = the_process(), request["address"]
    host = process.host
    host.blob(request["area"], "0" * 64)
    if address not in (host.internal_ip, host.external_ip):
        raise refused("no-address", f"cannot listen on {address}: it is not an address of this host")
    where = (address, next(_PORTS))
    token = hashlib.sha256(f"{where} {host.host_key}".encode()).hexdigest()
    process.env["SERVED"] = json.dumps({"area": request["area"], "token": token})
    host.network.serving[where] = process
    host.network.asked_at[where] = process.now
    process.print(json.dumps({"progress": "serving", "port": where[1], "token": token}))
    ends, idle_s = process.now + request["deadline_s"], float(request.get("idle_s", "inf"))
    try:
        while (left := min(ends, host.network.asked_at[where] + idle_s) - process.now) > 0:
            wait(Wait(left))
    finally:
        del host.network.serving[where]
    return {"served": True}


def fetch(request: Json, _stdin: Any) -> Json:
    """Content after content, each whole when it has come."""
    process, area, tree = the_process(), request["area"], request["tree"]
    host, contents = process.host, module("contents")
    where = request["address"], request["port"]
    server = host.network.serving.get(where)
    if server is None or not server.alive:
        raise refused("no-peer", f"cannot fetch from {where[0]}: connection refused")
    served = json.loads(server.env["SERVED"])
    if served["token"] != request["token"]:
        raise refused("no-peer", "the other host does not know the token")
    count = 0
    wanted = [tree] if contents.find_tree(area, tree) is None else []
    while True:
        paths = {digest: server.host.blob(served["area"], digest) for digest in wanted}
        there = {digest: path.stat().st_size for digest, path in paths.items() if path.exists()}
        took_all = sum(there.values()) / host.network.copy_bytes_per_s
        host.network.asked_at[where] = max(host.network.asked_at[where], process.now + took_all)
        for digest, size in there.items():
            if took := size / host.network.copy_bytes_per_s:
                wait(Wait(took))
            if not server.alive:
                raise refused("no-peer", f"cannot fetch from {where[0]}: the other host hung up")
            contents.store_blob(area, digest, size, [paths[digest].read_bytes()])
            count += size
            process.print(json.dumps({"progress": "fetching", "bytes": count}))
        lacking = module("lacking").lacking_of(request)
        bits = int(lacking["lacking"] or "0", 16)
        blobs = contents.blobs_of(contents.find_tree(area, tree) or [])
        more = [digest for n, (digest, _) in enumerate(blobs) if bits >> n & 1]
        wanted = [digest for digest in more if server.host.blob(served["area"], digest).exists()]
        if not wanted:
            return {**lacking, "bytes": count}
