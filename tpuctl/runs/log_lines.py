"""What workers wrote, in the order of time: lines with their times, merged.

Times are those at which a host saw that a line was there, to a fifth of a second at best, by its own clock.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from tpuctl.lib.text import Place

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


class LogBlock(Struct, frozen=True):
    """Lines that follow each other in one log and came at the same time, of one worker or process, or of
    several that wrote them alike. `at` is None where nobody noted it.

    A log has millions of lines: whatever is done for each of them takes longer than reading them.
    """

    at: float | None
    workers: tuple[Place, ...]
    stream: str
    texts: Sequence[str]


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


def timed_blocks(
    pieces: Iterable[bytes], times: LogTimes, worker: Place, stream: str, begin: int = 0
) -> Iterator[LogBlock]:
    """The lines of a log whose content from the offset `begin` on comes in `pieces`. What is missing in it are
    zeros."""
    offset, rest = begin, b""
    for piece in pieces:
        if not piece.strip(b"\0"):
            yield from _blocks(rest.rstrip(b"\0"), offset, times, worker, stream)  # the rest of it is missing
            offset += len(rest) + len(piece)
            rest = b""
            continue
        data = rest + piece
        end = data.rfind(b"\n") + 1
        yield from _blocks(data[:end], offset, times, worker, stream)
        offset, rest = offset + end, data[end:]
        if len(rest) >= LINE_MAX:
            yield from _blocks(rest, offset, times, worker, stream)
            offset, rest = offset + len(rest), b""
    yield from _blocks(rest, offset, times, worker, stream)


def _blocks(data: bytes, offset: int, times: LogTimes, worker: Place, stream: str) -> Iterator[LogBlock]:
    """Whole lines, cut where those begin that came later."""
    begin, last, workers = 0, len(times.times) - 1, (worker,)
    while begin < len(data):
        entry = bisect_right(times.offsets, offset + begin)
        later = data.find(b"\n", times.offsets[entry] - offset - 1) + 1 if entry < last else 0
        end = later or len(data)
        texts = data[begin:end].decode("utf-8", "replace").removesuffix("\n").split("\n")
        if data.find(0, begin, end) >= 0:
            texts = [text.lstrip("\0") for text in texts]
        yield LogBlock(times.times[min(entry, last)] if last >= 0 else None, workers, stream, texts)
        begin = end


def merge_blocks(logs: Sequence[Iterable[LogBlock]]) -> Iterator[LogBlock]:
    """Lines of several logs by time. Logs without times come first, one after the other."""
    return heapq.merge(*logs, key=lambda block: block.at or 0.0)


def grep_blocks(blocks: Iterable[LogBlock], pattern: re.Pattern[str]) -> Iterator[LogBlock]:
    """Only the lines in which `pattern` is found."""
    search = pattern.search
    for block in blocks:
        if texts := [text for text in block.texts if search(text)]:
            yield LogBlock(block.at, block.workers, block.stream, texts)
