"""The `Remote` port over hosts in memory. Time is the clock of the hosts; with a fake one nothing waits.

The limits, the order of checks and the words of failures are those of `tpuctl.ssh.remote`; the shared suite
holds both to them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from tests.support.memory.host import Condition, MemoryHost, MemoryHosts
from tests.support.memory.ports import MemoryChannel
from tests.support.memory.process import NEVER, Process
from tpuctl.engine.ports import Forwarding, OutputSink, RemoteCall
from tpuctl.errors import BugError
from tpuctl.hosts.commands import LINK_SILENCE_S
from tpuctl.model.cloud import FailureKind, HostTarget, RemoteResult

CONNECT_TIMEOUT_S = 5.0
HANDSHAKE_TIMEOUT_S = 10.0
CHANNEL_TIMEOUT_S = 10.0
SILENCE_S = LINK_SILENCE_S
STOP_POLL_S = 0.5
SOURCE_POLL_S = 0.1
"""Between two looks at `should_stop` while nothing else happens."""
IDLE_POLL_S = 0.005
"""Real time between two looks of a thread that leaves the clock to the test's own."""

Emit = Callable[[str, bytes], None]


@dataclass(frozen=True)
class Connection:
    host: MemoryHost
    epoch: int

    @property
    def broken(self) -> bool:
        return self.host.epoch != self.epoch


class Failed(Exception):
    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class _Call:
    """One command on one worker, as steps that say when they want to be run again."""

    def __init__(self, remote: MemoryRemote, target: HostTarget, call: RemoteCall) -> None:
        self.target = target
        self.output = {"stdout": bytearray(), "stderr": bytearray()}
        self._asked = call
        self.command = call.command if isinstance(call.command, str) else call.command(target)
        self.result: RemoteResult | None = None
        self.process: Process | None = None
        self.wake_at = -NEVER
        self._remote = remote
        self._clock = remote.hosts.clock
        self._chunks: Iterator[bytes | None] = iter(())
        self._hold = False
        self._emit = _collect(self.output) if call.sink is None else _pass_to(call.sink, target.worker)
        self._detail = ""
        self.began = self._clock.now()
        self.deadline = NEVER if call.timeout_s is None else self.began + call.timeout_s
        self._line_free_at = -NEVER
        self._steps = self._with_remedy(self.command, self._emit)

    def go_on(self) -> None:
        """Runs it up to its next wait; sets `result` at its end."""
        try:
            self.wake_at = next(self._steps)
        except StopIteration as end:
            self._finish(exit_status=end.value, detail=self._detail)
        except Failed as error:
            self._finish(failure=error.kind, detail=str(error))

    def cancel(self) -> None:
        if self.result is None:
            self._finish(failure=FailureKind.LOST, detail="stopped by this side")

    def quiet(self) -> bool:
        """Only this side's own limits can end it: nothing is due on the host."""
        host = self.process.host if self.process is not None else None
        return host is not None and host.next_event() == NEVER and host.quiet_since == NEVER

    def _finish(self, **ending: Any) -> None:
        if self.process is not None:
            self.process.detach()
        took = self._clock.now() - self.began
        self.result = RemoteResult(self.target.worker, **{"exit_status": None, **ending}, duration_s=took)

    def _with_remedy(self, command: str, emit: Emit) -> Generator[float, None, int]:
        remedy, words = self._asked.remedy, bytearray()

        def listen(stream: str, data: bytes) -> None:
            emit(stream, data)
            if stream == "stderr":
                words.extend(data)

        status = yield from self._run(command, self._stdin(), self._asked.hold_stdin, listen)
        if remedy is None or not remedy.is_for(status, bytes(words)):
            return status
        for said in self.output.values():
            said.clear()
        words.clear()
        status = yield from self._run(remedy.command, [remedy.stdin], False, lambda _, data: words.extend(data))
        if status:
            self._detail = remedy.explain(status, bytes(words))
            return status
        return (yield from self._run(command, self._stdin(), self._asked.hold_stdin, emit))

    def _stdin(self) -> Iterable[bytes | None]:
        stdin = self._asked.stdin
        given = stdin(self.target) if callable(stdin) else stdin
        return [given] if isinstance(given, bytes) else given

    def _run(
        self, command: str, stdin: Iterable[bytes | None], hold: bool, emit: Emit
    ) -> Generator[float, None, int]:
        self.command, self._chunks, self._hold, self._emit = command, iter(stdin), hold, emit
        self._line_free_at = -NEVER
        return (yield from self._converse())

    def _converse(self) -> Generator[float, None, int]:
        connection = yield from self._connected()
        host = connection.host
        process = self.process = host.login(self.target.user, self.command)
        while True:
            now = self._clock.now()
            lost_at = host.quiet_since + self._remote.silence_s
            if host.quiet_since != NEVER:
                process.end_stdin(host.quiet_since + process.silence_s)
            moved = host.advance(now)
            if host.quiet_since == NEVER and not connection.broken:
                moved = self._pass_on() or self._feed() or moved
                if not process.alive and not process.outbox:
                    return self._ending(process)
            elif connection.broken:
                raise Failed(FailureKind.LOST, "the connection was lost before the command ended")
            elif now >= lost_at:
                connection.host.advance()
                self._remote.forget(self.target)
                raise Failed(FailureKind.LOST, f"no sign of life for {self._remote.silence_s:g} s")
            if now >= self.deadline:
                raise Failed(FailureKind.TIMEOUT, "the command did not end in time")
            line_free_at = self._line_free_at if self._line_free_at > now else NEVER
            yield now if moved else min(host.next_event(), lost_at, self.deadline, line_free_at)

    @staticmethod
    def _ending(process: Process) -> int:
        if process.exit_status is None:
            raise Failed(FailureKind.SIGNAL, "the command was killed by a signal")
        return process.exit_status

    def _pass_on(self) -> bool:
        """One piece of output to the reader, so that workers take turns."""
        piece = self.process.take_output() if self.process else None
        if piece is not None:
            self._emit(*piece)
        return piece is not None

    def _feed(self) -> bool:
        """The next piece of stdin, when the command wants one."""
        process = self.process
        if process is None or not process.wants_stdin:
            return False
        if self._clock.now() < self._line_free_at:
            return False
        chunk = next((chunk for chunk in self._chunks if chunk != b""), b"")
        if chunk is None:
            self._line_free_at = self._clock.now() + SOURCE_POLL_S
            return False
        self._line_free_at = self._clock.now() + len(chunk) / self._remote.bytes_per_s
        if chunk:
            process.feed(chunk)
        elif not self._hold:
            process.end_stdin()
        return bool(chunk) or not self._hold

    # Connecting.

    def _connected(self) -> Generator[float, None, Connection]:
        """The kept connection, or a new one. A kept one that died unnoticed is replaced once."""
        kept = self._remote.kept(self.target)
        if kept is not None and not kept.broken:
            if kept.host.quiet_since == NEVER:
                return kept
            yield from self._pause(CHANNEL_TIMEOUT_S)
        connection = yield from self._open()
        self._remote.keep(self.target, connection)
        return connection

    def _pause(self, seconds: float) -> Generator[float, None, None]:
        until = min(self._clock.now() + seconds, self.deadline)
        while self._clock.now() < until:
            yield until

    def _open(self) -> Generator[float, None, Connection]:
        target, remote = self.target, self._remote
        where = f"{target.address}:{target.port}"
        host = remote.hosts.find(target.address)
        if host is None or not remote.reaches(host) or host.condition is Condition.DEAD:
            yield from self._pause(remote.connect_timeout_s)
            raise Failed(FailureKind.CONNECT, f"{where} did not answer in {remote.connect_timeout_s:g} s")
        if host.condition is Condition.REFUSING or target.port != remote.hosts.ssh_port:
            raise Failed(FailureKind.CONNECT, f"{where} refused the connection")
        if host.condition is Condition.SILENT:
            yield from self._pause(HANDSHAKE_TIMEOUT_S)
            raise Failed(
                FailureKind.CONNECT,
                f"{where} broke off the SSH handshake: nothing for {HANDSHAKE_TIMEOUT_S:g} s",
            )
        self._check_host_key(host)
        host.users_seen.append(target.user)
        if (target.user, remote.key) not in host.accepted:
            raise Failed(FailureKind.AUTH, f"{target.label} refused the key of user {target.user}")
        return Connection(host, host.epoch)

    def _check_host_key(self, host: MemoryHost) -> None:
        pinned, target = self.target.host_key.split(), self.target
        if len(pinned) < 2 or pinned[0] != "ssh-ed25519":
            raise Failed(FailureKind.HOST_KEY, f"no ssh-ed25519 host key is known for {target.label}")
        if pinned[1] != host.host_key.split()[1]:
            raise Failed(
                FailureKind.HOST_KEY,
                f"{target.address}:{target.port} shows another host key than the cloud published for "
                f"{target.label}",
            )


class MemoryRemote:
    """Implements `ports.Remote`. `public_line` is this machine's key; `reaches` says which hosts its network
    lets it connect to."""

    def __init__(
        self,
        hosts: MemoryHosts,
        public_line: str,
        *,
        silence_s: float = SILENCE_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        bytes_per_s: float = NEVER,
        reaches: Callable[[MemoryHost], bool] = lambda _host: True,
    ) -> None:
        self.hosts = hosts
        self.key = public_line.split()[1]
        self.silence_s = silence_s
        self.connect_timeout_s = connect_timeout_s
        self.bytes_per_s = bytes_per_s
        self.reaches = reaches
        self._connections: dict[HostTarget, Connection] = {}
        self._running: list[_Call] = []
        self._closed = False

    def run(self, targets: Sequence[HostTarget], call: RemoteCall) -> list[RemoteResult]:
        """See `Remote.run`. A command here ends with its channel, so that nothing is waited for."""
        calls = [_Call(self, target, call) for target in targets]
        results = self._perform(calls, call.should_stop, call.on_end)
        return [
            replace(result, stdout=bytes(one.output["stdout"]), stderr=bytes(one.output["stderr"]))
            for result, one in zip(results, calls, strict=True)
        ]

    def forward(
        self,
        resolve: Callable[[], HostTarget],
        remote_port: int,
        *,
        local_port: int = 0,
        report: Callable[[str], None],
    ) -> Forwarding:
        """See `Remote.forward`."""
        from tpuctl.ssh.port_forward import Forwarder

        def open_channel() -> Any:
            [result] = self.run([resolve()], RemoteCall("true"))
            if result.failure is not None:
                raise Failed(result.failure, result.detail)
            host = self._connections[resolve()].host
            if remote_port not in host.services:
                raise Failed(FailureKind.CONNECT, f"nothing listens on port {remote_port} of {host.hostname}")
            return MemoryChannel(host.services[remote_port])

        return Forwarder(open_channel, local_port, report)

    def read_host_keys(self, targets: Sequence[HostTarget], *, timeout_s: float = 10.0) -> list[str | None]:
        """See `Remote.read_host_keys`."""
        found = [self.hosts.find(target.address) for target in targets]
        keys = [
            host.host_key
            if host is not None and self.reaches(host) and host.condition is Condition.UP
            else None
            for host in found
        ]
        if None in keys:
            self.hosts.clock.sleep(timeout_s)
        return keys

    def rest(self) -> bool:
        """See `Remote.rest`."""
        busy = {call.target for call in self._running}
        self._connections = {target: kept for target, kept in self._connections.items() if target in busy}
        return bool(busy)

    def close(self) -> None:
        self._closed = True
        for call in list(self._running):
            call.cancel()
        self._connections.clear()

    # For the calls.

    def kept(self, target: HostTarget) -> Connection | None:
        return self._connections.get(target)

    def keep(self, target: HostTarget, connection: Connection) -> None:
        self._connections[target] = connection

    def forget(self, target: HostTarget) -> None:
        self._connections.pop(target, None)

    def _perform(
        self,
        calls: list[_Call],
        should_stop: Callable[[], bool] | None = None,
        on_end: Callable[[RemoteResult], None] | None = None,
    ) -> list[RemoteResult]:
        if self._closed:
            raise BugError("a command was started on a closed MemoryRemote")
        with self.hosts.changed:
            self._running += calls
            try:
                while pending := [call for call in calls if call.result is None]:
                    for call in pending:
                        call.go_on()
                    if should_stop is not None and should_stop():
                        for call in pending:
                            call.cancel()
                    for call in pending:
                        if call.result is not None and on_end is not None:
                            on_end(call.result)
                    self.hosts.changed.notify_all()
                    self._wait([call for call in pending if call.result is None], should_stop is not None)
            except BaseException:
                for call in calls:
                    call.cancel()
                raise
            finally:
                self._running = [call for call in self._running if call not in calls]
        return [call.result for call in calls if call.result is not None]

    def _wait(self, pending: list[_Call], stoppable: bool) -> None:
        """Until the first of them wants to go on; in a fake time that is at once."""
        now = self.hosts.clock.now()
        if not pending or (left := min(call.wake_at for call in pending) - now) <= 0:
            return
        if threading.get_ident() != self.hosts.main_thread and all(call.quiet() for call in pending):
            self.hosts.changed.wait(IDLE_POLL_S)  # held open in the background: others move the time
            return
        pause = min(left, STOP_POLL_S) if stoppable else left
        if pause == NEVER:
            raise AssertionError("nothing will ever end this command, and it has no time limit")
        self.hosts.changed.release()
        try:
            self.hosts.clock.sleep(pause)
        finally:
            self.hosts.changed.acquire()


def _collect(output: dict[str, bytearray]) -> Emit:
    def emit(name: str, data: bytes) -> None:
        output[name] += data

    return emit


def _pass_to(sink: OutputSink, worker: int) -> Emit:
    return lambda name, data: sink(worker, name, data)
