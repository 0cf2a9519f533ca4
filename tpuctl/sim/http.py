"""One HTTP server for all REST doors: loopback only, guarded by a token, deaf to foreign Host headers.

The simulator starts processes as the user, so a web page in the user's browser must not be able to talk to it:
a page cannot know the token, and DNS rebinding fails on the Host header.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tpuctl.sim.messages import Request, Response, json_response
from tpuctl.sim.paths import TOKEN_PREFIX
from tpuctl.sim.status import HTTP_STATUS, ApiError, Code, DroppedConnectionError, unknown_method

log = logging.getLogger(__name__)

Handler = Callable[[Request], Response]
STORAGE_PREFIXES = (
    "/storage/v1",
    "/upload/storage/v1",
    "/resumable/upload/storage/v1",
    "/download/storage/v1",
    "/batch/storage/v1",
)
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MAX_BODY = 8 * 1024**3


def error_response(error: ApiError) -> Response:
    return json_response(error.to_http_body(), HTTP_STATUS[error.code])


class Router:
    """Guards the doors and finds the right one by the longest matching prefix."""

    def __init__(self, token: str, doors: Mapping[str, Handler]) -> None:
        self._token = token.encode()
        self._doors = sorted(doors.items(), key=lambda row: -len(row[0]))

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token)

    def _admit(self, request: Request) -> Request:
        """Checks the token, in the header or (storage only) in front of the path, which is taken off."""
        if request.path.startswith(TOKEN_PREFIX):
            token, slash, rest = request.path.removeprefix(TOKEN_PREFIX).partition("/")
            path = slash + rest
            if self._is_token(token) and path.startswith(STORAGE_PREFIXES):
                # The door makes links from the Host header: with the prefix in it, a client can follow them.
                host = f"{request.headers.get('host', '')}{TOKEN_PREFIX}{token}"
                return replace(request, path=path, headers={**request.headers, "host": host})
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given.strip()):
            return request
        raise ApiError(
            Code.UNAUTHENTICATED,
            "Request had invalid authentication credentials: the simulator wants its own token "
            "(`tpuctl sim env` sets it).",
        )

    def handle(self, request: Request) -> Response:
        """Refusals become answers in Google's form; DroppedConnectionError passes."""
        try:
            admitted = self._admit(request)
            for prefix, handler in self._doors:
                if admitted.path.startswith(prefix):
                    return handler(admitted)
            raise unknown_method(f"{request.method} {admitted.path}")
        except ApiError as error:
            return error_response(error)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    handle_request_message: Handler
    allowed_hosts: frozenset[str]
    clock_skew: Callable[[], float]

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Cuts kept-alive connections: a closed simulator must not answer on them."""
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class _HttpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The Date header: clients that compare clocks read it."""
        return super().date_time_string((timestamp or time.time()) + self.server.clock_skew())

    def _read_chunked(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0].strip() or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue
        return b"".join(parts)

    def _read_body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            return self._read_chunked()
        length = int(self.headers.get("content-length") or 0)
        if not 0 <= length <= _MAX_BODY:
            raise ValueError(f"content-length {length}")
        return self.rfile.read(length)

    def _serve(self) -> None:
        host = self.headers.get("host", "")
        try:
            body = self._read_body()
        except ValueError:
            self.close_connection = True
            return self._send(error_response(ApiError(Code.INVALID_ARGUMENT, "bad request body")))
        if host.lower() not in self.server.allowed_hosts:
            return self._send(error_response(ApiError(Code.PERMISSION_DENIED, "bad Host header")))
        url = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=url.path,
            query=parse_qs(url.query, keep_blank_values=True),
            headers={key.lower(): value for key, value in self.headers.items()},
            body=body,
        )
        try:
            return self._send(self.server.handle_request_message(request))
        except DroppedConnectionError:
            self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            self._send(error_response(ApiError(Code.INTERNAL, f"bug in the simulator: {error!r}")))

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        for key, value in response.headers.items():
            if key.lower() != "content-length":
                self.send_header(key, value)
        bare = response.status == 204 or response.status < 200
        if not bare:
            length = response.headers.get("content-length") if self.command == "HEAD" else None
            self.send_header("content-length", length or str(len(response.body)))
        self.end_headers()
        if not bare and self.command != "HEAD":
            self.wfile.write(response.body)
        self.wfile.flush()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _serve


class HttpServer:
    """Serves a handler on 127.0.0.1 until `close`; `port` 0 takes a free one. `clock_skew`: seconds by which
    the Date headers are ahead."""

    def __init__(self, handler: Handler, *, port: int = 0, clock_skew: Callable[[], float] = float) -> None:
        self._server = _Server(("127.0.0.1", port), _HttpHandler)
        self.port = int(self._server.server_address[1])
        self._server.handle_request_message = handler
        self._server.clock_skew = clock_skew
        self._server.allowed_hosts = frozenset(f"{name}:{self.port}" for name in _LOOPBACK_NAMES)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="sim-http", daemon=True
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def allow_host(self, name: str) -> None:
        """Answers under `name` too, by which hosts with a network of their own know this server."""
        self._server.allowed_hosts |= {f"{name}:{self.port}"}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.hang_up()
        self._server.server_close()
