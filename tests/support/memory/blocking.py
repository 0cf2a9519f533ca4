"""Programs of ordinary blocking code as processes of hosts in memory.

Each has a thread of its own, and one thread at a time runs: the baton goes to it when the host resumes the
process, and comes back when it waits for something or ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.support.memory.process import NEVER, Killed, Process, Program, Steps, Terminated, Wait

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost


class Exit(BaseException):
    """The program ends with this status, as by `os._exit`."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Gone(BaseException):
    """The process was killed while it waited."""


class Running:
    """The process at work, and the host it is on."""

    host: MemoryHost | None = None
    process: Process | None = None
    thread: _Thread | None = None


here = Running()


def the_host() -> MemoryHost:
    assert here.host is not None, "the agent works on no host"
    return here.host


def the_process() -> Process:
    assert here.process is not None, "the agent works in no process"
    return here.process


class At:
    """Within this, the agent works on that host, in that process."""

    def __init__(self, host: MemoryHost, process: Process | None = None, thread: _Thread | None = None) -> None:
        self._now = host, process, thread

    def __enter__(self) -> None:
        self._before = here.host, here.process, here.thread
        here.host, here.process, here.thread = self._now

    def __exit__(self, *_: object) -> None:
        here.host, here.process, here.thread = self._before


class _Thread:
    def __init__(self, process: Process, body: Callable[[], int | None]) -> None:
        self._process = process
        self._body = body
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._error: BaseException | None = None
        self._wanted: Wait | None = None
        self._gone = False
        self._ended = False
        self.seen, self.looks = -1, 0
        self.status = 0
        self._thread = threading.Thread(target=self._work, daemon=True)

    def go_on(self) -> Wait | None:
        """Lets it work up to its next wait, which is answered; None at its end."""
        with At(self._process.host, self._process, self):
            if not self._thread.ident:
                self._thread.start()
            self._go.release()
            self._back.acquire()
        if self._error is not None:
            raise self._error
        return None if self._ended else self._wanted

    def wait(self, wanted: Wait) -> None:
        self._wanted = wanted
        self._back.release()
        self._go.acquire()
        if self._gone:
            raise Gone

    def end(self) -> None:
        if self._thread.ident and not self._ended:
            self._gone = True
            self.go_on()

    def _work(self) -> None:
        self._go.acquire()
        try:
            if not self._gone:
                self.status = int(self._body() or 0)
        except Exit as end:
            self.status = end.status
        except Gone:
            pass  # nobody asks for its status
        except BaseException as error:  # noqa: BLE001 - raised again where the process was resumed
            self._error = error
        self._ended = True
        self._back.release()


def blocking(body: Callable[[], int | None]) -> Program:
    """The program that `body` is; it may call `wait` and `look_again`."""

    def program(process: Process) -> Steps:
        thread = _Thread(process, body)
        try:
            while (wanted := thread.go_on()) is not None:
                try:
                    yield _before_alarm(process, wanted)
                except Terminated:
                    if process.on_term is None:
                        raise
                    process.on_term()
                if process.now >= process.alarm_at:
                    raise Killed(14)
        finally:
            thread.end()
        return thread.status

    return program


def _before_alarm(process: Process, wanted: Wait) -> Wait:
    left = process.alarm_at - process.now
    if left == NEVER or (wanted.seconds is not None and wanted.seconds <= left):
        return wanted
    return Wait(left, wanted.stdin, wanted.ends, wanted.stir_s)


def wait(wanted: Wait) -> None:
    assert here.thread is not None, "a verb that was to answer at once waits"
    here.thread.wait(wanted)


def look_again(
    every_s: float,
    *,
    until: float = NEVER,
    stdin: bool = False,
    ends: tuple[Process, ...] = (),
    looks: int = 1,
) -> None:
    """Waits as who looks every so many seconds. That is `looks` times after something stirred on the host, and
    never where nothing does."""
    thread, process = here.thread, the_process()
    assert thread is not None, "a verb that was to answer at once waits"
    if thread.seen != process.host.changes:
        thread.seen, thread.looks = process.host.changes, looks
    thread.looks -= 1
    left = min(until - process.now, every_s if thread.looks > 0 else NEVER)
    thread.wait(Wait(None if left == NEVER else max(0.0, left), stdin, ends, every_s))
