"""Dead man's switch: one GET after a good pass. It never raises; what went wrong is said in words."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.error
import urllib.request
from typing import Any

from tpuctl.model.timeouts import PING_TIMEOUT_S


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """What was checked is what is called: a redirect could lead to a plain http address."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Call:
    """One request on a thread of its own, whose end is waited for so long and no longer.

    A socket's timeout bounds each read (docs.python.org, `socket.settimeout`): a server that sends a byte now
    and then outlasts it.
    """

    def __init__(self, request: urllib.request.Request, timeout_s: float) -> None:
        self._request = request
        self._timeout_s = timeout_s
        self._sockets: list[socket.socket] = []
        self._trouble = "TimeoutError: timed out"

    def work(self) -> str:
        """Trouble in words, empty for a success; returns within the timeout."""
        thread = threading.Thread(target=self._send, daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        trouble = self._trouble
        if thread.is_alive():
            self._hang_up()
        return trouble

    def _send(self) -> None:
        try:
            opener = urllib.request.build_opener(_NoRedirects, *_keeping(self._sockets))
            with opener.open(self._request, timeout=self._timeout_s) as answer:
                answer.read1(1000)
        except urllib.error.HTTPError as error:
            error.close()
            self._trouble = f"the answer was {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._trouble = f"{type(error).__name__}: {getattr(error, 'reason', None) or error}"
        else:
            self._trouble = ""

    def _hang_up(self) -> None:
        """Ends what the thread still reads, so that it ends, too."""
        for each in self._sockets:
            with contextlib.suppress(OSError):  # closed since
                socket.socket.shutdown(each, socket.SHUT_RDWR)


def _keeping(sockets: list[socket.socket]) -> tuple[urllib.request.BaseHandler, ...]:
    """Handlers that put the socket of each connection into `sockets`."""

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            sockets.append(self.sock)

    class Safe(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            sockets.append(self.sock)

    class Http(urllib.request.HTTPHandler):
        def do_open(self, http_class: Any, req: Any, **given: Any) -> Any:  # noqa: ARG002 - the standard one
            return super().do_open(Plain, req, **given)

    class Https(urllib.request.HTTPSHandler):
        def do_open(self, http_class: Any, req: Any, **given: Any) -> Any:  # noqa: ARG002 - the standard one
            return super().do_open(Safe, req, **given)

    return Http(), Https()


def call_url(request: urllib.request.Request, timeout_s: float) -> str:
    """Sends one request and returns trouble in words, without the URL, which may be a secret; empty for a
    success. It takes no longer than `timeout_s` as a whole. The proxies of the environment are used."""
    return _Call(request, timeout_s).work()


def ping(url: str) -> str:
    """Calls `url`, which `check_ping_url` accepted; trouble in words, or an empty string."""
    request = urllib.request.Request(url, headers={"User-Agent": "tpuctl"})  # noqa: S310 - the scheme was checked
    trouble = call_url(request, PING_TIMEOUT_S)
    return f"ping: {trouble}" if trouble else ""
