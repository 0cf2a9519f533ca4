"""One simulated host of the process tier: its SSH server, its metadata server, its processes and its files."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shlex
import shutil
import socket
import struct
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from tpuctl.errors import BugError
from tpuctl.sim.hosts.backend import SHUTDOWN_SCRIPT, STARTUP_SCRIPT, HostAddress, HostSpec, find_script
from tpuctl.sim.hosts.files import SYSTEM_PATH, wipe
from tpuctl.sim.hosts.metadata import Values, serve_connection
from tpuctl.sim.hosts.process.addresses import AddressPool, Place, listen_on
from tpuctl.sim.hosts.process.children import HostProcesses, Nursery
from tpuctl.sim.hosts.process.keys import AcceptedKeys
from tpuctl.sim.hosts.process.session import SHELL, HomeSFTPServer, Session
from tpuctl.sim.wire.splice import CHUNK, Streams

LOGIN_TIMEOUT_S = 20
LOOPBACK = ("127.0.0.1", "localhost")
WINDOW = 4 * 1024 * 1024
MAX_PACKET = 32768

ALGORITHMS: Mapping[str, list[str]] = {
    "kex_algs": ["curve25519-sha256", "ecdh-sha2-nistp256"],
    # GCM first: one pass in C for encryption and integrity, which matters for fan-outs on small machines.
    "encryption_algs": ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr"],
    "mac_algs": ["hmac-sha2-256-etm@openssh.com", "hmac-sha2-256"],
    "signature_algs": ["ssh-ed25519", "rsa-sha2-256", "rsa-sha2-512", "ecdsa-sha2-nistp256"],
}


@dataclass(frozen=True)
class WorkerPlace:
    """Where a host lives. `folder` is wiped with it, `memory` when its power goes; `bin` is shared by all."""

    folder: Path
    bin: Path
    memory: Path
    world_id: str

    def home(self, user: str) -> Path:
        return self.folder / "home" / user

    @property
    def tmp(self) -> Path:
        return self.folder / "tmp"


LOOK_S = 0.2
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of the kernel's packet filters (linux/filter.h): accept no byte."""


class Blocker:
    """An intrusion blocker: after some refused log-ins nothing of what is sent to the host arrives. sshguard of
    Google's Ubuntu images does so for each address; all clients of a process host have that of this machine, so
    it goes deaf to everybody.

    Counts refusals in a row. `bans` says of how many of them none counts and for how many seconds the next
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


class _Login(asyncssh.SSHServer):
    """Public keys only; what is accepted may change at any time."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._connection: asyncssh.SSHServerConnection | None = None
        self._refused = False

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._worker.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncssh's signature
        if self._connection is not None:
            self._worker.connections.discard(self._connection)
        if self._refused:
            self._worker.blocker.refuse()

    def auth_completed(self) -> None:
        self._refused = False
        self._worker.blocker.let_in()

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        accepts = self._worker.accepted.accepts(username, key.public_data)
        self._refused = not accepts
        return accepts

    def connection_requested(
        self,
        dest_host: str,
        dest_port: int,
        orig_host: str,  # noqa: ARG002
        orig_port: int,  # noqa: ARG002
    ) -> bool | Coroutine[Any, Any, Any]:
        """All hosts share one loopback: what `serve` put on that of this one is at its own address."""
        if self._connection is None or dest_port not in self._worker.served or dest_host not in LOOPBACK:
            return True
        return self._connection.forward_connection(self._worker.address.internal_ip, dest_port)


class Worker:
    """Runs in the event loop; `open` once, then `stop` and `start` at will, `close` in the end."""

    def __init__(
        self,
        spec: HostSpec,
        place: WorkerPlace,
        addresses: AddressPool,
        nursery: Nursery,
        callbacks: Executor,
    ) -> None:
        self.spec = spec
        self.place = place
        self.accepted = AcceptedKeys()
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self.blocker = Blocker(spec.bans)
        self._addresses = addresses
        self._nursery = nursery
        self._callbacks = callbacks
        self._key = asyncssh.generate_private_key("ssh-ed25519")
        self._acceptors: list[asyncssh.SSHAcceptor] = []
        """One for each address while the power is on."""
        self._metadata: asyncio.Server | None = None
        self.served: dict[int, asyncio.Server] = {}
        """By port, what answers on its loopback as programs of its own would."""
        self._processes: HostProcesses | None = None
        self._at: Place | None = None
        self._boot_id = str(uuid.uuid4())

    @property
    def address(self) -> HostAddress:
        public = " ".join(self._key.export_public_key().decode().split()[:2])
        at = self._where()
        return HostAddress(at.internal_ip, at.external_ip, self._addresses.ssh_port, public)

    def _where(self) -> Place:
        if self._at is None:
            raise BugError(f"{self.spec.hostname} was asked for its address before it had one")
        return self._at

    async def open(self) -> None:
        """Claims an address and answers there."""
        self.place.tmp.mkdir(parents=True, exist_ok=True)
        self._at, ssh, metadata = self._addresses.claim()
        self._processes = self._nursery.new_host(asyncio.get_running_loop())
        self._metadata = await asyncio.start_server(self._serve_metadata, sock=metadata)
        await self._listen(ssh)
        await self._run_script(STARTUP_SCRIPT)

    async def start(self) -> None:
        if not self._acceptors and self._at is not None:
            self._boot_id = str(uuid.uuid4())
            await self._listen(self._at.listen(self._addresses.ssh_port))
            await self._run_script(STARTUP_SCRIPT)

    async def _run_script(self, key: str) -> asyncio.Future[int] | None:
        """Starts what a key of the metadata holds: like Google's guest agent, as a file of its own, in root's
        home. There is no root in this tier: it runs as everything else does. Its output goes to a log beside
        the homes. The future is done when it has ended; None where there is no script.
        """
        script = find_script(await self._look_up(), key)
        if not script or self._processes is None:
            return None
        home = self._home("root")
        file = self.place.folder / key
        file.write_text(script)
        file.chmod(0o700)
        env = await self._environment(home)
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(self.place.folder / f"{key}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # Through a shell, which takes a script without a first line of `#!` for its own, as bash does.
            argv = [SHELL, "-c", shlex.quote(str(file))]
            return self._processes.spawn(SHELL, argv, env=env, cwd=str(home), fds=[nothing, log, log])[1]
        finally:
            os.close(nothing)
            os.close(log)

    async def shutdown(self, window_s: float) -> None:
        """Ends in order. Its SSH server answers as long as anything runs, which is the harder case for clients:
        that of a real host ends at about the same time as the programs of its users."""
        if self._processes is None or not self._acceptors:
            return
        deadline = asyncio.get_running_loop().time() + window_s
        ending: list[asyncio.Future[Any]] = [self._processes.terminate_all()]
        script = await self._run_script(SHUTDOWN_SCRIPT)
        if script is not None:
            ending.append(script)
        await asyncio.wait(ending, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))

    async def stop(self) -> None:
        """Power off. The metadata socket stays ours, so that nobody else gets the address."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        self._end_served()
        self.cut()
        if self._processes is not None:
            await self._processes.kill_all()
        await asyncio.to_thread(wipe, self.place.memory)

    async def serve(self, ports: Mapping[int, Streams]) -> None:
        """See `HostBackend.serve`."""
        self._end_served()
        if self._acceptors:
            for port, serve in ports.items():
                sock = listen_on(self._where().internal_ip, port)
                self.served[port] = await asyncio.start_server(serve, sock=sock, limit=CHUNK)

    def _end_served(self) -> None:
        for server in self.served.values():
            server.close()
        self.served.clear()

    def cut(self) -> None:
        """Breaks every connection; what was started through them lives on."""
        for connection in list(self.connections):
            connection.abort()

    async def close(self) -> None:
        await self.stop()
        if self._processes is not None:
            self._processes.close()
        if self._metadata is not None:
            self._metadata.close()

    async def _listen(self, sockets: Iterable[socket.socket]) -> None:
        listening = list(sockets)
        self.blocker.guard(listening)
        self._acceptors += [await self._accept_on(sock) for sock in listening]

    async def _accept_on(self, sock: socket.socket) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            sock=sock,
            server_factory=lambda: _Login(self),
            server_host_keys=[self._key],
            server_version="OpenSSH_9.2p1_tpuctl_sim",
            process_factory=self._session,
            sftp_factory=self._sftp,
            # Where the machine has scp the old protocol runs it, shell expansion included, as sshd does.
            allow_scp=shutil.which("scp", path=SYSTEM_PATH) is None,
            encoding=None,
            line_editor=False,
            compression_algs=None,
            login_timeout=LOGIN_TIMEOUT_S,
            agent_forwarding=False,
            gss_host=None,
            window=WINDOW,
            max_pktsize=MAX_PACKET,
            **ALGORITHMS,
        )

    def _home(self, user: str) -> Path:
        home = self.place.home(user)
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _sftp(self, channel: asyncssh.SSHServerChannel[bytes]) -> HomeSFTPServer:
        return HomeSFTPServer(channel, self._home(channel.get_extra_info("username")))

    async def _session(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        if process.subsystem is not None:  # sftp never comes here; sshd has no other either
            process.stderr.write(b"subsystem request failed\n")
            process.exit(1)
            return
        home = self._home(process.get_extra_info("username"))
        env = await self._environment(home)
        if self._processes is None or not self._acceptors or process.is_closing():
            process.close()  # the power went off meanwhile; nothing may start after the killing
            return
        await Session(process, self._processes).run(env, home)

    async def _environment(self, home: Path) -> dict[str, str]:
        """A clean login environment: nothing of the server's own."""
        self.place.memory.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = await asyncio.get_running_loop().run_in_executor(self._callbacks, self.spec.environment)
        metadata = f"{self._where().internal_ip}:{self._addresses.metadata_port}"
        return {
            "HOME": str(home),
            "USER": home.name,
            "LOGNAME": home.name,
            "SHELL": SHELL,
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.place.tmp),
            "XDG_RUNTIME_DIR": str(self.place.memory),
            # tmux keeps its socket in /tmp whatever TMPDIR says; hosts must not meet in one tmux server.
            "TMUX_TMPDIR": str(self.place.tmp),
            "HOSTNAME": self.spec.hostname,
            "PATH": f"{self.place.bin}:{SYSTEM_PATH}",
            "TPUCTL_SIM_WORLD": self.place.world_id,
            "TPUCTL_SIM_HOST": f"{self.spec.node_key}/{self.spec.worker}",
            # All hosts have the network of this machine: one port for each run's workers would be one for all.
            "TPUCTL_COORDINATOR_PORT": "0",
            # This machine's programs, and its lock on chips, are none of the hosts'.
            "TPUCTL_HOST_MARK": f"{self.place.world_id}/{self.spec.node_key}/{self.spec.worker}",
            "TPUCTL_CHIP_LOCK": str(self.place.tmp / "libtpu_lockfile"),
            "TPUCTL_CHIP_DEVICES": str(self.place.tmp / "accel"),
            # The kernel's is this machine's, which does not boot with its hosts.
            "TPUCTL_BOOT_ID": self._boot_id,
            "GCE_METADATA_HOST": metadata,
            "GCE_METADATA_IP": metadata,
            **own,
        }

    async def _serve_metadata(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._acceptors:
            writer.close()
            return
        await serve_connection(reader, writer, self._look_up, self._publish)

    async def _look_up(self) -> Values:
        return await asyncio.get_running_loop().run_in_executor(self._callbacks, self.spec.metadata)

    async def _publish(self, path: str, value: str | None) -> bool:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._callbacks, self.spec.publish, path, value)
