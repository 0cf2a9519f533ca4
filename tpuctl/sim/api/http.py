"""One HTTP server for all REST APIs: loopback only, guarded by a token, closed to foreign Host headers.

The simulator starts processes as the user, so a web page in the user's browser must not be able to talk to it:
a page cannot know the token, and DNS rebinding fails on the Host header.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from mmap import ACCESS_READ, mmap
from selectors import EVENT_READ, DefaultSelector
from tempfile import SpooledTemporaryFile
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.status import (
    HTTP_STATUS,
    ApiError,
    Code,
    DroppedConnectionError,
    invalid_argument,
    unknown_method,
)
from tpuctl.sim.world.iam import caller_of
from tpuctl.sim.world.paths import TOKEN_PREFIX

log = logging.getLogger(__name__)

Handler = Callable[[Request], Response]
STORAGE_PREFIXES = (
    "/storage/v1",
    "/upload/storage/v1",
    "/resumable/upload/storage/v1",
    "/download/storage/v1",
    "/batch/storage/v1",
)
_BUCKET_PATH = re.compile(r"/[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/|\Z)")
_OTHER_APIS = ("/compute/", "/batch/", "/discovery/", "/storage/", "/upload/", "/download/", "/resumable/")
"""Whose first part is no bucket, though it could be one."""
_VERSION = re.compile(r"/v\d+((alpha|beta)\d*)?/")
"""Of an API that is not simulated: no bucket either."""
_OVERRIDE = "x-http-method-override"
STORAGE_HOST = "storage.googleapis.com"
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MAX_BODY = 8 * 1024**3
_MAX_MESSAGE = 10 * 1024**2
"""What Google's front end takes besides content of objects."""
_PIECE = 1024**2


class StorageApi(Protocol):
    """Cloud Storage, which refuses in words of its own."""

    def handle(self, request: Request) -> Response: ...

    def needs_token(self, request: Request) -> bool: ...

    def without_token(self, request: Request) -> Request: ...

    def refuse_unauthenticated(self, request: Request) -> Response: ...


def error_response(error: ApiError) -> Response:
    return json_response(error.to_http_body(), HTTP_STATUS[error.code])


class Router:
    """Guards the APIs and finds the right one by the longest matching prefix."""

    def __init__(
        self,
        token: str,
        apis: Mapping[str, Handler],
        public: Mapping[str, Handler] | None = None,
        storage: StorageApi | None = None,
    ) -> None:
        """`public` ones, by their whole path, ask for no token: they give one."""
        self._token = token
        self._public = public or {}
        self._apis = sorted(apis.items(), key=lambda row: -len(row[0]))
        self._storage = storage

    def _admit(self, request: Request) -> Request:
        """Says who calls, by the token in the header or (storage only) in front of the path, which is taken
        off."""
        if request.path.startswith(TOKEN_PREFIX):
            token, slash, rest = request.path.removeprefix(TOKEN_PREFIX).partition("/")
            path, caller = slash + rest, caller_of(self._token, token)
            if caller is not None and self._is_storage(path, ""):
                # The API makes links from the Host header: with the prefix in it, a client can follow them.
                host = f"{request.headers.get('host', '')}{TOKEN_PREFIX}{token}"
                headers = {**request.headers, "host": host}
                return replace(request, path=path, headers=headers, caller=caller)
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        caller = caller_of(self._token, given.strip()) if scheme.lower() == "bearer" else None
        if caller is not None:
            return replace(request, caller=caller)
        if not given and self._storage is not None and not self._storage.needs_token(request):
            return self._storage.without_token(request)
        raise ApiError(
            Code.UNAUTHENTICATED,
            "Request had invalid authentication credentials: the simulator wants its own token "
            "(`tpuctl sim env` sets it).",
        )

    def handle(self, request: Request) -> Response:
        """Refusals become answers in Google's form; DroppedConnectionError passes."""
        request = _as_meant(request)
        try:
            admitted = self._admit(request) if request.path not in self._public else request
        except ApiError as error:
            if self._storage is not None and self._is_storage(request.path, request.headers.get("host", "")):
                return self._storage.refuse_unauthenticated(request)
            return error_response(error)
        try:
            if request.path in self._public:
                return self._public[request.path](request)
            if self._storage is not None and self._is_storage(admitted.path, request.headers.get("host", "")):
                return self._storage.handle(admitted)
            if request.spooled is not None:
                raise invalid_argument(f"Request payload size exceeds the limit: {_MAX_MESSAGE} bytes.")
            for prefix, handler in self._apis:
                if admitted.path.startswith(prefix):
                    return handler(admitted)
            raise unknown_method(f"{request.method} {admitted.path}")
        except ApiError as error:
            return error_response(error)

    def _is_storage(self, path: str, host: str) -> bool:
        """The JSON API's paths, and what may be /BUCKET/OBJECT of the XML API: all of its own host, what
        belongs to nobody else where all services have one address."""
        if path.startswith(STORAGE_PREFIXES):
            return True
        if ".googleapis.com" in host:
            return host.startswith(STORAGE_HOST)
        if any(path.startswith(prefix) for prefix, _ in self._apis):
            return False
        # object_store escapes the hyphens of a bucket, too.
        others = path.startswith(_OTHER_APIS) or _VERSION.match(path)
        return bool(_BUCKET_PATH.match(unquote(path))) and not others


def _as_meant(request: Request) -> Request:
    """A POST may stand for another verb (https://cloud.google.com/storage/docs/json_api/v1/parameters)."""
    verb = request.headers.get(_OVERRIDE, "").upper()
    if request.method != "POST" or verb not in ("GET", "PUT", "PATCH", "DELETE"):
        return request
    return replace(request, method=verb)


def _size(text: str | bytes, base: int) -> int:
    """Raises ValueError for what is no size of a body."""
    size = int(text, base)
    if not 0 <= size <= _MAX_BODY:
        raise ValueError(f"a body of {size} bytes")
    return size


def _header_value(text: str) -> str:
    """UTF-8, as Google sends what users chose, and nothing that would end the line."""
    return re.sub(r"[\x00-\x08\x0a-\x1f\x7f]", " ", text).encode("utf-8", "replace").decode("latin-1")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    timeout = 0
    handle_request_message: Handler
    admits: Callable[[str], bool]
    scheme: str
    clock_skew: Callable[[], float]

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[socket.socket] = set()
        self._ended, self._end = socket.socketpair()
        super().__init__(address, handler)

    def serve_until_ended(self) -> None:
        """As `serve_forever`, which looks every now and then whether it is to end, and ends that much later."""
        with DefaultSelector() as selector:
            selector.register(self, EVENT_READ)
            selector.register(self._ended, EVENT_READ)
            while all(key.fileobj is not self._ended for key, _ in selector.select()):
                self.handle_request()

    def end(self) -> None:
        self._end.close()

    def server_close(self) -> None:
        super().server_close()
        self._end.close()
        self._ended.close()

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

    def _chunks(self) -> Iterator[bytes]:
        """The body in pieces. Raises ValueError for a malformed one, ConnectionError when it breaks off."""
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            yield from self._read_pieces(_size(self.headers.get("content-length") or "0", 10))
            return
        while size := _size(self.rfile.readline().split(b";")[0].strip() or b"0", 16):
            yield from self._read_pieces(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue

    def _read_pieces(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self.rfile.read(min(size, _PIECE))
            if not piece:
                # What was cut off must not pass for the whole.
                raise ConnectionResetError("the body broke off")
            size -= len(piece)
            yield piece

    def _read_body(self) -> bytes | mmap:
        """The body; a file when it is content that may be larger than memory."""
        media = self.command == "PUT" or "/upload/" in self.path
        with SpooledTemporaryFile(max_size=_PIECE if media else _MAX_MESSAGE) as spool:
            for piece in self._chunks():
                if spool.tell() + len(piece) > _MAX_BODY:
                    raise ValueError("body too large")
                spool.write(piece)
            if spool.tell() <= (_PIECE if media else _MAX_MESSAGE):
                spool.seek(0)
                return spool.read()
            spool.flush()
            return mmap(spool.fileno(), 0, access=ACCESS_READ)

    def _serve(self) -> None:
        host = self.headers.get("host", "")
        try:
            body = self._read_body()
        except ConnectionError:
            self.close_connection = True
            return None
        except ValueError:
            self.close_connection = True
            return self._send(error_response(invalid_argument("bad request body")))
        if not self.server.admits(host.lower()):
            return self._send(error_response(ApiError(Code.PERMISSION_DENIED, "bad Host header")))
        url = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=url.path,
            query=parse_qs(url.query, keep_blank_values=True),
            headers={
                **{key.lower(): value for key, value in self.headers.items()},
                "x-forwarded-proto": self.server.scheme,
            },
            body=body if isinstance(body, bytes) else b"",
            spooled=None if isinstance(body, bytes) else body,
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
        for key, value in (*response.headers.items(), *response.more_headers):
            if key.lower() != "content-length":
                self.send_header(key, _header_value(value))
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
    the Date headers are ahead. `behind_tls`: which names it answers for behind somebody who ends TLS, instead
    of those of the loopback."""

    def __init__(
        self,
        handler: Handler,
        *,
        port: int = 0,
        clock_skew: Callable[[], float] = float,
        behind_tls: Callable[[str], bool] | None = None,
    ) -> None:
        self._server = _Server(("127.0.0.1", port), _HttpHandler)
        self.port = int(self._server.server_address[1])
        self._server.handle_request_message = handler
        self._server.clock_skew = clock_skew
        self._names = {f"{name}:{self.port}" for name in _LOOPBACK_NAMES}
        self._server.admits = behind_tls or self._names.__contains__
        self._server.scheme = "https" if behind_tls else "http"
        self._thread = threading.Thread(target=self._server.serve_until_ended, name="sim-http", daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def allow_host(self, name: str) -> None:
        """Answers under `name` too, by which hosts with a network of their own know this server."""
        self._names.add(f"{name}:{self.port}")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.end()
            self._thread.join()
        self._server.hang_up()
        self._server.server_close()
