"""Logs of runs by pieces, so that one of any size can be scrolled and searched."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.errors import UsageError
from tpuctl.lib.text import fold_workers, sized
from tpuctl.model.processes import split_stream
from tpuctl.model.shipped_files import load_secret_patterns
from tpuctl.state.repository import get_run
from tpuctl.views.report_page import plain

PART_MAX = 256 << 10
"""Bytes of one piece; a line that is longer is cut."""
FIND_MAX = 16 << 20
"""Bytes that one request looks through."""


class LogChoice(Struct, frozen=True):
    """A log that is on this machine: `value` names it in requests."""

    value: str
    said: str
    size: int
    attempt: int
    worker: int
    stream: str


class LogFilter(Struct, frozen=True):
    """By what logs are chosen: a field of `LogChoice`, and its values with their words."""

    field: str
    label: str
    values: tuple[tuple[object, str], ...]


class LogPiece(Struct, frozen=True):
    """Whole lines of a log, from the byte `begin` to before `end`."""

    size: int
    begin: int
    end: int
    text: str


class Hit(Struct, frozen=True):
    """Where the line with a text begins, None where it is not; and from where to look on, None at the end."""

    at: int | None
    next: int | None


def list_logs(services: Services, run_id: str) -> list[LogChoice]:
    """The logs of a run that are here, the newest of the first worker last. Raises NotFoundError."""
    run = get_run(services, run_id).record
    found = []
    for number in range(1, (run.attempt.number if run.attempt else 0) + 1):
        streams = run.attempt.streams if run.attempt else ()
        for worker in reversed(run.attempt.workers if run.attempt else ()):
            for stream in reversed(streams):
                size = services.logs.size(run_id, number, worker, stream)
                if size:
                    place, kind = split_stream(worker, stream)
                    said = f"attempt {number}, worker {fold_workers([place])}, {kind} ({sized(size)})"
                    value = f"{number}/{worker}/{stream}"
                    found.append(LogChoice(value, said, size, number, worker, stream))
    return found


def filters_of(logs: Sequence[LogChoice]) -> list[LogFilter]:
    """Those that tell logs of a run apart: attempt, worker, and stream with its process."""
    known: tuple[tuple[str, str, dict[object, str]], ...] = (
        ("attempt", "Attempt", {number: str(number) for number in sorted({each.attempt for each in logs})}),
        ("worker", "Worker", {worker: str(worker) for worker in sorted({each.worker for each in logs})}),
        (
            "stream",
            "Output",
            {stream: _stream_words(stream) for stream in sorted({each.stream for each in logs})},
        ),
    )
    return [LogFilter(field, label, tuple(values.items())) for field, label, values in known if len(values) > 1]


def _stream_words(stream: str) -> str:
    place, kind = split_stream(0, stream)
    return kind if isinstance(place, int) else f"{kind} of process {place[1]}"


def read_part(services: Services, run_id: str, log: str, offset: int, limit: int) -> LogPiece:
    """Whole lines from `offset` on; beyond the end the last ones. Raises UsageError for an unknown log."""
    name = _parse(services, run_id, log)
    size, limit = services.logs.size(run_id, *name), max(1, min(limit, PART_MAX))
    begin = max(0, min(offset, size - limit))
    before = 1 if begin else 0  # a line that begins just here is whole
    data = services.logs.read(run_id, *name, begin - before, limit + before)
    if before and b"\n" in data:
        cut = data.index(b"\n") + 1
        begin, data = begin - before + cut, data[cut:]
    if begin + len(data) < size and b"\n" in data:
        data = data[: data.rindex(b"\n") + 1]
    text = load_secret_patterns().redact(plain(data.decode("utf-8", "replace")))
    return LogPiece(size, begin, begin + len(data), text)


def find_in_log(services: Services, run_id: str, log: str, text: str, offset: int) -> Hit:
    """The next line with `text`, whatever the case of its ASCII letters, from `offset` on, and what comes after
    it. Raises UsageError."""
    name, wanted = _parse(services, run_id, log), text.encode().lower()
    if not wanted:
        raise UsageError("nothing is looked for")
    at, last = offset, offset + FIND_MAX
    while at < last:
        data = services.logs.read(run_id, *name, at, PART_MAX + len(wanted))
        found = data.lower().find(wanted)
        if found >= 0:
            line = at + data.rfind(b"\n", 0, found) + 1
            rest = data.find(b"\n", found)
            return Hit(line, at + (found + len(wanted) if rest < 0 else rest + 1))
        if len(data) < PART_MAX + len(wanted):
            return Hit(None, None)
        at += PART_MAX
    return Hit(None, at)


def _parse(services: Services, run_id: str, log: str) -> tuple[int, int, str]:
    """Attempt, worker and stream. Only what the record of the run names becomes a part of a path."""
    run = get_run(services, run_id).record
    attempt, _, rest = log.partition("/")
    worker, _, stream = rest.partition("/")
    known = run.attempt is not None and (
        attempt in map(str, range(1, run.attempt.number + 1))
        and worker in map(str, run.attempt.workers)
        and stream in run.attempt.streams
    )
    if not known:
        raise UsageError(f"run {run_id} has no log {log!r}")
    return int(attempt), int(worker), stream
