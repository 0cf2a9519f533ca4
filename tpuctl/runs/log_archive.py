"""Output of runs as it is kept: on this machine, and in a store that machines share, so that whoever fetched
it, all can read it.

Each round of a collection is a segment: a blob with what was new of all workers. One document for each machine
and attempt names its segments and says how far they reach, so that what was collected is there whole or not at
all, and repeats change nothing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from tpuctl.engine.services import Services
from tpuctl.errors import StaleRecordError
from tpuctl.lib.codec import parse_json
from tpuctl.model.attempts import Attempt
from tpuctl.model.processes import split_stream, times_of
from tpuctl.model.records import RunRecord
from tpuctl.runs.log_lines import LogBlock, LogTimes, merge_blocks, parse_times, timed_blocks
from tpuctl.state.repository import Repository, Versioned

SEGMENT_BYTES = 16 << 20
"""Of logs in one blob, before it is compressed: what is held in memory."""


_PIECE = 1 << 20


class ArchivedLogs(Struct, frozen=True):
    """What one machine collected of an attempt: blobs, and how far they reach in each log."""

    segments: tuple[str, ...] = ()
    ends: Mapping[str, int] = field(default_factory=dict)


ARCHIVES = Repository(ArchivedLogs, "logs")


class LogPart(Struct, frozen=True):
    """A piece of one log: `name` is that of a stream, or of its index."""

    worker: int
    name: str
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


def render_segment(parts: Sequence[LogPart]) -> bytes:
    """A line of JSON that says what follows, then the pieces one after the other; compressed by zlib."""
    head = [[part.worker, part.name, part.offset, len(part.data)] for part in parts]
    content = b"".join([json.dumps(head).encode(), b"\n", *(part.data for part in parts)])
    return zlib.compress(content, 1)


def parse_segment(content: bytes) -> list[LogPart]:
    """See `render_segment`."""
    head, _, data = zlib.decompress(content).partition(b"\n")
    parts, begin = [], 0
    for worker, name, offset, size in parse_json(head):
        parts.append(LogPart(worker, name, offset, data[begin : begin + size]))
        begin += size
    return parts


def archive_logs(services: Services, run: RunRecord, attempt: Attempt) -> None:
    """Puts what this machine has of the logs of `attempt` into a store that is shared, as far as it is new."""
    if not services.store.shared:
        return
    name = f"{_prefix(run.id, attempt.number)}{services.machine}"
    stored = ARCHIVES.find(services, name) or Versioned(ArchivedLogs(), 0)
    while parts := _new_parts(services, run.id, attempt, stored.record.ends):
        blob = services.store.put_blob(render_segment(parts))
        ends = {**stored.record.ends, **{_name(part): part.end for part in parts}}
        archived = ArchivedLogs((*stored.record.segments, blob), ends)
        try:
            stored = ARCHIVES.put(services, name, archived, stored.generation)
        except StaleRecordError:
            return  # another process of this machine does it


def restore_logs(services: Services, run_id: str, number: int) -> None:
    """Brings what other machines collected of an attempt to this one, as far as it is not here."""
    if not services.store.shared:
        return
    for archived in ARCHIVES.list(services, _prefix(run_id, number)):
        here = {}
        for name in archived.ends:
            worker, _, stream = name.partition(".")
            here[name] = services.logs.size(run_id, number, int(worker), stream)
        lacking = {name for name, end in archived.ends.items() if end > here[name]}
        needed: list[str] = []
        for blob in reversed(archived.segments):
            if not lacking:
                break
            needed.insert(0, blob)
            for part in parse_segment(services.store.get_blob(blob)):
                if part.offset <= here.get(_name(part), 0):
                    lacking.discard(_name(part))
        for blob in needed:  # in order: a size says that what is before it is here
            for part in parse_segment(services.store.get_blob(blob)):
                if part.end > services.logs.size(run_id, number, part.worker, part.name):
                    services.logs.write(run_id, number, part.worker, part.name, part.offset, part.data)


def _new_parts(services: Services, run_id: str, attempt: Attempt, ends: Mapping[str, int]) -> list[LogPart]:
    parts, room = [], SEGMENT_BYTES
    for worker in attempt.workers:
        for name in (*attempt.streams, *attempt.beside_streams):
            offset = ends.get(f"{worker}.{name}", 0)
            data = services.logs.read(run_id, attempt.number, worker, name, offset, room) if room else b""
            if data:
                parts.append(LogPart(worker, name, offset, data))
                room -= len(data)
    return parts


def _prefix(run_id: str, number: int) -> str:
    return f"{run_id}/{number:05d}/"


def _name(part: LogPart) -> str:
    return f"{part.worker}.{part.name}"


def kept_blocks(
    services: Services,
    run_id: str,
    attempt: int,
    logs: Iterable[tuple[int, str]],
    since: float | None = None,
) -> Iterator[LogBlock]:
    """What stands in these logs, each by its worker and stream, by time; with `since` (epoch seconds) only what
    was written after that, and what has no time."""
    return merge_blocks([_blocks_of(services, run_id, attempt, worker, name, since) for worker, name in logs])


def _blocks_of(
    services: Services, run_id: str, attempt: int, worker: int, stream: str, since: float | None
) -> Iterator[LogBlock]:
    path = Path(services.logs.path(run_id, attempt, worker, stream))
    index = Path(services.logs.path(run_id, attempt, worker, times_of(stream)))
    times = parse_times(index.read_bytes()) if index.exists() else LogTimes()
    # A line that goes on there began before it, and is told by its time.
    begin = 0 if since is None else max(0, times.begin(since) - 1)
    place, kind = split_stream(worker, stream)
    for block in timed_blocks(_pieces(path, begin), times, place, kind, begin):
        if since is None or block.at is None or block.at >= since:
            yield block


def _pieces(path: Path, begin: int) -> Iterator[bytes]:
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(begin)
        while piece := file.read(_PIECE):
            yield piece
