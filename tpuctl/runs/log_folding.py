"""Lines that several workers wrote alike, shown once.

Most lines are one worker's alone, and go through a block at a time: it is enough to know that no other worker
wrote any of them lately. Where one did, lines are compared one by one until they differ again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import groupby

from msgspec import Struct

from tpuctl.lib.text import Place, sorted_places
from tpuctl.runs.log_lines import LogBlock

FOLD_WINDOW_S = 1.0
"""How far apart lines may be that are taken for the same: hosts look at logs now and then, and have clocks."""
PENDING_MAX = 10_000
"""Lines that wait for others like them, so that memory is bounded where all come at once."""


def fold_blocks(blocks: Iterable[LogBlock], workers: int) -> Iterator[LogBlock]:
    """Lines that several of so many `workers` wrote within `FOLD_WINDOW_S` once, each worker's own in their
    order. Lines without a time stay as they are."""
    if workers < 2:
        yield from blocks
        return
    whole, apart = _Whole(), _Apart(workers)
    for block in blocks:
        if block.at is None:
            yield block
        elif apart.pending:
            yield from apart.put(block, block.at)
            if apart.unlike >= len(apart.pending):  # so that going back and forth costs no more than either
                for each in apart.take():
                    whole.add(each)
        else:
            yield from whole.release(block.at)
            if not whole.is_shared(block):
                whole.add(block)
                yield from whole.release_surplus()
                continue
            for each in whole.queue:
                yield from apart.put(each, each.at or 0.0)
            whole, apart.unlike = _Whole(), 0
            yield from apart.put(block, block.at)
    yield from whole.queue if not apart.pending else apart.take()


class _Written:
    """Lines and who wrote them. Nearly all are one worker's alone: a set tells that, and who it was is worked
    out only for lines that come again."""

    def __init__(self) -> None:
        self._lines: set[str] = set()
        self._blocks: list[LogBlock] = []
        self._writers: dict[str, Place | None] = {}
        """None for several; without those of `_blocks`."""

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, block: LogBlock) -> None:
        self._lines.update(block.texts)
        self._blocks.append(block)

    def is_by_another(self, block: LogBlock) -> bool:
        """Whether a line of this block of one worker is another's, too."""
        if self._lines.isdisjoint(block.texts):
            return False
        for each in self._blocks:
            place = each.workers[0] if len(each.workers) == 1 else None
            self._writers.update(dict.fromkeys(each.texts, place))
        self._blocks.clear()
        [worker] = block.workers
        return any(self._writers.get(text, worker) != worker for text in block.texts)


class _Whole:
    """Blocks that wait, none of which has a line that another worker wrote, too."""

    def __init__(self) -> None:
        self.queue: deque[LogBlock] = deque()
        self._lines = 0
        self._lately, self._before = _Written(), _Written()
        """Since less than `FOLD_WINDOW_S`, and in the one before. Where more lines come in that time than may
        wait, those that wait are enough."""
        self._since = 0.0

    def is_shared(self, block: LogBlock) -> bool:
        """Whether another worker may have written one of its lines within the window."""
        return self._lately.is_by_another(block) or self._before.is_by_another(block)

    def add(self, block: LogBlock) -> None:
        self.queue.append(block)
        self._lines += len(block.texts)
        if len(self._lately) > PENDING_MAX:
            self._forget_before(block.at or 0.0)
        self._lately.add(block)

    def release(self, at: float) -> list[LogBlock]:
        """What need not wait any longer at that time."""
        if at - self._since > FOLD_WINDOW_S:
            self._forget_before(at)
        queue, ready = self.queue, list[LogBlock]()
        while queue and at - (queue[0].at or 0.0) > FOLD_WINDOW_S:
            ready.append(queue.popleft())
            self._lines -= len(ready[-1].texts)
        return ready

    def _forget_before(self, at: float) -> None:
        self._before, self._lately, self._since = self._lately, _Written(), at

    def release_surplus(self) -> Iterator[LogBlock]:
        """What there is no room for."""
        while self._lines > PENDING_MAX:
            first, surplus = self.queue.popleft(), self._lines - PENDING_MAX
            kept = first.texts[surplus:]
            if kept:
                self.queue.appendleft(LogBlock(first.at, first.workers, first.stream, kept))
            self._lines -= len(first.texts) - len(kept)
            yield LogBlock(first.at, first.workers, first.stream, first.texts[:surplus])


class _Line(Struct):
    """A line that some workers wrote and others may still be found to have written; `position` is its own."""

    at: float
    workers: list[Place]
    stream: str
    text: str
    position: int


class _Apart:
    """Lines that wait, one by one."""

    def __init__(self, workers: int) -> None:
        self.pending: OrderedDict[tuple[str, str], _Line] = OrderedDict()
        self.unlike = 0
        """How many lines no other worker had written, since the last that one had."""
        self._workers = workers
        self._newest: dict[Place, int] = {}
        self._position = 0

    def take(self) -> Iterator[LogBlock]:
        """Everything that waits."""
        found = list(self.pending.values())
        self.pending.clear()
        return _joined(found)

    def put(self, block: LogBlock, at: float) -> Iterator[LogBlock]:
        """Takes a block; what need not wait any longer comes back."""
        pending, stream, ready = self.pending, block.stream, list[_Line]()
        while pending and at - pending[next(iter(pending))].at > FOLD_WINDOW_S:
            ready.append(pending.popitem(last=False)[1])
        self.unlike += len(block.texts)
        for text in block.texts:
            if len(pending) >= PENDING_MAX:
                ready.append(pending.popitem(last=False)[1])
            key = (stream, text)
            found = pending.get(key)
            self._position += 1
            if found is not None and not self._joins(found, block.workers):
                self._release_through(key, ready)
                found = None
            if found is None:
                pending[key] = _Line(at, list(block.workers), stream, text, self._position)
                position = self._position
            else:
                position = self._join(found, key, block.workers, ready)
            for worker in block.workers:
                self._newest[worker] = position
        return _joined(ready)

    def _joins(self, found: _Line, workers: Iterable[Place]) -> bool:
        """Whether the line of a worker may be shown with that of others and every one's order stays: it wrote
        nothing since, or they did not."""
        newest = self._newest
        if any(worker in found.workers for worker in workers):
            return False
        self.unlike = 0
        return all(newest.get(worker, 0) < found.position for worker in workers) or all(
            newest[each] == found.position for each in found.workers
        )

    def _join(self, found: _Line, key: tuple[str, str], workers: Iterable[Place], ready: list[_Line]) -> int:
        """The position of the line that these wrote, too."""
        if any(
            self._newest.get(worker, 0) > found.position for worker in workers
        ):  # behind what it wrote before
            self.pending.move_to_end(key)
            found.position = self._position
            self._newest.update(dict.fromkeys(found.workers, self._position))
        found.workers.extend(workers)
        if len(found.workers) == self._workers:
            self._release_through(key, ready)
        return found.position

    def _release_through(self, last: tuple[str, str], ready: list[_Line]) -> None:
        while last in self.pending:
            ready.append(self.pending.popitem(last=False)[1])


def _joined(lines: Iterable[_Line]) -> Iterator[LogBlock]:
    """Lines as blocks, as many in one as there can be."""
    for (at, workers, stream), group in groupby(lines, key=lambda each: (each.at, each.workers, each.stream)):
        places = tuple(workers) if len(workers) == 1 else tuple(sorted_places(workers))
        yield LogBlock(at, places, stream, [each.text for each in group])
