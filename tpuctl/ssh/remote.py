"""Commands on many workers at once over SSH: the `Remote` port on paramiko.

A thread per worker, so that one which hangs holds up nobody. Handshakes in flight are bounded, running commands
are not. Connections stay open for the life of the object and are opened again when they died.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tpuctl.engine.ports import Forwarding, Remedy, RemoteCall, Server
from tpuctl.errors import BugError
from tpuctl.hosts.commands import HEARTBEAT_S, LINK_SILENCE_S
from tpuctl.model.hosts import FailureKind, HostTarget, RemoteResult
from tpuctl.ssh.calls import QUEUE_CHUNKS, Chunks, CollectedOutput, Emit, LastWords, WorkerCall, pump, queued
from tpuctl.ssh.connection import CHANNEL_TIMEOUT_S, turn
from tpuctl.ssh.errors import ConnectError
from tpuctl.ssh.pool import CONNECT_TIMEOUT_S, HANDSHAKE_TIMEOUT_S, Access, ConnectionPool
from tpuctl.ssh.served import Link, ServedAnswer, Servers, read_small, render_request
from tpuctl.ssh.session import Ending, Feed, exchange

if TYPE_CHECKING:
    import paramiko

STOP_POLL_S = 0.1
STOP_MAX_S = 2.0
"""After a stop, threads still busy connecting are not waited for any longer."""
FILES_PER_CALL = 3
"""A socket, and the pipe by which paramiko announces output."""
REMEDIES_AT_ONCE = 32
"""Of all workers, those to which what they lack is brought at the same time: where a link is slow, all at once
would share it until the time is up, and none would have it whole."""
WAITED = "what it lacks was still being brought to other workers when the time was up"
FORWARD_TIMEOUT_S = 20.0
"""For the connection behind a forwarded one."""
JOIN_S = 30.0
"""More than all the timeouts of a connection attempt together."""


class SshRemote:
    """Runs commands on workers whose host keys are pinned, with one ed25519 key of our own.

    A connection without a sign of life for `silence_s` is given up, also while a command runs. The other times
    are those of `Access`.
    """

    def __init__(
        self,
        private_key_path: Path,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        silence_s: float = LINK_SILENCE_S,
        heartbeat_s: float = HEARTBEAT_S,
        boot_retry: bool = False,
        max_handshakes: int = 64,
        max_remedies: int = REMEDIES_AT_ONCE,
        proxy: tuple[str, ...] = (),
    ) -> None:
        access = Access(private_key_path, connect_timeout_s, handshake_timeout_s, boot_retry, proxy)
        self._pool = ConnectionPool(access, max_handshakes)
        self._silence_s = silence_s
        self._heartbeat_s = heartbeat_s
        self._servers = Servers()
        self._remedies = threading.BoundedSemaphore(max_remedies)
        self._lock = threading.Lock()
        self._calls: set[WorkerCall] = set()
        self._forwarded: list[tuple[HostTarget, paramiko.Channel]] = []
        self._closed = False

    def run(self, targets: Sequence[HostTarget], call: RemoteCall) -> list[RemoteResult]:
        """See `Remote.run`. Workers that were stopped have failure LOST and say so in `detail`."""
        chunks: Chunks = queue.Queue(QUEUE_CHUNKS)
        changed = threading.Event()
        calls = [WorkerCall(target, call, changed) for target in targets]
        if call.sink is not None:
            for one in calls:
                one.emit = queued(chunks, one)
                one.share_window(len(targets))
        self._perform(calls, changed, chunks, call)
        return [one.output.added_to(one.outcome()) for one in calls]

    def forward(
        self,
        resolve: Callable[[], HostTarget],
        remote_port: int,
        *,
        local_port: int = 0,
        report: Callable[[str], None],
    ) -> Forwarding:
        """See `Remote.forward`."""
        from tpuctl.ssh.port_forward import LOOPBACK, Forwarder

        def open_channel() -> paramiko.Channel:
            deadline = time.monotonic() + FORWARD_TIMEOUT_S
            target = resolve()
            transport = self._pool.connection(target, deadline, lambda: self._closed)
            where, here = (LOOPBACK, remote_port), (LOOPBACK, 0)
            channel = transport.open_channel("direct-tcpip", where, here, timeout=CHANNEL_TIMEOUT_S)
            self._forwarded.append((target, channel))
            return channel

        return Forwarder(open_channel, local_port, report)

    def read_host_keys(self, targets: Sequence[HostTarget], *, timeout_s: float = 10.0) -> list[str | None]:
        """See `Remote.read_host_keys`."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=32) as pool:
            return list(pool.map(lambda target: self._pool.read_host_key(target, timeout_s), targets))

    def rest(self) -> bool:
        """See `Remote.rest`."""
        self._forwarded = [each for each in self._forwarded if not each[1].closed]
        with self._lock:
            busy = {call.target for call in self._calls} | {target for target, _ in self._forwarded}
        self._servers.forget_all_but(busy)
        self._pool.close_all_but(busy)
        return bool(busy)

    def close(self) -> None:
        """Ends running calls and closes every connection; returns when their threads are gone."""
        with self._lock:
            self._closed = True
            calls = list(self._calls)
        self._pool.refuse_more()
        for call in calls:
            call.cancel()
        for call in calls:
            if call.thread is not None and call.thread is not threading.current_thread():
                call.thread.join(JOIN_S)
        self._pool.close()

    def _perform(
        self,
        calls: list[WorkerCall],
        changed: threading.Event,
        chunks: Chunks,
        asked: RemoteCall,
    ) -> None:
        """Runs all calls to their end; sink and `on_end` are called in this thread until then."""
        untold = set(calls)

        def pass_on() -> None:
            ended = [call for call in calls if call in untold and call.done]
            if asked.sink is not None:  # all that they said is waiting by now
                pump(chunks, asked.sink)
            untold.difference_update(ended)
            for call in ended:
                if asked.on_end is not None:
                    asked.on_end(call.outcome())

        self._pool.load_key()
        _allow_files(FILES_PER_CALL * len(calls))
        try:
            for call in calls:
                self._start(call)
            cancel_at: float | None = None
            give_up_at: float | None = None
            while not all(call.done for call in calls):
                changed.wait(STOP_POLL_S)
                changed.clear()
                pass_on()
                if cancel_at is None and asked.should_stop is not None and asked.should_stop():
                    cancel_at = time.monotonic() + asked.end_within_s
                    for call in calls if asked.end_within_s else ():
                        call.end_input()
                if give_up_at is None and cancel_at is not None and time.monotonic() >= cancel_at:
                    give_up_at = time.monotonic() + STOP_MAX_S
                    for call in calls:
                        call.cancel()
                if give_up_at is not None and time.monotonic() > give_up_at:
                    break
            pass_on()
        except BaseException:
            # Ctrl-C, or a sink that failed: cutting the channels ends what runs in a session on the hosts.
            for call in calls:
                call.cancel()
            raise

    def _start(self, call: WorkerCall) -> None:
        call.thread = threading.Thread(
            target=self._carry_out, args=(call,), name=f"tpuctl-ssh-{call.target.label}", daemon=True
        )
        with self._lock:
            if self._closed:
                raise BugError("a command was started on a closed SshRemote")
            self._calls.add(call)
        call.thread.start()

    def _carry_out(self, call: WorkerCall) -> None:
        try:
            call.result = call.finish(self._run_with_remedy(call))
        except BaseException as error:  # noqa: BLE001 - a bug in this thread must end the caller, not hang it
            call.bug = error
        finally:
            with self._lock:
                self._calls.discard(call)
            call.changed.set()

    def _run_with_remedy(self, call: WorkerCall) -> Ending:
        """Runs the command; where it lacks what its remedy brings, that and then the command once more."""
        remedy = call.asked.remedy
        if remedy is None:
            return self._perform_once(call, call.emit)
        words = LastWords(call.emit, len(remedy.said))
        ending = self._perform_once(call, words)
        if not remedy.is_for(ending.exit_status, words.text):
            return ending
        call.output.drop()
        try:
            with contextlib.ExitStack() as slot:
                slot.enter_context(turn(self._remedies, call.deadline, call.is_cancelled, WAITED))
                ending, is_over = self._bring(call, remedy, slot.close)
        except ConnectError as error:
            return Ending(failure=error.kind, detail=error.detail)
        return ending if is_over else self._perform_once(call, call.emit)

    def _bring(self, call: WorkerCall, remedy: Remedy, brought_it: Callable[[], None]) -> tuple[Ending, bool]:
        """Brings what the command lacks. How that ended, and whether this is the end of the call: also where
        what brought it, and is said to have by `brought_it`, went on and answered."""
        server = call.asked.server
        request = None if server is None else read_small(call.stdin)[0]
        if server is None or request is None:
            brought = CollectedOutput()
            ending = self._attempt(call, remedy.command, Feed(remedy.stdin, hold=False), brought.emit)
            answered, said = False, brought.said_on("stderr")
        else:
            pieces = [remedy.stdin, render_request(server, request)]
            link, command = self._open(call), server.remedied
            ending, answer = self._ask(call, server, pieces, call.emit, link, command, on_begin=brought_it)
            answered, said = answer.begun, answer.said
            if answered and said:
                call.emit("stderr", said)
        if ending.exit_status and not answered:
            return replace(ending, detail=remedy.explain(ending.exit_status, said)), True
        return ending, answered or ending.exit_status is None

    def _perform_once(self, call: WorkerCall, emit: Emit) -> Ending:
        """The command from its start, or what answers in its place."""
        server, stdin = call.asked.server, call.stdin
        whole, stdin = (None, stdin) if server is None else read_small(stdin)
        if server is None or whole is None:
            feed = Feed(stdin, call.asked.hold_stdin, self._heartbeat_s)
            return self._attempt(call, call.command, feed, emit)
        request = render_request(server, whole)
        kept = self._servers.take(call.target, server.command)
        if kept is not None:
            ending, answer = self._ask(call, server, request, emit, kept)
            if not answer.is_refused or ending.failure is FailureKind.TIMEOUT or call.is_cancelled():
                return ending
        # None waits, or it provably did not begin: whatever is lost with its connection may have been done.
        try:
            link = self._open(call)
        except ConnectError as error:
            return Ending(failure=error.kind, detail=error.detail)
        ending, answer = self._ask(call, server, request, emit, link, server.command)
        if answer.said:
            emit("stderr", answer.said)
        return ending

    def _ask(
        self,
        call: WorkerCall,
        server: Server,
        request: bytes | Iterable[bytes],
        emit: Emit,
        link: Link,
        command: str = "",
        *,
        on_begin: Callable[[], None] = lambda: None,
    ) -> tuple[Ending, ServedAnswer]:
        """One request to a server on `link`, which waits there unless `command` starts it."""
        answer = ServedAnswer(emit, is_first=bool(command), on_begin=on_begin)
        feed = Feed(request, hold=True, heartbeat_s=math.inf)
        ending = self._converse(call, link, command, feed, answer.take, lambda: answer.ending)
        # The end of its output comes after all of it, and only if the server ends while the connection lives.
        answer.is_refused = not answer.begun and (not feed.sent or bool(link[1].eof_received))
        if answer.ending is not None:
            call.adopt(None)
            self._servers.keep(call.target, server.command, link)
        return ending, answer

    def _attempt(self, call: WorkerCall, command: str, feed: Feed, emit: Emit) -> Ending:
        try:
            link = self._open(call)
        except ConnectError as error:
            return Ending(failure=error.kind, detail=error.detail)
        return self._converse(call, link, command, feed, emit)

    def _open(self, call: WorkerCall) -> Link:
        return self._pool.open_session(call.target, call.window_bytes, call.deadline, call.is_cancelled)

    def _converse(
        self,
        call: WorkerCall,
        link: Link,
        command: str,
        feed: Feed,
        emit: Emit,
        answered: Callable[[], Ending | None] = lambda: None,
    ) -> Ending:
        """See `exchange`. The channel is closed then, unless an answer came whole."""
        from tpuctl.ssh.paramiko_tuning import paramiko

        broken = (paramiko.SSHException, OSError, EOFError)
        transport, channel = link
        call.adopt(channel)
        try:
            return exchange(
                channel,
                transport,
                command,
                feed,
                emit,
                call.deadline,
                self._silence_s,
                call.is_cancelled,
                answered,
            )
        except broken as error:
            return Ending(
                failure=FailureKind.LOST, detail=f"the connection broke: {error or 'no more answers'}"
            )
        finally:
            if answered() is None:
                with contextlib.suppress(*broken):
                    channel.close()


def _allow_files(count: int) -> None:
    """Raises the soft limit of open files for a large slice; many systems start with 1024 or 256."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 512
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
