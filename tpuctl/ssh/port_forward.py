"""A local port that leads to a port of a worker, each connection on a channel of its own."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tpuctl.errors import ConflictError

if TYPE_CHECKING:
    import paramiko

CHUNK = 65536
LOOPBACK = "127.0.0.1"
POLL_S = 0.5


class Forwarder:
    """Listens on this machine's loopback only. `open_channel` is called for every connection, so that it may
    lead to another host than before; what it raises goes to `report` and closes that connection."""

    def __init__(
        self, open_channel: Callable[[], paramiko.Channel], local_port: int, report: Callable[[str], None]
    ) -> None:
        self._open_channel = open_channel
        self._report = report
        self._over = threading.Event()
        try:
            self._listener = socket.create_server((LOOPBACK, local_port))
        except OSError as error:
            raise ConflictError(
                f"port {local_port} of this machine cannot be used: {error.strerror}",
                hint="name another one as LOCAL:REMOTE, or 0 for any",
            ) from error
        self._listener.settimeout(POLL_S)
        self.local_port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="tpuctl-forward", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the listening and every connection."""
        self._over.set()
        with contextlib.suppress(OSError):  # where that is not possible, it is noticed a little later
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._over.is_set():
                    return
                raise
            threading.Thread(target=self._carry, args=(connection,), daemon=True).start()

    def _carry(self, connection: socket.socket) -> None:
        with connection:
            try:
                channel = self._open_channel()
            except Exception as error:  # noqa: BLE001 - one connection's trouble must not end the listening
                self._report(str(error))
                return
            with contextlib.suppress(OSError, EOFError), contextlib.closing(channel):  # closing speaks, too
                self._join(connection, channel)

    def _join(self, connection: socket.socket, channel: paramiko.Channel) -> None:
        """Passes bytes both ways, and the end of each way, until both have ended."""
        back = threading.Thread(target=self._back, args=(channel, connection), daemon=True)
        back.start()
        while back.is_alive() and not self._over.is_set():
            if not select.select([connection], [], [], POLL_S)[0]:
                continue
            data = connection.recv(CHUNK)
            if not data:
                channel.shutdown_write()
                break
            channel.sendall(data)
        while back.is_alive() and not self._over.is_set():
            back.join(POLL_S)

    def _back(self, channel: paramiko.Channel, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            while data := channel.recv(CHUNK):
                connection.sendall(data)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
