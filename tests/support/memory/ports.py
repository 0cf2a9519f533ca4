"""Forwarded ports of hosts in memory: a channel to a Python function that answers what one connection sent."""

from __future__ import annotations

import threading
from collections.abc import Callable


class MemoryChannel:
    """What `Forwarder` needs of a paramiko channel: the answer comes when the sender is done."""

    def __init__(self, serve: Callable[[bytes], bytes]) -> None:
        self._serve = serve
        self._sent = bytearray()
        self._answer = b""
        self._ready = threading.Event()

    def sendall(self, data: bytes) -> None:
        self._sent += data

    def shutdown_write(self) -> None:
        if not self._ready.is_set():
            self._answer = self._serve(bytes(self._sent))
            self._ready.set()

    def recv(self, size: int) -> bytes:
        self._ready.wait()
        data, self._answer = self._answer[:size], self._answer[size:]
        return data

    def close(self) -> None:
        self._ready.set()
