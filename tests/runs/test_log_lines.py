"""Lines of workers' logs by time, and those alike shown once."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from tpuctl.runs.log_folding import PENDING_MAX, fold_blocks
from tpuctl.runs.log_lines import LogBlock, LogTimes, merge_blocks, parse_times, timed_blocks

INDEX = b"000000000000004 0000000001000\n000000000000009 0000000002500\n"


@pytest.mark.parametrize(
    ("data", "times"),
    [
        (b"", LogTimes([], [])),
        (INDEX, LogTimes([4, 9], [1.0, 2.5])),
        (INDEX[:-5], LogTimes([4], [1.0])),
        (INDEX[:12] + INDEX, LogTimes([9], [2.5])),
        (INDEX + INDEX, LogTimes([4, 9], [1.0, 2.5])),
        (INDEX + b"000000000000012 0000000000400\n", LogTimes([4, 9, 12], [1.0, 2.5, 2.5])),
        (b"no index\n", LogTimes([], [])),
    ],
)
def test_an_index_is_read_as_far_as_it_is_whole(data: bytes, times: LogTimes) -> None:
    assert parse_times(data) == times


def lines(*pieces: bytes, times: LogTimes | None = None, begin: int = 0) -> list[Any]:
    found = timed_blocks(pieces, parse_times(INDEX) if times is None else times, 3, "stdout", begin)
    return [(block.at, text) for block in found for text in block.texts]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ((b"one\ntwo\n",), [(1.0, "one"), (2.5, "two")]),
        ((b"on", b"e\ntw", b"o"), [(1.0, "one"), (2.5, "two")]),
        ((b"one\ntwo\nlate\n",), [(1.0, "one"), (2.5, "two"), (2.5, "late")]),
        ((b"on\xff\n\n",), [(1.0, "on\N{REPLACEMENT CHARACTER}"), (2.5, "")]),
        ((), []),
        ((b"\0" * 6, b"\0\nx\n"), [(2.5, ""), (2.5, "x")]),
        ((b"on\0", b"\0" * 3, b"\0o\n"), [(1.0, "on"), (2.5, "o")]),
    ],
)
def test_a_line_has_the_time_at_which_it_began_to_be_there(pieces: Any, shown: Any) -> None:
    assert lines(*pieces) == shown


def test_a_log_of_an_older_tpuctl_has_lines_without_times() -> None:
    assert lines(b"one\ntwo\n", times=LogTimes()) == [(None, "one"), (None, "two")]


def test_a_line_without_an_end_takes_no_more_memory_than_it_may() -> None:
    found = lines(*[b"x" * 700_000] * 4)
    assert [len(text) for _, text in found] == [1_400_000, 1_400_000]


@pytest.mark.parametrize(("since", "begin"), [(0.5, 0), (1.0, 0), (1.1, 4), (2.5, 4), (9.0, 9)])
def test_reading_since_a_moment_begins_where_that_was(since: float, begin: int) -> None:
    assert parse_times(INDEX).begin(since) == begin


def written(*each: tuple[float | None, int, str]) -> list[LogBlock]:
    return [LogBlock(at, (worker,), "stdout", [text]) for at, worker, text in each]


def folded(workers: int, *each: tuple[float | None, int, str]) -> list[str]:
    found = fold_blocks(written(*each), workers)
    return [f"{','.join(map(str, block.workers))} {text}" for block in found for text in block.texts]


@pytest.mark.parametrize(
    ("each", "shown"),
    [
        ([(1, 0, "a"), (1, 1, "a")], ["0,1 a"]),
        ([(1, 1, "a"), (1.5, 0, "a")], ["0,1 a"]),
        ([(1, 0, "a"), (2.1, 1, "a")], ["0 a", "1 a"]),
        ([(1, 0, "a"), (1, 0, "a"), (1, 1, "a")], ["0 a", "0,1 a"]),
        ([(1, 0, "a"), (1, 0, "b"), (1, 1, "a"), (1, 1, "b")], ["0,1 a", "0,1 b"]),
        ([(1, 0, "r0"), (1, 0, "a"), (1, 1, "r1"), (1, 1, "a")], ["0 r0", "1 r1", "0,1 a"]),
        ([(1, 0, "a"), (1, 0, "b"), (1, 1, "b"), (1, 1, "a")], ["0 a", "0,1 b", "1 a"]),
        ([(None, 0, "a"), (None, 1, "a")], ["0 a", "1 a"]),
    ],
)
def test_what_workers_wrote_alike_stands_once_and_each_keeps_its_order(each: Any, shown: list[str]) -> None:
    assert folded(2, *each) == shown


def test_a_line_that_not_all_wrote_waits_no_longer_than_the_window() -> None:
    each = [(1.0, 0, "a"), (1.2, 2, "a"), (2.3, 1, "b"), (2.4, 0, "c")]
    assert folded(3, *each) == ["0,2 a", "1 b", "0 c"]


def test_lines_of_several_logs_come_by_time_and_those_without_first() -> None:
    logs = [written((1, 0, "a"), (3, 0, "c")), written((2, 1, "b"), (4, 1, "d")), written((None, 2, "x"))]
    assert [block.texts[0] for block in merge_blocks(logs)] == ["x", "a", "b", "c", "d"]


def flat(blocks: Iterable[LogBlock]) -> list[Any]:
    return [(block.at, block.workers, text) for block in blocks for text in block.texts]


@pytest.mark.parametrize("seed", range(40))
def test_blocks_of_any_size_come_out_as_single_lines_do(seed: int) -> None:
    """Blocks that no other worker wrote are passed on whole; where that changes is decided anew for each."""
    random = Random(seed)
    kinds, workers = random.choice([3, 30, 3000]), random.choice([2, 3])
    blocks, at = [], 100.0
    for _ in range(300):
        at += random.choice([0.0, 0.05, 0.4])
        texts = [str(random.randrange(kinds)) for _ in range(random.choice([1, 2, 40]))]
        blocks.append(LogBlock(at, (random.randrange(workers),), "stdout", texts))
    singly = [LogBlock(each.at, each.workers, each.stream, [text]) for each in blocks for text in each.texts]
    assert flat(fold_blocks(blocks, workers)) == flat(fold_blocks(singly, workers))


def test_many_lines_at_once_do_not_all_wait() -> None:
    blocks = [LogBlock(1.0, (0,), "stdout", [f"{n}.{line}" for line in range(100)]) for n in range(500)]
    taken = iter(blocks)
    found = fold_blocks(taken, 2)
    assert next(found).texts == blocks[0].texts
    assert len(list(taken)) == len(blocks) - PENDING_MAX // 100 - 1


def test_many_lines_of_one_time_take_no_more_memory_than_those_that_wait() -> None:
    """Where a host could write no index, all of a log has its last time."""

    def log(worker: int) -> Iterable[LogBlock]:
        for n in range(40):
            yield LogBlock(1.0, (worker,), "stdout", [f"{worker}.{n}.{line}" for line in range(2000)])

    tracemalloc.start()
    try:
        count = sum(len(block.texts) for block in fold_blocks(merge_blocks([log(0), log(1)]), 2))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 160_000
    assert peak < 100 * 4 * PENDING_MAX, "about a hundred bytes of each line"


@pytest.mark.slow
def test_many_lines_at_once_take_time_in_proportion() -> None:
    """A log that is written faster than its host looks: all lines have the same few times."""
    count, workers = 30_000, 4
    each = [(worker / 10, worker, str(n % 20_000)) for worker in range(workers) for n in range(count)]
    began = time.process_time()
    found = list(fold_blocks(written(*each), workers))
    assert sum(len(block.workers) * len(block.texts) for block in found) == count * workers
    assert time.process_time() - began < 20.0
