"""SSH sessions of a simulated host: exec, shell, terminals, scp and sftp, as sshd does them.

The pumps are our own: asyncssh's `redirect()` followed by `exit()` loses output now and then. As with sshd, a
process without a terminal is not killed when its client goes; it meets EOF and SIGPIPE.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncssh

from tpuctl.sim.hosts.process.children import HostProcesses

CHUNK = 65536
TERMINAL_DRAIN_S = 0.2
"""How long output of a terminal is awaited after its process ended while daemons still hold the terminal."""

SHELL = "/bin/sh"


async def _ready(add: Callable[..., Any], remove: Callable[..., Any], fd: int) -> None:
    ready = asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)


async def _read(fd: int) -> bytes:
    """The next bytes; empty at the end, which a terminal reports as EIO."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(fd, CHUNK)
        except BlockingIOError:
            await _ready(loop.add_reader, loop.remove_reader, fd)
        except OSError as error:
            if error.errno == errno.EIO:
                return b""
            raise


async def _write(fd: int, content: bytes) -> None:
    """Writes all of it. BrokenPipeError when the process no longer reads."""
    loop = asyncio.get_running_loop()
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            await _ready(loop.add_writer, loop.remove_writer, fd)


async def _pump_out(fd: int, writer: asyncssh.SSHWriter[bytes]) -> None:
    while chunk := await _read(fd):
        writer.write(chunk)
        await writer.drain()
        await asyncio.sleep(0)  # drain() returns at once below the high-water mark; let others have a turn


class Session:
    """One channel of one connection."""

    def __init__(self, process: asyncssh.SSHServerProcess[bytes], processes: HostProcesses) -> None:
        self._process = process
        self._processes = processes
        self._id = 0
        self._terminal: int | None = None

    async def run(self, env: Mapping[str, str], home: Path) -> None:
        """Runs the command or shell to its end and reports its status; returns early when the client goes."""
        command = self._process.command
        argv = [SHELL, "-c", command] if command is not None else ["-" + Path(SHELL).name]
        try:
            await self._run(argv, env, str(home))
        except (asyncssh.Error, OSError):
            # The connection or the host went away while we moved bytes; there is nobody left to tell.
            self._process.close()

    async def _run(self, argv: list[str], env: Mapping[str, str], cwd: str) -> None:
        with self._pipes() as (stdin, outputs, theirs):
            tty = self._terminal is not None
            if tty:
                env = {**env, "TERM": self._process.term_type or "dumb"}
            self._id, exited = self._processes.spawn(SHELL, argv, env=env, cwd=cwd, fds=theirs, tty=tty)
            for fd in theirs:
                os.close(fd)
            theirs.clear()
            tasks = [asyncio.create_task(self._finish(exited, outputs))]
            tasks.append(asyncio.create_task(self._process.wait_closed()))
            feeder = asyncio.create_task(self._pump_in(stdin))
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (*tasks, feeder):
                    task.cancel()
                await asyncio.gather(*tasks, feeder, return_exceptions=True)

    @contextmanager
    def _pipes(self) -> Iterator[tuple[list[int], list[int], list[int]]]:
        """Our ends (stdin, outputs) and the child's; whatever is still listed is closed in the end."""
        stdin: list[int] = []
        outputs: list[int] = []
        theirs: list[int] = []
        try:
            if self._process.term_type is not None:
                self._terminal, slave = os.openpty()
                outputs.append(self._terminal)
                theirs.append(slave)
                self._resize(*self._process.term_size)
            else:
                for index in range(3):
                    read, write = os.pipe2(os.O_CLOEXEC)
                    (stdin if index == 0 else outputs).append(write if index == 0 else read)
                    theirs.append(read if index == 0 else write)
            for fd in (*stdin, *outputs):
                os.set_blocking(fd, False)
            yield stdin, outputs, theirs
        finally:
            for fd in (*stdin, *outputs, *theirs):
                os.close(fd)

    async def _finish(self, exited: asyncio.Future[int], outputs: list[int]) -> None:
        """Like sshd: the channel closes when the process has ended and its outputs are closed by everyone."""
        writers = (self._process.stdout, self._process.stderr)
        pumps = [
            asyncio.create_task(_pump_out(fd, writer)) for fd, writer in zip(outputs, writers, strict=False)
        ]
        try:
            code = await exited
            limit = TERMINAL_DRAIN_S if self._terminal is not None else None
            await asyncio.wait(pumps, timeout=limit)
            self._report(code)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def _report(self, code: int) -> None:
        self._process.stdout.write_eof()  # says that no output was lost (RFC 4254, 5.3)
        if code >= 0:
            self._process.exit(code)
        else:
            name = signal.Signals(-code).name.removeprefix("SIG")
            self._process.exit_with_signal(name, False, "", "")

    async def _pump_in(self, stdin: list[int]) -> None:
        target = self._terminal if self._terminal is not None else stdin[0]
        broken = False
        while True:
            try:
                chunk = await self._process.stdin.read(CHUNK)
            except asyncssh.TerminalSizeChanged as change:
                self._resize(change.width, change.height, change.pixwidth, change.pixheight)
                continue
            except asyncssh.SignalReceived as received:
                self._signal(received.signal)
                continue
            except asyncssh.BreakReceived:
                continue
            if not chunk:
                break
            if not broken:
                try:
                    await _write(target, chunk)
                except OSError:
                    broken = True  # the process does not read any more: swallow the rest, as sshd does
        if self._terminal is None:
            os.close(stdin.pop())

    def _signal(self, name: str) -> None:
        number = getattr(signal, "SIG" + name, None)
        if isinstance(number, signal.Signals):
            self._processes.signal(self._id, number)

    def _resize(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._terminal is not None:
            size = struct.pack("HHHH", height or 24, width or 80, pixwidth, pixheight)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)


class HomeSFTPServer(asyncssh.SFTPServer):
    """SFTP without a chroot where relative names start at the login user's home directory."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], home: Path) -> None:
        super().__init__(channel)
        self._channel = channel
        self._home = os.fsencode(home)

    def exit(self) -> None:
        """The exit status of OpenSSH's sftp-server, without which scp reports a failure."""
        self._channel.exit(0)

    def map_path(self, path: bytes) -> bytes:
        return os.path.join(self._home, path)  # noqa: PTH118 - bytes
