"""Loopback addresses for simulated hosts, claimed by listening on their metadata port.

Linux answers on all of 127.0.0.0/8 without configuration; several simulators on one machine share it, so an
address belongs to whoever listens first. A host has two, as a real one: 127.77.X.Y is its own, 127.79.X.Y is
where the world finds it.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from tpuctl.errors import TpuctlError

HIGH_SSH_PORTS = (2222, *range(20022, 20122))
METADATA_PORTS = (8779, *range(20879, 20979))
PROBE_ADDRESS = "127.77.255.254"
HOSTS = 255 * 253
SPREAD = 509
"""Addresses between the first ones of two processes started one after the other."""
BACKLOG = 256


def _bind(address: str, port: int) -> socket.socket:
    # asyncio sets TCP_NODELAY only on sockets whose protocol is spelled out.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock


def listen_on(address: str, port: int) -> socket.socket:
    """A non-blocking listening socket. OSError as from bind(2) and listen(2)."""
    sock = _bind(address, port)
    try:
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


@dataclass(frozen=True)
class Place:
    """The addresses of one host."""

    internal_ip: str
    external_ip: str

    def listen(self, port: int) -> list[socket.socket]:
        """Listening sockets on both. OSError as from bind(2) and listen(2); then neither is left."""
        first = listen_on(self.internal_ip, port)
        try:
            return [first, listen_on(self.external_ip, port)]
        except OSError:
            first.close()
            raise


def _choose_port(candidates: Iterable[int]) -> int:
    """The first port that may be bound and that nobody holds on all addresses."""
    for port in candidates:
        try:
            _bind(PROBE_ADDRESS, port).close()
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EADDRINUSE, errno.EPERM):
                raise
        else:
            return port
    raise TpuctlError("no free port for the simulated hosts on 127.77.0.0/16")


class AddressPool:
    """Hands out addresses in order, from a place of this process's own, skipping those that others hold."""

    def __init__(self, ssh_port: int | None) -> None:
        self.ssh_port = ssh_port or _choose_port((22, *HIGH_SSH_PORTS))
        self.metadata_port = _choose_port(METADATA_PORTS)
        # Simulators begin far apart: an address that a preempted host just left is not at once another's.
        first = os.getpid() * SPREAD % HOSTS
        self._numbers = itertools.cycle([*range(first, HOSTS), *range(first)])

    def claim(self) -> tuple[Place, list[socket.socket], socket.socket]:
        """A new place with its listening SSH sockets and that of its metadata."""
        for number in itertools.islice(self._numbers, HOSTS):
            rest = f"{number // 253}.{number % 253 + 1}"
            place = Place(f"127.77.{rest}", f"127.79.{rest}")
            try:
                metadata = listen_on(place.internal_ip, self.metadata_port)
            except OSError as error:
                self._check_taken(error)
                continue
            try:
                return place, place.listen(self.ssh_port), metadata
            except OSError as error:
                metadata.close()
                self._check_taken(error)
        raise TpuctlError("all loopback addresses 127.77.0.0/16 are in use")

    def _check_taken(self, error: OSError) -> None:
        if error.errno != errno.EADDRINUSE:
            raise TpuctlError(
                f"cannot listen on loopback addresses 127.77.0.0/16: {error.strerror}",
                hint="the process tier of simulated hosts needs Linux; check the SSH port you asked for",
            ) from error
