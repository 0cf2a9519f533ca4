"""A JSON server over a real socket that says what a test wants it to say."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Answer = tuple[int, Any]


class JsonApi:
    """Answers with what `answer` makes of a query; `asked` has method, path, query and body of each request."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.answer: Callable[[dict[str, str]], Answer] = lambda _query: (200, {})
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []


@contextmanager
def json_api() -> Iterator[JsonApi]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

        def serve(self) -> None:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query))
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            told.asked.append((self.command, url.path, query, body))
            status, data = told.answer(query)
            content = data if isinstance(data, bytes) else json.dumps(data).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = serve

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told = JsonApi(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
