"""The output of an attempt as it is kept on this machine, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tpuctl.engine.services import Services
from tpuctl.model.processes import split_stream, times_of
from tpuctl.runs.log_lines import LogLine, LogTimes, merge_lines, parse_times, timed_lines

_PIECE = 1 << 20


def kept_lines(
    services: Services,
    run_id: str,
    attempt: int,
    logs: Iterable[tuple[int, str]],
    since: float | None = None,
) -> Iterator[LogLine]:
    """What stands in these logs, each by its worker and stream, by time; with `since` (epoch seconds) only what
    was written after that, and what has no time."""
    return merge_lines([_lines_of(services, run_id, attempt, worker, name, since) for worker, name in logs])


def _lines_of(
    services: Services, run_id: str, attempt: int, worker: int, stream: str, since: float | None
) -> Iterator[LogLine]:
    path = Path(services.logs.path(run_id, attempt, worker, stream))
    index = Path(services.logs.path(run_id, attempt, worker, times_of(stream)))
    times = parse_times(index.read_bytes()) if index.exists() else LogTimes()
    # A line that goes on there began before it, and is told by its time.
    begin = 0 if since is None else max(0, times.begin(since) - 1)
    place, kind = split_stream(worker, stream)
    for line in timed_lines(_pieces(path, begin), times, place, kind, begin):
        if since is None or line.at is None or line.at >= since:
            yield line


def _pieces(path: Path, begin: int) -> Iterator[bytes]:
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(begin)
        while piece := file.read(_PIECE):
            yield piece
