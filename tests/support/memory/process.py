"""Processes of hosts in memory: programs as Python generators, driven by the time of their host.

A program is called with its `Process` and yields what it waits for: seconds, or a `Wait`. It writes with
`write`, returns its exit status, and may catch `Terminated` where a real one would handle SIGTERM. Nothing runs
by itself: whoever looks at a host brings its processes up to date first, event by event in the order of time.
"""

from __future__ import annotations

import math
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
    change: tuple[Process, ...] = ()


Steps = Generator["Wait | float", None, Any]
Program = Callable[["Process"], Steps]


class Process:
    """One process. `name` is for people; `tree` is shared with everything that it starts."""

    def __init__(
        self,
        host: MemoryHost,
        pid: int,
        program: Program,
        *,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        tree: list[Process] | None = None,
    ) -> None:
        self.host = host
        self.pid = pid
        self.argv = tuple(argv)
        self.env = dict(env or {})
        self.tree: list[Process] = [] if tree is None else tree
        self.tree.append(self)
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
        self._rest = b""
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
            self.poke()

    def print(self, text: str, stream: str = "stdout") -> None:
        self.write(f"{text}\n", stream)

    def spawn(self, program: Program, *, argv: Sequence[str] = ()) -> Process:
        """A child; it stays in the tree when this process has ended, as with setsid or a double fork."""
        child = self.host.start(program, argv=argv, env=self.env, tree=self.tree)
        child.outbox, child.emit = None, self.emit
        child.reader = self.reader or self
        return child

    def read(self) -> Generator[Wait, None, bytes]:
        """Some bytes of stdin; empty at its end."""
        while not self.stdin and not self.at_eof:
            yield Wait(stdin=True)
        if self._rest:
            data, self._rest = self._rest, b""
            return data
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
        return sum(map(len, self.stdin)) + len(self._rest)

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

    def poke(self) -> None:
        """Wakes those that wait for a change of this process."""
        for watcher in self._watchers:
            watcher.wake()
        self._watchers.clear()

    def wake(self) -> None:
        """Something that it looks at has changed."""
        self._wake_at = min(self._wake_at, self.host.time)

    def due_at(self) -> float:
        """When it is to be run on; NEVER when only a signal or a client can make it move."""
        if not self.alive:
            return NEVER
        if self._pending_term:
            return self.host.time
        if self.blocked:
            return NEVER
        if self._wait.stdin:
            return min(self._wake_at, self.host.time if self.stdin or self._rest else self.eof_at)
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
        for other in wait.change:
            if other.alive:
                other._watchers.add(self)
            else:
                self._wake_at = self.host.time

    def _end(self, *, exit_status: int | None = None, signal: int | None = None) -> None:
        self.exit_status, self.signal, self.ended_at = exit_status, signal, self.host.time
        self.poke()

    def _post(self, stream: str, data: bytes) -> None:
        if self.outbox is not None:
            self.outbox.append((stream, data))
            self._posted += len(data)


def end_tree(tree: Sequence[Process], grace_s: Callable[[], float], began: float) -> Steps:
    """TERM to all, `grace_s()` seconds since `began`, KILL; new members and a shorter grace count."""
    told: set[int] = set()
    while alive := [process for process in tree if process.alive]:
        left = began + grace_s() - alive[0].now
        if left <= 0:
            for process in alive:
                process.kill()
            return
        for process in alive:
            if process.pid not in told:
                process.terminate()
                told.add(process.pid)
        yield Wait(left, change=tuple(alive))


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
