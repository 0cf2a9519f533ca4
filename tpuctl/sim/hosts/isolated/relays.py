"""How isolated hosts reach the machine they are on: its APIs, its package registries, and their metadata.

Hosts have no route to anywhere but their bridge. On its address a relay leads to each API of the simulator;
in each host's own network answers its metadata server.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

from tpuctl.sim.hosts.backend import HostSpec
from tpuctl.sim.hosts.metadata import Values, serve_connection
from tpuctl.sim.hosts.process.addresses import listen_on
from tpuctl.sim.wire.splice import CHUNK, LoopThread, Streams, splice

METADATA_ADDRESS = ("169.254.169.254", 80)
CLONE_NEWNET = 0x40000000


class Relays:
    """An event loop in a thread of its own, with everything that listens for isolated hosts."""

    def __init__(self) -> None:
        self._loop = LoopThread("sim-relays")
        self._callbacks = ThreadPoolExecutor(16, thread_name_prefix="sim-host-callback")
        self._servers: list[asyncio.Server] = []

    def forward(self, address: str, port: int) -> None:
        """What connects to `address`:`port` is connected to the same port of the machine's loopback."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await splice(reader, writer, "127.0.0.1", port)

        self._listen(serve, listen_on(address, port))

    def metadata(self, sock: socket.socket, spec: HostSpec) -> asyncio.Server:
        """A metadata server on a socket of the network of the host that `spec` describes."""

        async def look_up() -> Values:
            return await asyncio.get_running_loop().run_in_executor(self._callbacks, spec.metadata)

        async def publish(path: str, value: str | None) -> bool:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._callbacks, spec.publish, path, value)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve_connection(reader, writer, look_up, publish)

        return self._listen(serve, sock)

    def stop(self, server: asyncio.Server) -> None:
        """Ends one server; its connections die with their host."""
        if server in self._servers:
            self._servers.remove(server)
            self._loop.loop.call_soon_threadsafe(server.close)

    def close(self) -> None:
        for server in list(self._servers):
            self.stop(server)
        self._loop.close()
        self._callbacks.shutdown(wait=False, cancel_futures=True)

    def _listen(self, serve: Streams, sock: socket.socket) -> asyncio.Server:
        server = self._loop.call(asyncio.start_server(serve, sock=sock, limit=CHUNK))
        self._servers.append(server)
        return server


def listen_in_namespace(pid: int) -> socket.socket:
    """A listening socket on the metadata address in the network of process `pid`.

    The calling thread visits that network and comes back; a socket stays where it was made (setns(2)).
    """
    with (
        open(f"/proc/{pid}/ns/net", "rb") as theirs,  # noqa: PTH123 - not a file
        open(f"/proc/self/task/{threading.get_native_id()}/ns/net", "rb") as ours,  # noqa: PTH123
    ):
        _set_namespace(theirs.fileno())
        try:
            return listen_on(*METADATA_ADDRESS)
        finally:
            _set_namespace(ours.fileno())


def _set_namespace(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
