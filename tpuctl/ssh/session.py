"""One command on one channel: bytes in, bytes out, and the one true reason why it ended."""

from __future__ import annotations

import math
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from tpuctl.hosts.commands import HEARTBEAT_S
from tpuctl.model.hosts import FailureKind

if TYPE_CHECKING:
    import paramiko

CHUNK = 128 * 1024
PACKET = 32 * 1024 - 64
"""What paramiko sends to OpenSSH at once; of a longer piece the rest would be copied for each packet."""
PROBE_AFTER_S = 5.0
"""A connection without a byte for this long is asked for an answer."""
EARLY = 0.1
"""By this part of that time earlier if its thread is awake for a heartbeat: it need not wake once more then."""
LOOK_S = 5.0
"""How often a thread wakes for a command from which nothing comes, and for which nothing is due: at 256 hosts
each time adds up. Whoever ends a command closes its channel, and that wakes the thread."""
STDIN_RETRY_MS = 5
"""How soon a full SSH window is tried again; nothing in paramiko's public API announces that it opened."""
UNLINKED_S = 1.0
"""paramiko takes the channels from a lost connection a moment before it says that the connection is lost."""

KILLED = "the command was killed by a signal"


class Ending(Struct):
    """How a command ended; exactly one of `exit_status` and `failure` is set."""

    exit_status: int | None = None
    failure: FailureKind | None = None
    detail: str = ""


class Feed:
    """What is still to be sent to stdin: the given bytes, then heartbeats if it is held, else end of file. A
    source that has nothing yet gives None."""

    def __init__(
        self, source: bytes | Iterable[bytes | None], hold: bool, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._chunks: Iterator[bytes | None] = iter([source] if isinstance(source, bytes) else source)
        self._pending = memoryview(b"")
        self._exhausted = self._waiting = False
        self._hold = hold
        self._heartbeat_s = heartbeat_s
        self._next_beat = time.monotonic() + heartbeat_s
        self._closed = False
        self.sent = False
        """Whether the channel took any of it."""

    @property
    def due_at(self) -> float:
        """When the next heartbeat is to be sent."""
        return self._next_beat if self._hold and not self._closed else math.inf

    def push(self, channel: paramiko.Channel) -> bool:
        """Sends what the window takes; false when more is waiting for the window, or for its source."""
        try:
            while self._refill():
                sent = channel.send(self._pending[:PACKET].tobytes())
                if sent == 0:
                    return self._abandon()
                self.sent = True
                self._pending = self._pending[sent:]
            if self._waiting:
                return False
            if self._exhausted and not self._hold and not self._closed:
                self._closed = True
                channel.shutdown_write()
        except TimeoutError:
            return False
        except (OSError, EOFError):
            # The command closed its stdin, or the connection broke, for which paramiko says EOFError: what it
            # said and how it ended still counts.
            return self._abandon()
        return True

    def _refill(self) -> bool:
        self._waiting = False
        while not self._pending and not self._exhausted and not self._waiting:
            for chunk in self._chunks:
                self._waiting = chunk is None
                self._pending = memoryview(chunk or b"")
                break
            else:
                self._exhausted = True
        if self._exhausted and self._hold and not self._closed and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + self._heartbeat_s
            self._pending = memoryview(b"\n")
        return bool(self._pending)

    def _abandon(self) -> bool:
        self._pending = memoryview(b"")
        self._exhausted = self._closed = True
        self._waiting = False
        return True


class Probe:
    """Asks a silent connection for a sign of life. TCP does not notice a server process that hangs."""

    def __init__(self, transport: paramiko.Transport, silence_s: float) -> None:
        self._transport = transport
        self._silence_s = silence_s
        self._ask_after_s = min(PROBE_AFTER_S, silence_s / 3)
        self._early_s = self._ask_after_s * EARLY
        self._note(time.monotonic())

    def _note(self, heard: float) -> None:
        self.heard = heard
        self._ask_at = heard + self._ask_after_s

    def note_life(self) -> None:
        self._note(time.monotonic())

    @property
    def due_at(self) -> float:
        """When there is something to be checked: whether to ask, or whether an answer came."""
        return min(self._ask_at, self.heard + self._silence_s)

    def check(self) -> bool:
        """False when the other side has been dead for `silence_s`."""
        now = time.monotonic()
        if now < self.due_at - self._early_s:
            return True
        from tpuctl.ssh.paramiko_tuning import ask_for_life, heard_at

        heard = heard_at(self._transport)
        if heard > self.heard:
            self._note(heard)
        if now >= self._ask_at - self._early_s:
            self._ask_at = now + self._ask_after_s
            ask_for_life(self._transport)
        return now - self.heard < self._silence_s


class Outlet:
    """Output on its way to `emit`, which refuses it while the reader on our side is busy.

    Nothing more is read from the host meanwhile, but heartbeats go on: a paused terminal ends no session.
    """

    def __init__(self, emit: Callable[[str, bytes], bool]) -> None:
        self._emit = emit
        self._held: deque[tuple[str, bytes]] = deque()

    def put(self, name: str, data: bytes) -> None:
        self._held.append((name, data))
        self.flush()

    def flush(self) -> bool:
        """True when nothing is held back any more."""
        while self._held and self._emit(*self._held[0]):
            self._held.popleft()
        return not self._held


def exchange(
    channel: paramiko.Channel,
    transport: paramiko.Transport,
    command: str,
    feed: Feed,
    emit: Callable[[str, bytes], bool],
    deadline: float | None,
    silence_s: float,
    is_cancelled: Callable[[], bool],
    answered: Callable[[], Ending | None] = lambda: None,
) -> Ending:
    """Runs `command`, passing its output to `emit` until it ended, was lost, cancelled, or the time is up.

    With `answered` the end of an answer is the end, of which that tells, and the command goes on; without a
    `command` it is one that waits on the channel.
    """
    from tpuctl.ssh.paramiko_tuning import hang_up, paramiko

    try:
        if command:
            channel.exec_command(command)
    except (paramiko.SSHException, OSError, EOFError) as error:
        return Ending(failure=FailureKind.LOST, detail=f"the command was not accepted: {error}")
    channel.setblocking(0)
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    probe, outlet = Probe(transport, silence_s), Outlet(emit)
    while True:
        flowing = feed.push(channel)
        wait_ms = _wait_ms(deadline, feed, probe) if flowing else STDIN_RETRY_MS
        # Looked at before draining: whatever came before the end is then in the buffers that are drained below.
        ended = channel.eof_received or channel.closed
        if not outlet.flush() or ((ended or poll.poll(wait_ms)) and _drain(channel, outlet)):
            probe.note_life()
            if (ending := answered()) is not None:
                return ending
        elif ended:
            return _conclude(channel, transport, deadline, is_cancelled)
        if is_cancelled():
            return Ending(failure=FailureKind.LOST, detail="stopped by this side")
        if deadline is not None and time.monotonic() >= deadline:
            return Ending(failure=FailureKind.TIMEOUT, detail="the command did not end in time")
        if not probe.check():
            hang_up(transport)
            return Ending(failure=FailureKind.LOST, detail=f"no sign of life for {silence_s:g} s")


def _wait_ms(deadline: float | None, feed: Feed, probe: Probe) -> float:
    now = time.monotonic()
    due = min(now + LOOK_S, math.inf if deadline is None else deadline, feed.due_at, probe.due_at)
    return 1000 * max(0.0, due - now)


def _drain(channel: paramiko.Channel, outlet: Outlet) -> bool:
    """Passes on what has arrived; false when nothing had."""
    found = False
    for name, ready, receive in (
        ("stdout", channel.recv_ready, channel.recv),
        ("stderr", channel.recv_stderr_ready, channel.recv_stderr),
    ):
        if ready():
            try:
                data = receive(CHUNK)
            except TimeoutError:
                continue
            if data:
                found = True
                outlet.put(name, data)
    return found


def _conclude(
    channel: paramiko.Channel,
    transport: paramiko.Transport,
    deadline: float | None,
    is_cancelled: Callable[[], bool],
) -> Ending:
    """The end after the last output; a command may close its output and work on."""
    while not channel.status_event.wait(0.2):
        if is_cancelled():
            return Ending(failure=FailureKind.LOST, detail="stopped by this side")
        if deadline is not None and time.monotonic() >= deadline:
            return Ending(failure=FailureKind.TIMEOUT, detail="the command did not end in time")
        if not transport.is_active():
            break
    status = channel.recv_exit_status() if channel.exit_status_ready() else -1
    if status >= 0:
        return Ending(exit_status=status)
    if is_cancelled():
        return Ending(failure=FailureKind.LOST, detail="stopped by this side")
    if not channel.eof_received and transport.is_active():
        transport.join(UNLINKED_S)
    if transport.is_active():
        return Ending(failure=FailureKind.SIGNAL, detail=KILLED)
    return Ending(failure=FailureKind.LOST, detail="the connection was lost before the command ended")
