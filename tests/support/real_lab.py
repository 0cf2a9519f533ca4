"""What labs for the `Remote` port have in common when their hosts are servers with real sockets."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tpuctl.engine.ports import Remote
from tpuctl.model.cloud import HostTarget
from tpuctl.ssh.keys import KeyPair, ensure_keypair
from tpuctl.ssh.remote import SshRemote


class RealClock:
    """Implements `ports.Clock`."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class RealLab:
    """What labs with real sockets have in common."""

    def __init__(self, folder: Path, key: KeyPair) -> None:
        self.stack = ExitStack()
        self.clock = RealClock()
        self.folder = folder
        self.key = key

    def remote(self, **options: float) -> Remote:
        settings: dict[str, Any] = {"connect_timeout_s": 1.0, "handshake_timeout_s": 1.0, **options}
        return self.stack.enter_context(closing(SshRemote(self.key.private_path, **settings)))

    def stranger(self) -> Remote:
        key = ensure_keypair(self.folder / "stranger")
        return self.stack.enter_context(closing(SshRemote(key.private_path)))

    def unreachable(self) -> HostTarget:
        return self._at_silent_server("127.78.0.91", full=True)

    def mute(self) -> HostTarget:
        return self._at_silent_server("127.78.0.90", full=False)

    def refuse(self, target: HostTarget) -> HostTarget:
        with closing(socket.socket()) as probe:
            probe.bind((target.address, 0))
            return replace(target, port=probe.getsockname()[1])

    def serve(self, target: HostTarget, answer: bytes) -> int:
        del target  # all hosts of a real lab share this machine's loopback
        server = self.stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))

        def attend() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(answer)

        thread = threading.Thread(target=attend, daemon=True)
        thread.start()
        self.stack.callback(lambda: server.shutdown(socket.SHUT_RDWR))
        return int(server.getsockname()[1])

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 30  # of a machine that is busy with other tests
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen"
            time.sleep(0.02)

    def _at_silent_server(self, address: str, *, full: bool) -> HostTarget:
        server = self.stack.enter_context(closing(socket.socket()))
        server.bind((address, 0))
        server.listen(0 if full else 16)
        for _ in range(4 if full else 0):
            filler = self.stack.enter_context(closing(socket.socket()))
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        return HostTarget("big", 9, address, server.getsockname()[1], "tester", self.key.public_line)


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def count_logins(log: str) -> int:
    """How often sshd was told a user, whatever became of it, by its log of level INFO or VERBOSE."""
    told = ("Accepted publickey", "Failed publickey", "Invalid user", "by authenticating user")
    return sum(log.count(words) for words in told)
