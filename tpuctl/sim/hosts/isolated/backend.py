"""The isolated tier of simulated hosts: namespaces, an overlay of the machine's file system, and a real sshd.

Root on Linux. Each host has its own network, mounts, processes, hostname, users and boot id, so that a
preemption looks like a vanished machine and what needs root can be rehearsed. Hosts share the machine's kernel
and see most of its files: this is no security boundary.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from tpuctl.errors import TpuctlError
from tpuctl.model.shipped_files import read_template
from tpuctl.sim.hosts.backend import STARTUP_SCRIPT, HostAddress, HostBackend, HostDisk, HostSpec
from tpuctl.sim.hosts.files import SYSTEM_PATH, wheel_cache, wipe
from tpuctl.sim.hosts.isolated.data_disks import DiskFiles
from tpuctl.sim.hosts.isolated.firewall import Machine, apply_filter, render_filter
from tpuctl.sim.hosts.isolated.host import SSH_PORT, HostPlace, IsolatedHost
from tpuctl.sim.hosts.isolated.loop_devices import make_nodes
from tpuctl.sim.hosts.isolated.network import Bridge
from tpuctl.sim.hosts.isolated.requirements import (
    check_possible,
    find_sshd,
    remove_leftovers,
    storage_for,
)
from tpuctl.sim.hosts.metadata import Values, serve_connection
from tpuctl.sim.hosts.process.addresses import listen_on
from tpuctl.sim.hosts.process.children import base_interpreter
from tpuctl.sim.hosts.process.keys import AcceptedKeys
from tpuctl.sim.wire.splice import CHUNK, LoopThread, Streams, splice

T = TypeVar("T")

HIDDEN = ("/root", "/home", "/tmp", "/mnt")  # noqa: S108 - what a host has of its own
WAITERS = 32


METADATA_ADDRESS = ("169.254.169.254", 80)
LOOPBACK = "127.0.0.1"
CLONE_NEWNET = 0x40000000


class Relays:
    """Everything that listens for isolated hosts, which have no route to anywhere but their bridge: on its
    address a relay leads to each API of the simulator, in each host's network answers its metadata server."""

    def __init__(self) -> None:
        self._loop = LoopThread("sim-relays")
        self._callbacks = ThreadPoolExecutor(16, thread_name_prefix="sim-host-callback")
        self._servers: list[asyncio.Server] = []

    def forward(self, address: str, port: int) -> None:
        """What connects to `address`:`port` is connected to the same port of the machine's loopback."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await splice(reader, writer, "127.0.0.1", port)

        self._listen(serve, listen_on(address, port))

    def serve(self, sock: socket.socket, streams: Streams) -> asyncio.Server:
        """A server on a socket of the network of a host."""
        return self._listen(streams, sock)

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
        """Ends one server, so that its port is free; its connections die with their host."""

        async def end() -> None:
            server.close()

        if server in self._servers:
            self._servers.remove(server)
            self._loop.call(end())

    def close(self) -> None:
        for server in list(self._servers):
            self.stop(server)
        self._loop.close()
        self._callbacks.shutdown(wait=False, cancel_futures=True)

    def _listen(self, serve: Streams, sock: socket.socket) -> asyncio.Server:
        server = self._loop.call(asyncio.start_server(serve, sock=sock, limit=CHUNK))
        self._servers.append(server)
        return server


def listen_in_namespace(pid: int, address: str, port: int) -> socket.socket:
    """A listening socket in the network of process `pid`.

    The calling thread visits that network and comes back; a socket stays where it was made (setns(2)).
    """
    with (
        open(f"/proc/{pid}/ns/net", "rb") as theirs,  # noqa: PTH123 - not a file
        open(f"/proc/self/task/{threading.get_native_id()}/ns/net", "rb") as ours,  # noqa: PTH123
    ):
        _set_namespace(theirs.fileno())
        try:
            return listen_on(address, port)
        finally:
            _set_namespace(ours.fileno())


def _set_namespace(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class IsolatedHosts(HostBackend):
    """Hosts below `root`, which must exist and belongs to this object until `close`."""

    ssh_port = SSH_PORT
    resolves = True

    def __init__(self, root: Path, *, world_id: str, filtered: bool = False) -> None:
        """`filtered`: only what firewall rules let in arrives at hosts."""
        check_possible()
        self._filtered = filtered
        self._rules: tuple[Mapping[str, Any], ...] = ()
        self._filtering = threading.Lock()
        self._world_id = world_id
        self._root = storage_for(root.resolve(), world_id)
        self._nodes: dict[str, list[IsolatedHost]] = {}
        self._servers: dict[int, list[asyncio.Server]] = {}
        """By cable, what listens in the network of a host: first of all its metadata server."""
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._closed = False
        self._wheels = wheel_cache("isolated-wheels")
        self._wheels.chmod(0o1777)  # every user of every host writes there
        self._place = self._make_place(world_id)
        self._disks = DiskFiles(self._root / ".disks")
        # Hosts die with the thread that started them, so this one lives as long as they may.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="sim-spawner")
        self._waiters = ThreadPoolExecutor(WAITERS, thread_name_prefix="sim-boot")
        self._bridge = Bridge(world_id)
        self.address_range = str(self._bridge.network)
        self._relays = Relays()

    def _make_place(self, world_id: str) -> HostPlace:
        init = self._root / ".init.sh"
        init.write_bytes(read_template("sim_host_init.sh"))
        loops = self._root / ".loops"
        make_nodes(loops)
        interpreter = base_interpreter()
        prefix = interpreter.parent.parent
        readable = [prefix] if str(prefix).startswith(HIDDEN) else []
        path = f"{interpreter.parent}:{SYSTEM_PATH}" if str(prefix) not in {"/usr", "/"} else SYSTEM_PATH
        return HostPlace(world_id, init, loops, find_sshd() or "sshd", self._wheels, readable, path)

    def publish_port(self, port: int) -> str:
        self._relays.forward(self._bridge.gateway, port)
        return self._bridge.gateway

    def show(self, folder: Path) -> None:
        self._place.readable.append(folder.resolve())

    def create(self, specs: list[HostSpec]) -> list[HostAddress]:
        """TpuctlError when a host does not come up; then nothing of the new ones is left."""
        with self._lock(specs[0].node_key):
            known = {host.spec.worker: host for host in self._nodes.get(specs[0].node_key, [])}
            new: list[IsolatedHost] = []
            try:
                for spec in specs:
                    if spec.worker not in known:
                        folder = self._root / quote(spec.node_key, safe="") / str(spec.worker)
                        new.append(IsolatedHost(spec, folder, self._bridge, self._place, self._disks))
                self._boot(new)
            except BaseException:
                self._remove(new)
                raise
            known.update((host.spec.worker, host) for host in new)
            self._nodes[specs[0].node_key] = list(known.values())
            self._filter()
            return [known[spec.worker].address for spec in specs]

    def set_ssh_keys(self, node_key: str, ssh_keys: str) -> None:
        accepted = AcceptedKeys.parse(ssh_keys)
        overrides = self._environment()
        self._each(self._nodes.get(node_key, []), lambda host: host.set_keys(accepted, overrides))

    def kill(self, node_key: str) -> None:
        self.destroy(node_key)

    def cut(self, node_key: str) -> None:
        for host in self._nodes.get(node_key, []):
            host.cut()

    def set_cable(self, node_key: str, worker: int, *, plugged: bool) -> None:
        """Pulls the cable of one worker out, or plugs it in again; nobody is told."""
        self._bridge.set_up(self._host(node_key, worker).cable, up=plugged)

    def processes(self, node_key: str, worker: int) -> list[int]:
        """Every process of one worker as the machine numbers them, its first one first."""
        return self._host(node_key, worker).processes()

    def _host(self, node_key: str, worker: int) -> IsolatedHost:
        """KeyError if the node has no such worker; workers may have been made in any order."""
        return {host.spec.worker: host for host in self._nodes[node_key]}[worker]

    def shutdown(self, node_key: str, window_s: float, workers: Collection[int] | None = None) -> None:
        overrides = self._environment()
        with self._lock(node_key):
            self._each(self._chosen(node_key, workers), lambda host: host.shutdown(window_s, overrides))

    def stop(self, node_key: str, workers: Collection[int] | None = None) -> None:
        with self._lock(node_key):
            self._power_off(self._chosen(node_key, workers))

    def _chosen(self, node_key: str, workers: Collection[int] | None) -> list[IsolatedHost]:
        known = self._nodes.get(node_key, [])
        return [host for host in known if workers is None or host.spec.worker in workers]

    def start(self, node_key: str) -> None:
        with self._lock(node_key):
            off = [host for host in self._nodes.get(node_key, []) if not host.running]
            for host in off:
                host.rewire()
            self._boot(off)
            self._filter()

    def serve(self, node_key: str, worker: int, ports: Mapping[int, Streams]) -> None:
        with self._lock(node_key):
            for host in self._chosen(node_key, (worker,)):
                if not host.running:
                    continue
                servers = self._servers[host.cable.number]
                while len(servers) > 1:
                    self._relays.stop(servers.pop())
                for port, streams in ports.items():
                    sock = self._spawner.submit(listen_in_namespace, host.pid, LOOPBACK, port).result()
                    servers.append(self._relays.serve(sock, streams))

    def destroy(self, node_key: str) -> None:
        with self._lock(node_key):
            self._remove(self._nodes.pop(node_key, []))
            wipe(self._root / quote(node_key, safe=""))

    def write_disk(self, key: str, size_gb: int, source: str = "") -> None:
        self._disks.write(key, size_gb, source, lambda: self._stopped(source))
        for hosts in list(self._nodes.values()):
            for host in hosts:
                host.grow_disk(key)

    @contextmanager
    def _stopped(self, key: str) -> Iterator[None]:
        """While the programs of the host that writes to a disk stand still, unnoticed but for the time: what it
        has synced until now is on the disk, and nothing else gets there for long."""
        with ExitStack() as stack:
            for hosts in list(self._nodes.values()):
                for host in hosts:
                    if host.writes_to(key):
                        stack.enter_context(host.stopped())
            yield

    def drop_disk(self, key: str) -> None:
        self._disks.drop(key)

    def set_disks(self, node_key: str, disks: Mapping[int, Sequence[HostDisk]]) -> None:
        with self._lock(node_key):
            hosts = self._nodes.get(node_key, [])
            self._each(hosts, lambda host: host.set_disks(disks.get(host.spec.worker, ())))

    def set_names(self, node_key: str, names: Mapping[str, str]) -> None:
        with self._lock(node_key):
            self._each(self._nodes.get(node_key, []), lambda host: host.set_names(names))

    def set_firewall(self, rules: Sequence[Mapping[str, Any]]) -> None:
        self._rules = tuple(rules)
        self._filter()

    def _filter(self) -> None:
        """On all hosts: rules may speak of others."""
        if not self._filtered:
            return
        with self._filtering:
            hosts = [host for hosts in list(self._nodes.values()) for host in hosts if host.running]
            machines = [_machine(host) for host in hosts]
            for host, machine in zip(hosts, machines, strict=True):
                try:
                    apply_filter(host.pid, render_filter(self._rules, machine, machines))
                except TpuctlError:
                    if host.running:  # one that dies meanwhile needs no firewall
                        raise

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for node_key in list(self._nodes):
            self.destroy(node_key)
        self._relays.close()
        self._waiters.shutdown()
        self._spawner.shutdown()
        (self._root / ".init.sh").unlink(missing_ok=True)
        wipe(self._root / ".disks")
        wipe(self._root / ".loops")
        remove_leftovers(self._world_id, self._root)

    def _lock(self, node_key: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(node_key, threading.Lock())

    def _boot(self, hosts: list[IsolatedHost]) -> None:
        for started in [self._spawner.submit(host.spawn) for host in hosts]:
            started.result()
        self._each(hosts, IsolatedHost.await_namespace)
        with self._guard:
            self._bridge.plug((host.cable, host.pid) for host in hosts)
        for host in hosts:
            host.tell_plugged()
        self._each(hosts, IsolatedHost.await_ssh)
        for host in hosts:
            sock = self._spawner.submit(listen_in_namespace, host.pid, *METADATA_ADDRESS).result()
            self._servers[host.cable.number] = [self._relays.metadata(sock, host.spec)]
        overrides = self._environment()
        self._each(hosts, lambda host: host.run_script(STARTUP_SCRIPT, overrides))

    def _power_off(self, hosts: list[IsolatedHost]) -> None:
        """The cable first: clients must see silence, not the last words of dying processes."""
        with self._guard:
            self._bridge.unplug(host.cable for host in hosts)
        for host in hosts:
            for server in self._servers.pop(host.cable.number, []):
                self._relays.stop(server)
        self._each(hosts, IsolatedHost.power_off)

    def _remove(self, hosts: list[IsolatedHost]) -> None:
        self._power_off(hosts)
        self._each(hosts, IsolatedHost.discard)

    def _each(self, hosts: Iterable[IsolatedHost], work: Callable[[IsolatedHost], T]) -> list[T]:
        return list(self._waiters.map(work, hosts))

    def _environment(self) -> Mapping[str, str]:
        """What is different for a host that is not on the machine's own network."""
        return {"TPUCTL_WHEEL_CACHE": str(self._wheels)}


def _machine(host: IsolatedHost) -> Machine:
    spec, cable = host.spec, host.cable
    tags = spec.metadata().get("instance/tags")
    return Machine(
        spec.node_key, cable.address, cable.external, frozenset(tags if isinstance(tags, list) else ())
    )
