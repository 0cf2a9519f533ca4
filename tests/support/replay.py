"""A server that gives recorded answers over a real socket, each once and in order."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.recorded.stories import Exchange


class Replay:
    """`left` are the answers that nobody asked for yet, `astray` the requests that none of them answers."""

    def __init__(self, endpoint: str, exchanges: Sequence[Exchange]) -> None:
        self.endpoint = endpoint
        self.left = list(exchanges)
        self.astray: list[str] = []
        self.bodies: list[Any] = []

    def take(self, method: str, target: str) -> Exchange | None:
        """The next answer to `method` on this path. What a client adds to the query is its own affair."""
        path = target.partition("?")[0]
        for each in self.left:
            if (each.method, each.path) == (method, path):
                self.left.remove(each)
                return each
        if method == "GET" and "projection=noAcl&prettyPrint=false" in target:
            return None  # google-cloud-storage looks at a bucket by itself, for its traces
        self.astray.append(f"{method} {target}")
        return None


@contextmanager
def replaying(exchanges: Sequence[Exchange]) -> Iterator[Replay]:
    """Fails at the end when a request had no answer, or an answer no request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

        def serve(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length") or 0))
            if sent and "json" in self.headers.get("content-type", ""):
                replay.bodies.append(json.loads(sent))
            found = replay.take(self.command, self.path)
            if found is None:
                self.send_response(400, "nothing is recorded for this")
                self.send_header("content-length", "0")
                self.end_headers()
                return
            content = (found.content or "").encode() if found.body is None else json.dumps(found.body).encode()
            self.send_response_only(found.status)
            for key, value in found.headers.items():
                self.send_header(key, value)
            if found.status != 204:
                self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = serve

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    replay = Replay(f"http://127.0.0.1:{server.server_address[1]}", exchanges)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield replay
        assert not replay.astray, f"asked for what is not recorded: {replay.astray}"
        assert not replay.left, f"never asked for: {[each.name for each in replay.left]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
