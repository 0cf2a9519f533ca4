"""An intrusion blocker on a simulated host: after some refused log-ins nothing of what is sent to it arrives.

sshguard of Google's Ubuntu images does so for each address. All clients of a process host have that of this
machine, so it goes deaf to everybody.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from collections.abc import Callable, Iterable

LOOK_S = 0.2
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of the kernel's packet filters (linux/filter.h): accept no byte."""


class Blocker:
    """Counts refusals in a row. `bans` says of how many of them none counts and for how many seconds the next
    one bans; None while there is no such blocker, which also ends a ban."""

    def __init__(self, bans: Callable[[], tuple[int, float] | None]) -> None:
        self._bans = bans
        self._refused = 0
        self._sockets: list[socket.socket] = []
        self._deaf_until: float | None = None

    def guard(self, sockets: Iterable[socket.socket]) -> None:
        """These are what the host listens on, from its boot on."""
        self._sockets, self._refused, self._deaf_until = list(sockets), 0, None

    def let_in(self) -> None:
        self._refused = 0

    def refuse(self) -> None:
        """A log-in was refused."""
        self._refused += 1
        found = self._bans()
        if found is None or self._refused <= found[0] or self._deaf_until is not None:
            return
        buffer = ctypes.create_string_buffer(_DROP_ALL)
        for each in self._sockets:
            program = struct.pack("HL", 1, ctypes.addressof(buffer))
            each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self._deaf_until = asyncio.get_running_loop().time() + found[1]
        self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if self._deaf_until is None:
            return
        if self._bans() is not None and loop.time() < self._deaf_until:
            loop.call_later(LOOK_S, self._look)
            return
        self._refused, self._deaf_until = 0, None
        for each in self._sockets:
            if each.fileno() >= 0:  # the power may be off
                each.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
