"""What workers wrote, in the order of time: lines with their times, merged, and those alike shown once.

Times are those at which a host saw that a line was there, to a fifth of a second at best, by its own clock.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from tpuctl.lib.text import Place, sorted_places

FOLD_WINDOW_S = 1.0
"""How far apart lines may be that are taken for the same: hosts look at logs now and then, and have clocks."""
PENDING_MAX = 10_000
"""Lines that wait for others like them, so that memory is bounded where all come at once."""
LINE_MAX = 1 << 20
"""A line without an end is taken for several."""
_TIME = re.compile(rb"^(\d{15}) (\d{13})$", re.MULTILINE)


class LogTimes(Struct, frozen=True):
    """The index of a log: what is before an offset had been written at the time (epoch seconds) beside it."""

    offsets: Sequence[int] = ()
    times: Sequence[float] = ()

    def at(self, offset: int) -> float | None:
        """When what begins there was there; None where nothing is known. What came last has the last time."""
        if not self.times:
            return None
        return self.times[min(bisect_right(self.offsets, offset), len(self.times) - 1)]

    def begin(self, since: float) -> int:
        """From where on the log may have been written since then."""
        count = bisect_left(self.times, since)
        return self.offsets[count - 1] if count else 0


class LogLine(Struct, frozen=True):
    """One line, of one worker or process, or of several that wrote it alike. `at` is None where nobody noted
    it."""

    at: float | None
    workers: tuple[Place, ...]
    stream: str
    text: str


def parse_times(data: bytes) -> LogTimes:
    """An index as hosts write it. A line that was cut short, or that goes back, is passed over."""
    offsets: list[int] = []
    times: list[float] = []
    for match in _TIME.finditer(data):
        offset, at = int(match[1]), int(match[2]) / 1000
        if not offsets or offset > offsets[-1]:
            offsets.append(offset)
            times.append(max(at, times[-1]) if times else at)
    return LogTimes(offsets, times)


def timed_lines(
    pieces: Iterable[bytes], times: LogTimes, worker: Place, stream: str, begin: int = 0
) -> Iterator[LogLine]:
    """The lines of a log whose content from the offset `begin` on comes in `pieces`. What is missing in it are
    zeros."""
    offset, rest = begin, b""
    for piece in pieces:
        if not piece.strip(b"\0"):
            offset += len(rest) + len(piece)
            rest = b""
            continue
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield _line(line, times.at(offset), worker, stream)
            offset += len(line) + 1
        if len(rest) >= LINE_MAX:
            yield _line(rest, times.at(offset), worker, stream)
            offset, rest = offset + len(rest), b""
    if rest:
        yield _line(rest, times.at(offset), worker, stream)


def _line(line: bytes, at: float | None, worker: Place, stream: str) -> LogLine:
    return LogLine(at, (worker,), stream, line.lstrip(b"\0").decode("utf-8", "replace"))


def merge_lines(logs: Sequence[Iterable[LogLine]]) -> Iterator[LogLine]:
    """Lines of several logs by time. Logs without times come first, one after the other."""
    return heapq.merge(*logs, key=lambda line: line.at or 0.0)


class _Pending(Struct):
    """A line that some workers wrote and others may still be found to have written; `position` is its own."""

    line: LogLine
    workers: list[Place]
    position: int


def fold_lines(lines: Iterable[LogLine], workers: int) -> Iterator[LogLine]:
    """Lines that several of so many `workers` wrote within `FOLD_WINDOW_S` once, each worker's own in their
    order. Lines without a time stay as they are."""
    if workers < 2:
        yield from lines
        return
    pending: OrderedDict[tuple[str, str], _Pending] = OrderedDict()
    newest: dict[Place, int] = {}
    position = 0
    looked_at = None
    for line in lines:
        if line.at is None:
            yield line
            continue
        while pending and (line.at != looked_at or len(pending) >= PENDING_MAX):
            first = pending[next(iter(pending))]
            if len(pending) < PENDING_MAX and line.at - (first.line.at or 0.0) <= FOLD_WINDOW_S:
                break
            yield _released(pending.popitem(last=False)[1])
        looked_at = line.at
        key, [worker] = (line.stream, line.text), line.workers
        position += 1
        found = pending.get(key)
        if found is not None and not _joins(found, worker, newest):
            yield from _release_through(pending, key)
            found = None
        if found is None:
            pending[key] = _Pending(line, [worker], position)
        else:
            if newest.get(worker, 0) > found.position:  # behind what this worker wrote before it
                pending.move_to_end(key)
                found.position = position
                newest.update(dict.fromkeys(found.workers, position))
            found.workers.append(worker)
            if len(found.workers) == workers:
                yield from _release_through(pending, key)
        newest[worker] = found.position if found is not None else position
    for each in pending.values():
        yield _released(each)


def _joins(found: _Pending, worker: Place, newest: dict[Place, int]) -> bool:
    """Whether the line of a worker may be shown with that of others and every one's order stays: it wrote
    nothing since, or they did not."""
    if worker in found.workers:
        return False
    return newest.get(worker, 0) < found.position or all(
        newest[each] == found.position for each in found.workers
    )


def _release_through(
    pending: OrderedDict[tuple[str, str], _Pending], last: tuple[str, str]
) -> Iterator[LogLine]:
    while last in pending:
        yield _released(pending.popitem(last=False)[1])


def _released(pending: _Pending) -> LogLine:
    line = pending.line
    if len(pending.workers) == 1:
        return line
    return LogLine(line.at, tuple(sorted_places(pending.workers)), line.stream, line.text)
