"""Processes of hosts in memory: programs as Python generators, driven by the time of their host.

A program is called with its `Process` and yields what it waits for: seconds, or a `Wait`. It writes with
`write`, returns its exit status, and may catch `Terminated` where a real one would handle SIGTERM. Nothing runs
by itself: whoever looks at a host brings its processes up to date first, event by event in the order of time.
"""

from __future__ import annotations

import math
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost

NEVER = math.inf
PIPE_BYTES = 1 << 20
"""A process whose reader is this far behind is not run on, as with a full pipe and a full SSH window."""


class Terminated(BaseException):
    """SIGTERM, for programs that handle it."""


class Killed(Exception):
    """A program raises this to die by a signal of its own making."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


@dataclass(frozen=True)
class Wait:
    """Any of these ends the wait; with none of them only a signal does."""

    seconds: float | None = None
    stdin: bool = False
    ends: tuple[Process, ...] = ()
    stir_s: float | None = None
    """So long after anything that a program on this host does: writes, begins, ends."""


Steps = Generator["Wait | float", None, Any]
Program = Callable[["Process"], Steps]


class Process:
    """One process."""

    def __init__(
        self,
        host: MemoryHost,
        pid: int,
        program: Program,
        *,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        parent: Process | None = None,
    ) -> None:
        self.host = host
        self.pid = pid
        self.argv = tuple(argv)
        self.env = dict(env or {})
        self.parent = parent
        self.adopts = False
        """What its descendants leave behind becomes its own: PR_SET_CHILD_SUBREAPER."""
        self.asks = False
        """It is a verb of the agent, which changes nothing by its end."""
        self.on_term: Callable[[], None] | None = None
        """Its handler of SIGTERM, of programs that are no generators."""
        self.alarm_at = NEVER
        self.locks: list[int] = []
        """Handles of files that it has locked, closed at its end."""
        self.started_at = host.time
        self.ended_at: float | None = None
        self.exit_status: int | None = None
        self.signal: int | None = None
        self.ignores_term = False
        self.outbox: deque[tuple[str, bytes]] | None = deque()
        self.emit: Callable[[str, bytes], None] = self._post
        self.stdin: deque[bytes] = deque()
        self.eof_at = NEVER
        self.reader: Process | None = None
        """Another process that passes on what this one writes, as the session does."""
        self.silence_s = NEVER
        """How long this process waits for a sign of life from a client that it cannot reach."""
        self._posted = 0
        self._pending_term = False
        self._watchers: set[Process] = set()
        self._wait = Wait(0.0)
        self._wake_at = host.time
        self._steps = program(self)

    # What programs use.

    @property
    def now(self) -> float:
        return self.host.time

    def write(self, data: bytes | str, stream: str = "stdout") -> None:
        raw = data.encode() if isinstance(data, str) else data
        if raw:
            self.emit(stream, raw)

    def print(self, text: str, stream: str = "stdout") -> None:
        self.write(f"{text}\n", stream)

    def spawn(self, program: Program, *, argv: Sequence[str] = ()) -> Process:
        """A child; it may live on when this process has ended, as with setsid or a double fork."""
        child = self.host.start(program, argv=argv, env=self.env, parent=self)
        child.outbox, child.emit = None, self.emit
        child.reader = self.reader or self
        return child

    def read(self) -> Generator[Wait, None, bytes]:
        """Some bytes of stdin; empty at its end."""
        while not self.stdin and not self.at_eof:
            yield Wait(stdin=True)
        return self.stdin.popleft() if self.stdin else b""

    def read_line(self) -> Generator[Wait, None, bytes]:
        data = b""
        while b"\n" not in data:
            chunk = yield from self.read()
            if not chunk:
                return data
            data += chunk
        line, _, rest = data.partition(b"\n")
        if rest:
            self.stdin.appendleft(rest)
        return line

    def read_exactly(self, size: int) -> Generator[Wait, None, bytes]:
        """Less than `size` bytes only at the end of stdin."""
        found = bytearray()
        while len(found) < size:
            chunk = yield from self.read()
            if not chunk:
                break
            found += chunk
        if len(found) > size:
            self.stdin.appendleft(bytes(found[size:]))
        return bytes(found[:size])

    def read_all(self) -> Generator[Wait, None, bytes]:
        found = bytearray()
        while chunk := (yield from self.read()):
            found += chunk
        return bytes(found)

    @property
    def at_eof(self) -> bool:
        return self.eof_at <= self.host.time

    # What the host and its clients use.

    @property
    def alive(self) -> bool:
        return self.ended_at is None

    @property
    def wants_stdin(self) -> bool:
        return self.alive and self._wait.stdin and not self.stdin and self.eof_at == NEVER

    @property
    def unread(self) -> int:
        """How much of what it was fed it left."""
        return sum(map(len, self.stdin))

    @property
    def blocked(self) -> bool:
        if self.reader is not None:
            return self.reader.blocked
        return self.outbox is not None and self._posted > PIPE_BYTES

    def feed(self, data: bytes) -> None:
        if data and self.alive:
            self.stdin.append(data)

    def end_stdin(self, at: float | None = None) -> None:
        self.eof_at = min(self.eof_at, self.host.time if at is None else at)

    def detach(self) -> None:
        """Nobody listens any more: what it writes is lost, and its stdin has ended."""
        self.outbox = None
        self._posted = 0
        self.end_stdin()

    def take_output(self) -> tuple[str, bytes] | None:
        if not self.outbox:
            return None
        name, data = self.outbox.popleft()
        self._posted -= len(data)
        return name, data

    def terminate(self) -> None:
        if self.alive and not self.ignores_term:
            self._pending_term = True

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.alive:
            self._steps.close()
            self._end(signal=number)

    def wake(self, in_s: float = 0.0) -> None:
        """Something that it looks at has changed."""
        self._wake_at = min(self._wake_at, self.host.time + in_s)

    def stir(self) -> None:
        """Something on its host has changed."""
        self.wake(self._wait.stir_s or 0.0)

    def due_at(self) -> float:
        """When it is to be run on; NEVER when only a signal or a client can make it move."""
        if not self.alive:
            return NEVER
        if self._pending_term:
            return self.host.time
        if self.blocked:
            return NEVER
        if self._wait.stdin:
            return min(self._wake_at, self.host.time if self.stdin else self.eof_at)
        return self._wake_at

    def resume(self) -> None:
        """Runs it up to its next wait or its end."""
        term, self._pending_term = self._pending_term, False
        try:
            wanted = self._steps.throw(Terminated()) if term else next(self._steps)
        except StopIteration as end:
            self._end(exit_status=int(end.value or 0))
        except Terminated:
            self._end(signal=signal.SIGTERM)
        except Killed as death:
            self._end(signal=death.number)
        else:
            self._await(wanted if isinstance(wanted, Wait) else Wait(float(wanted)))

    def _await(self, wait: Wait) -> None:
        self._wait = wait
        self._wake_at = NEVER if wait.seconds is None else self.host.time + wait.seconds
        for other in wait.ends:
            if other.alive:
                other._watchers.add(self)
            else:
                self._wake_at = self.host.time
        if wait.stir_s is not None:
            self.host.watchers.add(self)

    def _end(self, *, exit_status: int | None = None, signal: int | None = None) -> None:
        self.exit_status, self.signal, self.ended_at = exit_status, signal, self.host.time
        for handle in self.locks:
            os.close(handle)
        heir = self.parent
        while heir is not None and not (heir.alive and heir.adopts):
            heir = heir.parent
        for child in self.host.processes:
            if child.parent is self:
                child.parent = heir
        for watcher in self._watchers:
            watcher.wake()
        if not self.asks:
            self.host.stir()

    def _post(self, stream: str, data: bytes) -> None:
        if self.outbox is not None:
            self.outbox.append((stream, data))
            self._posted += len(data)


def scripted(
    seconds: float = 0.0,
    *,
    exit_status: int = 0,
    signal: int | None = None,
    lines: Sequence[str] = (),
    deaf: bool = False,
) -> Program:
    """A program that writes `lines` evenly over `seconds`, then ends; `deaf` to SIGTERM."""

    def program(process: Process) -> Steps:
        process.ignores_term = deaf
        for line in lines:
            process.print(line)
            yield seconds / len(lines)
        if not lines:
            yield seconds
        if signal is not None:
            raise Killed(signal)
        return exit_status

    return program
