"""Commands on many workers at once over SSH: the `Remote` port on paramiko.

A thread per worker, so that one which hangs holds up nobody. Handshakes in flight are bounded, running commands
are not. Connections stay open for the life of the object and are opened again when they died.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.core.host_protocol import HEARTBEAT_S
from tpuctl.core.model import FailureKind, HostTarget, RemoteResult
from tpuctl.errors import BugError
from tpuctl.ports import Forwarding, OutputSink, Stdin
from tpuctl.remote.connection import (
    CHANNEL_TIMEOUT_S,
    ConnectError,
    load_private_key,
    open_connection,
    read_host_key,
)
from tpuctl.remote.exchange import Ending, Feed, exchange

if TYPE_CHECKING:
    import paramiko

Emit = Callable[[str, bytes], bool]

STOP_POLL_S = 0.1
FILES_PER_CALL = 3
"""A socket, and the pipe by which paramiko announces output."""
STOP_PATIENCE_S = 2.0
"""After a stop, threads still busy connecting are not waited for any longer."""
ALL_WINDOWS = 8 << 20
MIN_WINDOW = 128 << 10
MAX_WINDOW = 2 << 20
"""Bytes that a worker may send before they were passed on: paramiko's default for a few, less for each of many,
so that all together stay near ALL_WINDOWS."""
QUEUE_CHUNKS = 64
"""Chunks of at most 128 KiB between the workers' threads and a slow sink; when full, hosts are not read."""
BOOT_RETRY_S = 10.0
"""How long a refused connection is retried when the host may still be booting."""
FORWARD_TIMEOUT_S = 20.0
"""For the connection behind a forwarded one."""
JOIN_S = 30.0
"""More than all the timeouts of a connection attempt together."""


class _Slot:
    """The place of one target in the pool: at most one connection, opened by whoever needs it first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.transport: paramiko.Transport | None = None


class _Call:
    """One command on one worker, run in its own thread."""

    def __init__(
        self, target: HostTarget, command: str, feed: Feed, changed: threading.Event, timeout_s: float | None
    ) -> None:
        self.target = target
        self.command = command
        self.feed = feed
        self.emit: Emit = _discard
        self.changed = changed
        self.began = time.monotonic()
        self.deadline = None if timeout_s is None else self.began + timeout_s
        self.result: RemoteResult | None = None
        self.bug: BaseException | None = None
        self.window_bytes = MAX_WINDOW
        self.thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._channel: paramiko.Channel | None = None
        self._lock = threading.Lock()

    @property
    def done(self) -> bool:
        return self.result is not None or self.bug is not None

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def adopt(self, channel: paramiko.Channel) -> None:
        with self._lock:
            self._channel = channel

    def cancel(self) -> None:
        """Ends the call soon; closing the channel wakes its thread and cuts the leash on the host."""
        self._cancelled.set()
        with self._lock:
            channel = self._channel
        if channel is not None:
            channel.close()

    def finish(self, ending: Ending, stdout: bytes = b"", stderr: bytes = b"") -> RemoteResult:
        return RemoteResult(
            worker=self.target.worker,
            exit_status=ending.exit_status,
            stdout=stdout,
            stderr=stderr,
            duration_s=time.monotonic() - self.began,
            failure=ending.failure,
            detail=ending.detail,
        )


class SshRemote:
    """Runs commands on workers whose host keys are pinned, with one ed25519 key of our own.

    A connection without a sign of life for `silence_s` is given up, also while a command runs.
    `boot_retry` keeps trying a refused connection for a while: a host that is READY may not have its sshd yet.
    """

    def __init__(
        self,
        private_key_path: Path,
        *,
        connect_timeout_s: float = 5.0,
        handshake_timeout_s: float = 10.0,
        silence_s: float = 15.0,
        heartbeat_s: float = HEARTBEAT_S,
        boot_retry: bool = False,
        max_handshakes: int = 64,
        proxy: tuple[str, ...] = (),
    ) -> None:
        self._proxy = proxy
        self._key_path = private_key_path
        self._connect_timeout_s = connect_timeout_s
        self._handshake_timeout_s = handshake_timeout_s
        self._silence_s = silence_s
        self._heartbeat_s = heartbeat_s
        self._refused_for_s = BOOT_RETRY_S if boot_retry else 0.0
        self._handshakes = threading.BoundedSemaphore(max_handshakes)
        self._lock = threading.Lock()
        self._slots: dict[HostTarget, _Slot] = {}
        self._calls: set[_Call] = set()
        self._key: paramiko.PKey | None = None
        self._closed = False

    def run(
        self,
        targets: Sequence[HostTarget],
        command: str,
        *,
        stdin: Stdin = b"",
        timeout_s: float = 20.0,
    ) -> list[RemoteResult]:
        """See `Remote.run`."""
        outputs = [{"stdout": bytearray(), "stderr": bytearray()} for _ in targets]
        changed = threading.Event()
        calls = []
        for target, output in zip(targets, outputs, strict=True):
            feed = Feed(_stdin_for(target, stdin), hold=False)
            call = _Call(target, command, feed, changed, timeout_s)
            call.emit = _collect(output)
            calls.append(call)
        self._perform(calls, changed, lambda: None)
        return [
            _with_output(_result_of(call), bytes(output["stdout"]), bytes(output["stderr"]))
            for call, output in zip(calls, outputs, strict=True)
        ]

    def stream(
        self,
        targets: Sequence[HostTarget],
        command: str | Callable[[HostTarget], str],
        sink: OutputSink,
        *,
        stdin: Stdin = b"",
        hold_stdin: bool = False,
        timeout_s: float | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[RemoteResult]:
        """See `Remote.stream`. Workers that were stopped have failure LOST and say so in `detail`."""
        chunks: queue.Queue[tuple[int, str, bytes]] = queue.Queue(QUEUE_CHUNKS)
        changed = threading.Event()
        calls: list[_Call] = []
        for target in targets:
            text = command if isinstance(command, str) else command(target)
            feed = Feed(_stdin_for(target, stdin), hold=hold_stdin, heartbeat_s=self._heartbeat_s)
            call = _Call(target, text, feed, changed, timeout_s)
            call.emit = _enqueue(chunks, call)
            calls.append(call)
        self._perform(calls, changed, lambda: _pump(chunks, sink), should_stop)
        return [_result_of(call) for call in calls]

    def forward(
        self,
        resolve: Callable[[], HostTarget],
        remote_port: int,
        *,
        local_port: int = 0,
        report: Callable[[str], None],
    ) -> Forwarding:
        """See `Remote.forward`."""
        from tpuctl.remote.forwarding import LOOPBACK, Forwarder

        def open_channel() -> paramiko.Channel:
            call = _Call(resolve(), "", Feed(b"", hold=False), threading.Event(), FORWARD_TIMEOUT_S)
            transport = self._connection(call)
            where, here = (LOOPBACK, remote_port), (LOOPBACK, 0)
            return transport.open_channel("direct-tcpip", where, here, timeout=CHANNEL_TIMEOUT_S)

        return Forwarder(open_channel, local_port, report)

    def read_host_keys(self, targets: Sequence[HostTarget]) -> list[str | None]:
        """See `Remote.read_host_keys`."""
        from concurrent.futures import ThreadPoolExecutor

        def read(target: HostTarget) -> str | None:
            return read_host_key(target, self._handshake_timeout_s, self._proxy)

        with ThreadPoolExecutor(max_workers=32) as pool:
            return list(pool.map(read, targets))

    def close(self) -> None:
        """Ends running calls and closes every connection; returns when their threads are gone."""
        with self._lock:
            self._closed = True
            calls, slots = list(self._calls), list(self._slots.values())
            self._slots.clear()
        for call in calls:
            call.cancel()
        for call in calls:
            if call.thread is not None and call.thread is not threading.current_thread():
                call.thread.join(JOIN_S)
        self._close_connections(slots)

    def _close_connections(self, slots: Sequence[_Slot]) -> None:
        """All hang up before any is waited for: their threads end side by side."""
        for slot in slots:
            with slot.lock:
                if slot.transport is not None:
                    from tpuctl.remote.engine import hang_up

                    hang_up(slot.transport)
        for slot in slots:
            _close(slot)

    def _perform(
        self,
        calls: list[_Call],
        changed: threading.Event,
        pump: Callable[[], object],
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        """Runs all calls to their end; `pump` is called in this thread until then."""
        self._load_key()
        _allow_files(FILES_PER_CALL * len(calls))
        try:
            for call in calls:
                call.window_bytes = max(MIN_WINDOW, min(MAX_WINDOW, ALL_WINDOWS // len(calls)))
                self._start(call)
            give_up_at: float | None = None
            while not all(call.done for call in calls):
                changed.wait(STOP_POLL_S)
                changed.clear()
                pump()
                if give_up_at is None and should_stop is not None and should_stop():
                    give_up_at = time.monotonic() + STOP_PATIENCE_S
                    for call in calls:
                        call.cancel()
                if give_up_at is not None and time.monotonic() > give_up_at:
                    break
            pump()
        except BaseException:
            # Ctrl-C, or a sink that failed: cutting the channels ends what runs under a leash on the hosts.
            for call in calls:
                call.cancel()
            raise

    def _start(self, call: _Call) -> None:
        call.thread = threading.Thread(
            target=self._carry_out, args=(call,), name=f"tpuctl-ssh-{call.target.label}", daemon=True
        )
        with self._lock:
            if self._closed:
                raise BugError("a command was started on a closed SshRemote")
            self._calls.add(call)
        call.thread.start()

    def _carry_out(self, call: _Call) -> None:
        try:
            call.result = call.finish(self._attempt(call))
        except BaseException as error:  # noqa: BLE001 - a bug in this thread must end the caller, not hang it
            call.bug = error
        finally:
            with self._lock:
                self._calls.discard(call)
            call.changed.set()

    def _attempt(self, call: _Call) -> Ending:
        try:
            transport, channel = self._open_channel(call)
        except ConnectError as error:
            return Ending(failure=error.kind, detail=error.detail)
        call.adopt(channel)
        try:
            return exchange(
                channel,
                transport,
                call.command,
                call.feed,
                call.emit,
                call.deadline,
                self._silence_s,
                call.is_cancelled,
            )
        finally:
            channel.close()

    def _open_channel(self, call: _Call) -> tuple[paramiko.Transport, paramiko.Channel]:
        """A channel on the kept connection; one that died unnoticed is replaced once."""
        from tpuctl.remote.engine import hang_up, paramiko

        for last in (False, True):
            transport = self._connection(call)
            try:
                return transport, transport.open_session(
                    window_size=call.window_bytes, timeout=_limited(CHANNEL_TIMEOUT_S, call.deadline)
                )
            except paramiko.ChannelException as error:
                raise ConnectError(
                    FailureKind.CONNECT, f"{call.target.label} opens no further session: {error.text}"
                ) from error
            except (paramiko.SSHException, EOFError, OSError) as error:
                hang_up(transport)
                if last or call.is_cancelled():
                    raise ConnectError(
                        FailureKind.LOST, f"the connection to {call.target.label} was lost: {error}"
                    ) from error
        raise BugError("a channel was neither opened nor refused")

    def _connection(self, call: _Call) -> paramiko.Transport:
        with self._lock:
            slot = self._slots.setdefault(call.target, _Slot())
        with slot.lock:
            if slot.transport is not None and slot.transport.is_active():
                return slot.transport
            _close(slot)
            if self._closed or call.is_cancelled():
                raise ConnectError(FailureKind.LOST, "stopped by this side")
            slot.transport = open_connection(
                call.target,
                self._load_key(),
                connect_timeout_s=_limited(self._connect_timeout_s, call.deadline),
                handshake_timeout_s=_limited(self._handshake_timeout_s, call.deadline),
                refused_for_s=self._refused_for_s,
                handshake_slot=self._handshakes,
                is_cancelled=call.is_cancelled,
                proxy=self._proxy,
            )
            return slot.transport

    def _load_key(self) -> paramiko.PKey:
        with self._lock:
            if self._key is None:
                self._key = load_private_key(self._key_path)
            return self._key


def _close(slot: _Slot) -> None:
    if slot.transport is not None:
        from tpuctl.remote.engine import end

        end(slot.transport)
        slot.transport = None


def _allow_files(count: int) -> None:
    """Raises the soft limit of open files for a large slice; many systems start with 1024 or 256."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 512
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def _limited(timeout_s: float, deadline: float | None) -> float:
    """A part of a call never takes longer than what is left of the whole."""
    return timeout_s if deadline is None else max(0.1, min(timeout_s, deadline - time.monotonic()))


def _stdin_for(target: HostTarget, stdin: Stdin) -> bytes | Iterable[bytes]:
    return stdin if isinstance(stdin, bytes) else stdin(target)


def _collect(output: dict[str, bytearray]) -> Emit:
    def emit(name: str, data: bytes) -> bool:
        output[name] += data
        return True

    return emit


def _enqueue(chunks: queue.Queue[tuple[int, str, bytes]], call: _Call) -> Emit:
    def emit(name: str, data: bytes) -> bool:
        if call.is_cancelled():
            return True  # nobody wants it any more
        try:
            chunks.put((call.target.worker, name, data), timeout=STOP_POLL_S)
        except queue.Full:
            return False
        call.changed.set()
        return True

    return emit


def _discard(_name: str, _data: bytes) -> bool:
    return True


def _pump(chunks: queue.Queue[tuple[int, str, bytes]], sink: OutputSink) -> bool:
    """Passes on what is waiting; true when there was something."""
    found = False
    with contextlib.suppress(queue.Empty):
        for _ in range(QUEUE_CHUNKS):
            sink(*chunks.get_nowait())
            found = True
    return found


def _result_of(call: _Call) -> RemoteResult:
    if call.bug is not None:
        raise call.bug
    if call.result is None:
        return call.finish(Ending(failure=FailureKind.LOST, detail="stopped by this side"))
    return call.result


def _with_output(result: RemoteResult, stdout: bytes, stderr: bytes) -> RemoteResult:
    from dataclasses import replace

    return replace(result, stdout=stdout, stderr=stderr)
