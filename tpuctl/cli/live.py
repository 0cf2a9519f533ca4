"""Draws the events of workflows: live on a terminal, one plain line per change otherwise.

Output of workers goes through whole lines at a time with the worker in front; lines that several workers write
alike within a short window are shown once, under the folded set of workers.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable

from msgspec import Struct, field

from tpuctl.cli.console import Console, wants_colour
from tpuctl.cli.wrapping import cell_len, cut, terminal_width
from tpuctl.engine.events import (
    DataProgress,
    Note,
    StepDone,
    StepStarted,
    Transfer,
    Waiting,
    Warn,
    WorkerOutput,
)
from tpuctl.lib.text import Place, counted, fold_label, sized
from tpuctl.lib.time import render_clock, render_instant, render_seconds, render_timer
from tpuctl.model.processes import is_chosen

FOLD_WINDOW_S = 0.15
"""How long a line may wait for its twins from other workers."""
FOLD_LINES = 64
"""A chunk with more lines is written as one block: nobody compares them as they rush by, and looking for twins
costs time per line (`exec --group` folds whole outputs)."""
MAX_PARTIAL = 64 * 1024
"""A line without an end is shown in pieces of this size."""
REPEAT_WAIT_S = 60.0
"""Without a terminal, a wait that goes on says so this often."""
SHORTEST_NAME = 12
"""Longer words than this give way on a status line that is too long."""
TRANSFER_LINE_S = 10.0
"""Without a terminal, a transfer says this often how far it is."""


def squeeze(text: str, room: int) -> str:
    """`text` in `room` columns if that can be had of its longest words, the names: they lose their middle, and
    what is said of them stays."""
    words = text.split(" ")
    shown = text
    for longest in range(max(map(len, words)), SHORTEST_NAME - 1, -1):
        if cell_len(shown) <= room:
            break
        shown = " ".join(_squeezed(word, longest) for word in words)
    return shown


def _squeezed(word: str, room: int) -> str:
    """States of the cloud are in capitals: they are what is said."""
    tail = room // 2
    return word if len(word) <= room or word.isupper() else f"{word[: room - tail - 1]}…{word[-tail:]}"


def output_prefix(subject: str, workers: Iterable[Place], at: float | None) -> str:
    """What stands before a line of these workers, with its time where that is given."""
    stamp = "" if at is None else output_stamp(at)
    return f"{stamp}{fold_label(subject, workers)} │ "


def output_stamp(at: float) -> str:
    """The time of a line, before everything else."""
    return f"{render_instant(at)} "


class _Pending(Struct):
    """A line that some workers have written and others may still write."""

    workers: list[Place]
    since: float


class LineFolder(Struct):
    """Chunks in, prefixed lines out. `put` and `flush` are called under one lock by the renderer.

    Lines of one worker keep their order: a line that cannot wait any longer pushes out all that were pending
    before it.
    """

    write: Callable[[str, bytes], None]
    now: Callable[[], float]
    pattern: re.Pattern[str] | None = None
    """Only lines in which it is found are written."""
    stamped: bool = False
    """Each line is written behind the time at which it came."""
    _partial: dict[tuple[str, Place, str], bytes] = field(default_factory=dict)
    _pending: dict[tuple[str, str, bytes], _Pending] = field(default_factory=dict)

    def put(self, event: WorkerOutput) -> None:
        """Takes a chunk; writes what is complete and need not wait."""
        key = (event.subject, event.worker, event.stream)
        data = self._partial.pop(key, b"") + event.data
        block, newline, rest = data.rpartition(b"\n")
        if rest and len(rest) >= MAX_PARTIAL:
            block, newline, rest = data, b"\n", b""
        if rest:
            self._partial[key] = rest
        if self.pattern is not None:
            found = [
                line for line in block.split(b"\n") if self.pattern.search(line.decode("utf-8", "replace"))
            ]
            block, newline = b"\n".join(found), newline if found else b""
        if not newline:
            return
        if event.workers == 1 or block.count(b"\n") >= FOLD_LINES:
            self.flush()
            self._write(event.subject, [event.worker], event.stream, block, self.now())
            return
        for line in block.split(b"\n"):
            self._put_line(event, line)

    def _put_line(self, event: WorkerOutput, line: bytes) -> None:
        key = (event.subject, event.stream, line)
        pending = self._pending.get(key)
        if pending is not None and event.worker in pending.workers:
            self._release_through(key)
            pending = None
        if pending is None:
            pending = self._pending[key] = _Pending([], self.now())
        pending.workers.append(event.worker)
        if len(pending.workers) == event.workers:
            self._release_through(key)

    def _release_through(self, last: tuple[str, str, bytes]) -> None:
        """Writes `last` and everything that any of its workers wrote before it."""
        for key in list(self._pending):
            pending = self._pending.pop(key)
            self._write(key[0], pending.workers, key[1], key[2], pending.since)
            if key == last:
                return

    def flush(self, *, older_than_s: float = 0.0) -> None:
        """Writes pending lines that have waited long enough, and all before them."""
        limit = self.now() - older_than_s
        due = [key for key, pending in self._pending.items() if pending.since <= limit]
        if due:
            self._release_through(due[-1])

    def finish(self) -> None:
        """Writes everything, unfinished lines too."""
        self.flush()
        for (subject, worker, stream), rest in self._partial.items():
            if self.pattern is None or self.pattern.search(rest.decode("utf-8", "replace")):
                self._write(subject, [worker], stream, rest, self.now())
        self._partial.clear()

    def _write(self, subject: str, workers: list[Place], stream: str, block: bytes, at: float) -> None:
        prefix = output_prefix(subject, workers, at if self.stamped else None).encode()
        self.write(stream, prefix + block.replace(b"\n", b"\n" + prefix) + b"\n")


def _transfer_text(event: Transfer) -> str:
    moved = "received" if event.back else "sent"
    return (
        f"{event.subject}: {moved} {sized(event.sent_bytes)} of {sized(event.total_bytes)}, "
        f"{sized(int(event.bytes_per_s))}/s, {event.hosts_done} of {counted(event.hosts, 'worker')} done"
    )


def data_text(event: DataProgress) -> str:
    """The line of a pack that is made or read."""
    return (
        f"{event.subject}: {event.action} {sized(event.done_bytes)} of {sized(event.total_bytes)}, "
        f"{sized(int(event.bytes_per_s))}/s, {event.done_files} of {counted(event.files, 'file')}"
    )


class Renderer:
    """The `EventSink` of a command.

    `unattended`, for passes: what programs write is not shown (it is kept, `logs` prints it), and a stdout or
    stderr that takes nothing more does not get in the way of the work; `close` raises its OSError.
    """

    def __init__(
        self, console: Console, now: Callable[[], float] = time.time, *, unattended: bool = False
    ) -> None:
        self._console = console
        self._unattended = unattended
        self._broken: OSError | None = None
        self._shown: tuple[frozenset[int], frozenset[Place]] | None = None
        console.before_line = lambda: self._set_status("")
        self._now = now
        self._lock = threading.RLock()
        self._live = console.err.isatty() and not (console.quiet or console.json_mode)
        self._status = ""
        self._waiting: Waiting | None = None
        self._warned: Warn | None = None
        self._said_at = 0.0
        self._folder = LineFolder(self._write_output, now)
        self._ticker: threading.Thread | None = None
        self._over = threading.Event()

    def __call__(self, event: object) -> None:
        if isinstance(event, WorkerOutput) and not (
            self._shown is None or is_chosen(event.worker, *self._shown)
        ):
            return
        if self._unattended and (self._broken is not None or isinstance(event, WorkerOutput)):
            return
        try:
            self._draw(event)
        except OSError as error:
            if not self._unattended:
                raise
            self._broken = error

    def show_only(
        self,
        workers: Iterable[int] | None,
        pattern: re.Pattern[str] | None = None,
        *,
        stamped: bool = False,
        processes: frozenset[Place] = frozenset(),
    ) -> None:
        """Of what programs write, shows that of `workers` and of single `processes`; None for all. `pattern`:
        only lines in which it is found; `stamped`: with the time at which they came."""
        self._shown = None if workers is None else (frozenset(workers), processes)
        self._folder.pattern, self._folder.stamped = pattern, stamped

    def _draw(self, event: object) -> None:
        with self._lock:
            if isinstance(event, WorkerOutput):
                self._set_status("")
                self._waiting = None
                self._folder.put(event)
                self._start_ticker()
            elif isinstance(event, Waiting):
                self._show_waiting(event)
                self._start_ticker()
            elif isinstance(event, Transfer):
                self._show_progress(_transfer_text(event))
            elif isinstance(event, DataProgress):
                self._show_progress(data_text(event))
            else:
                self._show_event(event)

    def close(self) -> None:
        """Shows what is still pending and stops drawing."""
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()
        broken, self._broken = self._broken, None
        if broken is not None:
            raise broken
        with self._lock:
            self._folder.finish()
            self._set_status("")

    def _show_event(self, event: object) -> None:
        self._folder.flush()
        self._waiting = None
        self._set_status("")
        if isinstance(event, StepStarted):
            self._console.say(f"{event.subject}: {event.action} ({event.reason})")
        elif isinstance(event, StepDone):
            took = render_seconds(event.seconds)
            self._console.say(f"{event.subject}: {event.action}: {event.detail} (after {took})")
        elif isinstance(event, Note):
            self._console.say(_about(event))
        elif isinstance(event, Warn) and event != self._warned:  # a page asks the cloud again and again
            self._console.warn(_about(event))
            self._warned = event

    def _show_waiting(self, event: Waiting) -> None:
        old = self._waiting
        changed = old is None or (old.subject, old.why) != (event.subject, event.why)
        self._waiting = event
        if self._live:
            if changed:
                self._in_full(event)
            self._draw_waiting()
        elif changed or self._now() - self._said_at >= REPEAT_WAIT_S:
            self._said_at = self._now()
            self._console.say(self._waiting_text(event))

    def _show_progress(self, text: str) -> None:
        self._waiting = None
        if self._live:
            self._set_status(self._console.mark + text)
        elif self._now() - self._said_at >= TRANSFER_LINE_S:
            self._said_at = self._now()
            self._console.say(text)

    def _waiting_text(self, event: Waiting) -> str:
        from tpuctl.model.verdict import render_wait

        wait = render_wait(event.why, coming=event.coming)
        return f"{event.subject}: {wait} ({self._waiting_times(event)})"

    def _waiting_times(self, event: Waiting) -> str:
        """How far it is, since when, how long it usually takes, until when."""
        usual = event.pace.usual_s if event.pace else None
        parts = [event.progress] if event.progress else []
        parts += [f"since {render_clock(event.pace.begun if event.pace else event.since)}"]
        parts += [] if usual is None else [f"usually ready after {render_seconds(usual)}"]
        parts += [f"until {render_clock(event.until)} at most"] if event.until else []
        return ", ".join(parts)

    def _draw_waiting(self) -> None:
        if self._waiting is None:
            return
        now = self._now()
        spinner = "|/-\\"[int(now * 4) % 4]
        self._set_status(f"{self._console.mark}{spinner} {self._fitting(self._waiting, now)}")

    def _live_text(self, event: Waiting, now: float) -> str:
        """How long already, beside how long usually, and for what; short, to fit on a line of 80 columns."""
        elapsed = render_timer(now - (event.pace.begun if event.pace else event.since))
        usual = event.pace.usual_s if event.pace else None
        if usual is not None:
            elapsed += f" (usually {render_timer(usual)})"
        until = f"until {render_clock(event.until)}  " if event.until else ""
        progress = f"  {event.progress}" if event.progress else ""
        return f"{elapsed}{progress}  {until}{event.subject}: {event.why}"

    def _fitting(self, event: Waiting, now: float) -> str:
        """The text of a wait for one line: with short names, and without times to come, if it takes that."""
        room = self._room - len(self._console.mark) - len("| ")
        text = squeeze(self._live_text(event, now), room)
        if cell_len(text) <= room:
            return text
        return squeeze(f"{render_timer(now - event.since)}  {event.subject}: {event.why}", room)

    def _in_full(self, event: Waiting) -> None:
        """A reason that has no room on the status line even then is told once above it."""
        if len(self._console.mark) + len("| ") + cell_len(self._fitting(event, self._now())) > self._room:
            self._console.say(self._waiting_text(event))

    @property
    def _room(self) -> int:
        return terminal_width(self._console.err) - 1

    def _set_status(self, text: str) -> None:
        """Rewrites the one status line of a terminal."""
        if not self._live or (not text and not self._status):
            return
        room, shown = self._room, squeeze(text, self._room)
        shown = shown if cell_len(shown) <= room else cut(shown, room - 1) + "…"
        wiped = f"\r{shown}{' ' * (room - cell_len(shown))}\r"
        self._console.err.write(f"\r\x1b[2K{shown}" if wants_colour(self._console.err) else wiped)
        self._console.err.flush()
        self._status = text

    def _write_output(self, stream: str, block: bytes) -> None:
        """Workers' stdout is data, their stderr is not; bytes go through as they came. With --json there is one
        document on stdout and nothing else anywhere: `tpuctl logs` prints what was written."""
        if self._console.json_mode:
            return
        self._set_status("")
        target = self._console.err if stream == "stderr" else self._console.out
        target.flush()
        raw = getattr(target, "buffer", None)
        if raw is None:
            target.write(block.decode("utf-8", "replace"))
        else:
            raw.write(block)
            raw.flush()

    def _start_ticker(self) -> None:
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, name="render", daemon=True)
            self._ticker.start()

    def _tick(self) -> None:
        while not self._over.wait(FOLD_WINDOW_S / 2):
            with self._lock:
                self._folder.flush(older_than_s=FOLD_WINDOW_S)
                if self._live:
                    self._draw_waiting()


def _about(event: Note | Warn) -> str:
    return f"{event.subject}: {event.text}" if event.subject else event.text
