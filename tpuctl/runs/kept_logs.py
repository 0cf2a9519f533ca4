"""The output of an attempt as it is kept on this machine, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tpuctl.engine.services import Services
from tpuctl.hosts.protocol import LOG_STREAMS, times_of
from tpuctl.runs.log_lines import LogLine, LogTimes, merge_lines, parse_times, timed_lines

_PIECE = 1 << 20


def kept_lines(
    services: Services, run_id: str, attempt: int, workers: Sequence[int], since: float | None = None
) -> Iterator[LogLine]:
    """What these workers wrote, by time; with `since` (epoch seconds) only what was written after that, and
    what has no time."""
    logs = [
        _lines_of(services, run_id, attempt, worker, stream, since)
        for worker in workers
        for stream in LOG_STREAMS
    ]
    return merge_lines(logs)


def _lines_of(
    services: Services, run_id: str, attempt: int, worker: int, stream: str, since: float | None
) -> Iterator[LogLine]:
    path = Path(services.logs.path(run_id, attempt, worker, stream))
    index = Path(services.logs.path(run_id, attempt, worker, times_of(stream)))
    times = parse_times(index.read_bytes()) if index.exists() else LogTimes()
    # A line that goes on there began before it, and is told by its time.
    begin = 0 if since is None else max(0, times.begin(since) - 1)
    for line in timed_lines(_pieces(path, begin), times, worker, stream, begin):
        if since is None or line.at is None or line.at >= since:
            yield line


def _pieces(path: Path, begin: int) -> Iterator[bytes]:
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(begin)
        while piece := file.read(_PIECE):
            yield piece
