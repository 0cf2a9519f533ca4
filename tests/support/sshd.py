"""Hosts for tests: asyncssh servers on loopback addresses that run real commands, each in a HOME of its own.

A server does what sshd does: a cut connection closes the command's stdin and kills nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import asyncssh

from tpuctl.model.cloud import HostTarget
from tpuctl.sim.hosts.files import SYSTEM_PATH

T = TypeVar("T")
LOGIN = "tester"


class _Auth(asyncssh.SSHServer):
    def __init__(self, farm: SshFarm) -> None:
        self._farm = farm

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._farm.connections.append(conn)

    def begin_auth(self, username: str) -> bool:
        self._farm.users_seen.append(username)
        if self._farm.cuts_logins:
            self._farm.connections[-1].abort()
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == LOGIN and key.export_public_key().split()[1] in self._farm.accepted


class SshFarm:
    """Several "hosts" in one event loop thread. `marker` is in the environment of all their processes."""

    def __init__(self, folder: Path, public_line: str) -> None:
        self.folder = folder
        self.accepted = {public_line.split()[1].encode()}
        self.users_seen: list[str] = []
        self.cuts_logins = False
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.marker = f"TPUCTL_TEST_FARM={folder}"
        self._loop = asyncio.new_event_loop()
        self._servers: list[Any] = []
        self._children: list[asyncio.subprocess.Process] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="farm", daemon=True)
        self._thread.start()

    def add(self, worker: int, address: str = "", port: int = 0) -> HostTarget:
        """One more host; its HOME is `folder/home-N`. Port 0: any that is free."""
        address = address or f"127.78.0.{worker + 1}"
        home = self.folder / f"home-{worker}"
        home.mkdir(exist_ok=True)
        key = asyncssh.generate_private_key("ssh-ed25519")
        port = self._do(self._listen(address, port, key, home, worker))
        return HostTarget("big", worker, address, port, LOGIN, key.export_public_key().decode().strip())

    @contextmanager
    def hung(self) -> Iterator[None]:
        """The servers answer nothing while this lasts, as a stopped sshd: TCP goes on acknowledging."""
        over = threading.Event()
        self._loop.call_soon_threadsafe(over.wait)
        try:
            yield
        finally:
            over.set()

    def drop_connections(self) -> None:
        """Cuts every connection, as a lost network does."""

        async def drop() -> None:
            for connection in self.connections:
                connection.abort()
            self.connections.clear()

        self._do(drop())

    def processes(self) -> dict[int, str]:
        """Living processes started on the hosts: pid to command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if self.marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        line = (entry / "cmdline").read_bytes()
                        found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # gone while we looked
        return found

    def close(self) -> None:
        async def shut() -> None:
            for connection in self.connections:
                connection.abort()
            for server in self._servers:
                server.close()
                await server.wait_closed()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for child in self._children:
                # One that is left open says "Event loop is closed" later, in whatever test runs then.
                child._transport.close()  # type: ignore[attr-defined]
            await asyncio.sleep(0)

        for _ in range(50):
            left = self.processes()
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self._do(shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _listen(self, address: str, port: int, key: asyncssh.SSHKey, home: Path, worker: int) -> int:
        environment = {
            "HOME": str(home),
            "PATH": SYSTEM_PATH,
            "SHELL": "/bin/bash",
            "TPU_WORKER_ID": str(worker),
            "LANG": "C.UTF-8",
            self.marker.partition("=")[0]: self.marker.partition("=")[2],
        }
        server = await asyncssh.create_server(
            lambda: _Auth(self),
            address,
            port,
            server_host_keys=[key],
            process_factory=_runner(home, environment, self._children),
            encoding=None,
            line_editor=False,
        )
        self._servers.append(server)
        return int(server.get_port())


def _runner(
    home: Path, environment: dict[str, str], children: list[asyncio.subprocess.Process]
) -> Callable[[Any], Coroutine[Any, Any, None]]:
    async def serve(process: Any) -> None:
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command,
            cwd=home,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        children.append(child)
        feed = asyncio.ensure_future(_feed(process.stdin, child.stdin))
        await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
        status = await child.wait()
        feed.cancel()
        process.stdout.write_eof()
        if status < 0:
            process.exit_with_signal(signal.Signals(-status).name[3:])
        else:
            process.exit(status)

    return serve


async def _feed(source: Any, sink: Any) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except (OSError, asyncssh.Error):
        pass  # the connection or the command ended; both mean end of file
    finally:
        sink.close()


async def _copy(source: Any, sink: Any) -> None:
    while data := await source.read(65536):
        try:
            sink.write(data)
            await sink.drain()
        except (OSError, asyncssh.Error):
            continue  # nobody listens any more; the command is not to block on that
