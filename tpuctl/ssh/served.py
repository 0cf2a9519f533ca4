"""Commands that stay on a connection and answer one request after the other: see `tpuctl/agent/serve.py`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import TYPE_CHECKING

from tpuctl.engine.ports import Server
from tpuctl.model.hosts import FailureKind, HostTarget
from tpuctl.ssh.calls import Emit
from tpuctl.ssh.session import KILLED, Ending

if TYPE_CHECKING:
    import paramiko

HEAD = 5
SMALL = 64 << 10
"""Bytes of a request that a server is asked: it reads the whole before it begins."""
READY = b"\0tpuctl answers\n"
"""What a server says first: a login script may have printed something before it."""
BEGUN, STDERR, EXIT = b"b", b"e", b"x"
Link = tuple["paramiko.Transport", "paramiko.Channel"]


def read_small(
    stdin: bytes | Iterable[bytes | None],
) -> tuple[bytes | None, bytes | Iterable[bytes | None]]:
    """All of it, if that is little; what is to be sent otherwise."""
    if isinstance(stdin, bytes):
        return (stdin if len(stdin) <= SMALL else None), stdin
    source, pieces, size = iter(stdin), list[bytes](), 0
    for piece in source:
        size += len(piece or b"")
        if piece is None or size > SMALL:
            return None, chain(pieces, [piece], source)
        pieces.append(piece)
    return b"".join(pieces), pieces


def render_request(server: Server, stdin: bytes) -> bytes:
    """What asks for `server.verb`."""
    return b"%s %d\n%s" % (server.verb.encode(), len(stdin), stdin)


class ServedAnswer:
    """Takes what a server says, and passes on to `emit` what the verb wrote. `is_first`: the server starts.
    `on_begin` is called when the verb begins."""

    def __init__(self, emit: Emit, *, is_first: bool, on_begin: Callable[[], None] = lambda: None) -> None:
        self._is_ready = not is_first
        self.begun = False
        """The server said so. Where it did not, the connection may have been lost before that arrived."""
        self.is_refused = False
        """The request was provably not carried out: it was not sent, or the server ended before it began."""
        self.ending: Ending | None = None
        self.said = b""
        """By the server itself, on stderr: why it does not start."""
        self._emit = emit
        self._on_begin = on_begin
        self._bytes = bytearray()

    def take(self, name: str, data: bytes) -> bool:
        """As `Emit`: false while what came before is not passed on."""
        if not self._pass_on():
            return False
        if name == "stderr":
            self.said += data
        else:
            self._bytes += data
        self._pass_on()
        return True

    def _pass_on(self) -> bool:
        if not self._is_ready:
            at = self._bytes.find(READY)
            self._is_ready = at >= 0
            del self._bytes[: at + len(READY) if self._is_ready else 1 - len(READY)]
            if not self._is_ready:
                return True
        while len(self._bytes) >= HEAD:
            size = HEAD + int.from_bytes(self._bytes[1:HEAD], "big")
            if len(self._bytes) < size:
                break
            if not self._note(bytes(self._bytes[:1]), bytes(self._bytes[HEAD:size])):
                return False
            del self._bytes[:size]
        return True

    def _note(self, kind: bytes, data: bytes) -> bool:
        if kind == BEGUN:
            self.begun = True
            self._on_begin()
        elif kind == EXIT:
            status = int(data)
            killed = Ending(failure=FailureKind.SIGNAL, detail=KILLED)
            self.ending = Ending(exit_status=status) if status >= 0 else killed
        else:
            return self._emit("stderr" if kind == STDERR else "stdout", data)
        return True


class Servers:
    """Those that wait for the next request: one for each worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[HostTarget, tuple[str, Link]] = {}

    def take(self, target: HostTarget, command: str) -> Link | None:
        """One that `command` started, if there is one; from now on nobody else has it."""
        with self._lock:
            found = self._waiting.pop(target, None)
        if found is None:
            return None
        started_by, (transport, channel) = found
        if started_by == command and transport.is_active() and not channel.closed:
            return transport, channel
        channel.close()
        return None

    def keep(self, target: HostTarget, command: str, link: Link) -> None:
        """For the next request; of two, the first."""
        with self._lock:
            kept = self._waiting.setdefault(target, (command, link))
        if kept[1] is not link:
            link[1].close()

    def forget_all_but(self, busy: Collection[HostTarget]) -> None:
        """Of the others the connections are closed."""
        with self._lock:
            self._waiting = {target: kept for target, kept in self._waiting.items() if target in busy}
