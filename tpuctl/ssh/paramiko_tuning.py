"""paramiko as tpuctl uses it: imported lean, and tuned through what its constructor takes.

Import this module, late, instead of paramiko: whoever comes first decides what the import costs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import select
import socket
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

METADATA = "importlib.metadata"


@contextlib.contextmanager
def absent(module: str) -> Iterator[None]:
    """`import module` fails meanwhile: None in sys.modules says that (Python reference, The import system)."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


@contextlib.contextmanager
def knowing_version(package: str) -> Iterator[None]:
    """`importlib.metadata` meanwhile knows the version of `package` without being imported, from the name of
    the folder beside the package (PyPA specification "Recording installed projects"). All else that it is asked
    for comes from the real one."""
    version = _version_beside(package)
    if version is None or METADATA in sys.modules:
        yield
        return
    stand_in = types.ModuleType(METADATA)

    def real() -> types.ModuleType:
        if sys.modules.get(METADATA) is stand_in:
            del sys.modules[METADATA]
        return importlib.import_module(METADATA)

    vars(stand_in).update(
        version=lambda name: version if name == package else real().version(name),
        __getattr__=lambda attribute: getattr(real(), attribute),
    )
    sys.modules[METADATA] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(METADATA) is stand_in:
            del sys.modules[METADATA]


def _version_beside(package: str) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    found = list(Path(spec.origin).parents[1].glob(f"{package}-*.dist-info"))
    return found[0].stem.partition("-")[2] if len(found) == 1 else None


# paramiko 5.1 does without invoke, a third of its import, which serves only `Match exec` in ssh_config files.
# An ImportError is all that it goes by (paramiko/config.py): there is no switch, and pip installs both.
# And it asks importlib.metadata, behind which is a parser of e-mails, for nothing but its own version.
with absent("invoke"), knowing_version("paramiko"):
    import paramiko
    from paramiko.common import cMSG_GLOBAL_REQUEST
    from paramiko.packet import Packetizer

__all__ = ["BufferedSocket", "ask_for_life", "end", "hang_up", "heard_at", "new_transport", "paramiko"]

READ_AHEAD = 32 * 1024
TICK_S = 5.0
"""How often paramiko's thread looks around on an idle connection. Its own 0.1 s costs 3 % of a core at 256."""

JOIN_S = 10.0
"""More than a thread needs that has read the end of the stream."""


class BufferedSocket(socket.socket):
    """Reads ahead: paramiko asks for a packet in two or three small pieces."""

    _ahead = b""
    _used = 0

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """As socket.recv; what was read too much comes first."""
        if self._used >= len(self._ahead):
            self._ahead, self._used = super().recv(READ_AHEAD, flags), 0
        found = self._ahead[self._used : self._used + bufsize]
        self._used += len(found)
        return found


class UntimedPacketizer(Packetizer):
    """Leaves the handshake's deadline to `connection`, which watches it anyway: one thread less per worker.
    Knows when something came last."""

    heard_at = 0.0

    def read_message(self) -> tuple[int, paramiko.Message]:
        """As paramiko's."""
        found: tuple[int, paramiko.Message] = super().read_message()
        self.heard_at = time.monotonic()
        return found

    def start_handshake(self, timeout: float) -> None:
        """Starts no timer."""

    def handshake_timed_out(self) -> bool:
        return False

    def complete_handshake(self) -> None:
        """There is no timer to stop."""


def new_transport(sock: socket.socket) -> paramiko.Transport:
    """A client transport that is not started yet; `end` ends it."""
    transport = paramiko.Transport(sock, packetizer_class=UntimedPacketizer)
    transport.daemon = True
    sock.settimeout(TICK_S)
    return transport


def heard_at(transport: paramiko.Transport) -> float:
    """When the other side last said something, whatever it was."""
    packetizer = transport.packetizer
    return packetizer.heard_at if isinstance(packetizer, UntimedPacketizer) else 0.0


def ask_for_life(transport: paramiko.Transport) -> None:
    """Asks the other side for an answer, of which `heard_at` tells: any will do, a refusal too. This is how
    OpenSSH's ServerAliveInterval works. It never waits: nothing is sent while keys are exchanged, and while the
    other side does not take what was sent before."""
    request = paramiko.Message()
    request.add_byte(cMSG_GLOBAL_REQUEST)
    request.add_string("keepalive@openssh.com")
    request.add_boolean(True)
    poll = select.poll()
    # Whoever closes it meanwhile ends its channels, too, and a closed socket has no number, a ValueError.
    with contextlib.suppress(OSError, EOFError, ValueError, paramiko.SSHException):
        poll.register(transport.sock, select.POLLOUT)
        if transport.clear_to_send.is_set() and poll.poll(0):
            transport._send_user_message(request)  # type: ignore[attr-defined]


def hang_up(transport: paramiko.Transport) -> None:
    """Closes the connection without waiting. Its thread wakes at the end of the stream; a mere close of the
    socket would wake it at its next tick."""
    with contextlib.suppress(OSError):  # the other side was first
        transport.sock.shutdown(socket.SHUT_RDWR)
    transport.close()


def end(transport: paramiko.Transport) -> None:
    """Hangs up and waits for paramiko's thread."""
    hang_up(transport)
    if transport.is_alive():
        transport.join(JOIN_S)
