"""The server's end of the host init processes: one `HostProcesses` per host, all of one `Nursery`.

All methods run in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.sim.hosts import init as hostinit

SEND_TIMEOUT_S = 15.0


def base_interpreter() -> Path:
    """The real binary of the interpreter that runs us: no virtual environment, no version-manager shim."""
    base: str = getattr(sys, "_base_executable", None) or sys.executable
    return Path(base).resolve()


class Nursery:
    """The process that forks one init process per host."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [base_interpreter(), "-I", "-S", hostinit.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        self._control = ours

    def new_host(self, loop: asyncio.AbstractEventLoop) -> HostProcesses:
        ours, theirs = socket.socketpair()
        with theirs:
            hostinit.send_message(self._control, {"op": "fork"}, [theirs.fileno()])
        ours.settimeout(SEND_TIMEOUT_S)
        return HostProcesses(ours, loop)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


class HostProcesses:
    """Starts, signals and kills the processes of one host."""

    def __init__(self, control: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._control = control
        self._loop = loop
        self._ids = itertools.count(1)
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._killed: list[asyncio.Future[bool]] = []
        self._quieting: list[asyncio.Future[bool]] = []
        self._open = True
        loop.add_reader(control, self._receive)

    def spawn(
        self,
        program: str,
        argv: list[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        fds: list[int],
        tty: bool = False,
    ) -> tuple[int, asyncio.Future[int]]:
        """Starts a process in a session of its own; the future yields its exit code, negative for a signal.

        `fds` is one terminal or stdin, stdout, stderr. The caller closes its copies.
        """
        session = next(self._ids)
        exited: asyncio.Future[int] = self._loop.create_future()
        message = {
            "op": "spawn",
            "id": session,
            "program": program,
            "argv": argv,
            "env": dict(env),
            "cwd": cwd,
            "tty": tty,
        }
        hostinit.send_message(self._control, message, fds)
        self._exits[session] = exited
        return session, exited

    def signal(self, session: int, number: int) -> None:
        if session in self._exits:
            hostinit.send_message(self._control, {"op": "signal", "id": session, "signal": number})

    def terminate_all(self) -> asyncio.Future[bool]:
        """SIGTERM to every process of the host; the future is done when all have ended."""
        quiet: asyncio.Future[bool] = self._loop.create_future()
        if self._open:
            self._quieting.append(quiet)
            hostinit.send_message(self._control, {"op": "terminate"})
        else:
            quiet.set_result(True)
        return quiet

    async def kill_all(self) -> None:
        """Every process of the host dies, daemons included."""
        if not self._open:
            return
        done: asyncio.Future[bool] = self._loop.create_future()
        self._killed.append(done)
        hostinit.send_message(self._control, {"op": "killall"})
        if not await done:
            raise TpuctlError("a process of a simulated host does not die, not even of SIGKILL")

    def close(self) -> None:
        """The init process kills what is left and exits."""
        if self._open:
            self._lost()

    def _receive(self) -> None:
        try:
            message, _ = hostinit.receive_message(self._control)
        except OSError:
            message = None
        if message is None:
            self._lost()
        elif message["op"] == "exit":
            exited = self._exits.pop(message["id"])
            if not exited.done():
                exited.set_result(message["code"])
        elif message["op"] == "quiet":
            self._all_quiet()
        elif message["op"] == "killed":
            self._killed.pop(0).set_result(message["clean"])

    def _lost(self) -> None:
        self._open = False
        self._loop.remove_reader(self._control)
        self._control.close()
        for exited in self._exits.values():
            if not exited.done():
                exited.set_result(-9)
        self._exits.clear()
        for done in self._killed:
            done.set_result(True)
        self._killed.clear()
        self._all_quiet()

    def _all_quiet(self) -> None:
        for quiet in self._quieting:
            if not quiet.done():
                quiet.set_result(True)
        self._quieting.clear()
