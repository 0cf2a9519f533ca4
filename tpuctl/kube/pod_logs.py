"""Output of pods, kept on this machine as that of workers on slices is: `logs`, `report` and `status` read it.

Kubernetes gives lines with their times, both streams in one. What was fetched is remembered beside the log as
an offset, the newest time of a line and how many lines are of that second, so that a repeat after a crash
writes the same bytes to the same place. Two streams have two writers: a line may be older than the one before.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from msgspec import Struct

from tpuctl.engine.events import Warn, WorkerOutput
from tpuctl.engine.services import Services
from tpuctl.errors import DeniedError, InvalidRequestError, TransientError
from tpuctl.hosts.protocol import WorkerState
from tpuctl.kube.client import Cluster
from tpuctl.kube.observe import ClusterRunObservation, PodSeen
from tpuctl.lib.time import parse_timestamp
from tpuctl.model.clusters import ClusterRun
from tpuctl.model.processes import place_of, stream_of, times_of
from tpuctl.model.records import RunRecord

_STREAM = "stdout"
_CURSOR_BYTES = 200
"""More than a line of a cursor has."""
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")
"""A time of RFC 3339: its whole seconds, their fraction, and the offset."""
LOG_PIECE = 4 << 20
"""Bytes of a pod's log that are fetched at once."""
_UNREAD_MAX = 2
"""So many logs that cannot be read are enough for one look: each may take the whole time of a request."""


class _Cursor(Struct, frozen=True):
    """Up to where a log is here: its `offset`, the newest time, and how many `lines` are of that second."""

    offset: int = 0
    last: str = ""
    lines: int = 0


class _Log(Struct, frozen=True):
    """The log of one container: which worker of which attempt it is, and under which name it is kept."""

    run: RunRecord
    attempt: int
    seen: PodSeen
    container: str
    process: int | None

    @property
    def stream(self) -> str:
        return stream_of(self.process, _STREAM)

    @property
    def cursor(self) -> str:
        return f"{self.stream}-cursor"


def fetch_logs(
    services: Services, cluster: Cluster, run: RunRecord, here: ClusterRun, seen: ClusterRunObservation
) -> None:
    """Brings what pods wrote since the last look, and tells whoever watches. What cannot be read, such as that
    of a node that is gone, is told once and comes last from then on; it holds up nothing."""
    if run.attempt is None:
        return
    several, unread = len(here.containers) > 1, 0
    begun = (pod for pod in seen.pods if pod.status.state is not WorkerState.ABSENT)
    for pod in sorted(begun, key=lambda each: each.pod in cluster.unread):
        try:
            for number, container in enumerate(here.containers):
                log = _Log(run, run.attempt.number, pod, container, number if several else None)
                while _fetch(services, cluster, log):
                    continue
            cluster.unread.discard(pod.pod)
        except _UnreadError as error:
            if pod.pod not in cluster.unread:
                services.emit(Warn(run.id, f"output of worker {pod.status.worker} cannot be read: {error}"))
            cluster.unread.add(pod.pod)
            unread += 1
            if unread == _UNREAD_MAX:
                return


class _UnreadError(Exception):
    """A cluster does not give a log now."""


def _fetch(services: Services, cluster: Cluster, log: _Log) -> bool:
    """The next piece of one log; whether there is more."""
    worker = log.seen.status.worker
    cursor = _cursor(services, log)
    offset = cursor.offset
    cut, lines = _read(cluster, log, cursor)
    if not lines:
        return False
    data = b"".join(text for _, text in lines)
    logs, key = services.logs, (log.run.id, log.attempt, worker)
    logs.write(*key, log.stream, offset, data)
    logs.append(*key, times_of(log.stream), _times(offset, lines))
    newest, count = _newest(cursor, lines)
    logs.append(*key, log.cursor, f"{offset + len(data)} {newest} {count}\n".encode())
    attempt = log.run.attempt
    writers = len(attempt.workers) * attempt.processes if attempt is not None else 1
    place = place_of(worker, log.process)
    services.emit(WorkerOutput(log.run.slice_name, place, _STREAM, data, writers))
    return cut


def _newest(cursor: _Cursor, lines: list[tuple[str, bytes]]) -> tuple[str, int]:
    """The newest time, and how many lines are of its second; those before `lines` count, too."""
    newest = max((cursor.last, *(at for at, _ in lines)), key=stamp_key)
    second = stamp_key(newest)[0]
    before = cursor.lines if stamp_key(cursor.last)[0] == second else 0
    return newest, before + sum(stamp_key(at)[0] == second for at, _ in lines)


def _read(cluster: Cluster, log: _Log, cursor: _Cursor) -> tuple[bool, list[tuple[str, bytes]]]:
    """The lines behind `cursor`, and whether there are more. Where all of a piece was there before, because
    much was written within a second, a larger one is asked for."""
    limit, cut, lines = LOG_PIECE, True, list[tuple[str, bytes]]()
    while cut and not lines:
        try:
            content = cluster.log(log.seen.pod, log.container, _second(cursor.last), limit) or b""
        except (TransientError, DeniedError, InvalidRequestError) as error:
            raise _UnreadError(error.message) from error
        cut = len(content) >= limit
        lines = list(_new_lines(content, cursor, whole=cut or not log.seen.status.state.final))
        limit *= 2
    return cut, lines


def _cursor(services: Services, log: _Log) -> _Cursor:
    """Up to where it is here."""
    worker = log.seen.status.worker
    tail = services.logs.tail(log.run.id, log.attempt, worker, log.cursor, _CURSOR_BYTES)
    lines = tail.decode("ascii", "replace").split("\n")
    words = lines[-2].split() if len(lines) > 1 else []
    return _Cursor(int(words[0]), words[1], int(words[2])) if len(words) == 3 else _Cursor()


def _second(stamp: str) -> str:
    """From where on the log is asked for: Kubernetes takes whole seconds."""
    found = _STAMP.fullmatch(stamp)
    return f"{found[1]}{found[3]}" if found else ""


def _new_lines(content: bytes, cursor: _Cursor, *, whole: bool) -> Iterator[tuple[str, bytes]]:
    """The lines behind `cursor`, each with its time; of the `whole` ones alone. One without a time is the
    kubelet's own, and none of the program. A log only grows: what was read of the second comes first."""
    second, known = stamp_key(cursor.last)[0], cursor.lines
    for line in io.BytesIO(content):
        stamp, _, text = line.partition(b" ")
        at = stamp.decode("ascii", "replace")
        if not _STAMP.fullmatch(at) or stamp_key(at)[0] < second or (whole and not line.endswith(b"\n")):
            continue
        if known:
            known -= 1
            continue
        yield at, text


def stamp_key(stamp: str) -> tuple[str, str]:
    """Times of RFC 3339 in order, whatever the number of their digits."""
    found = _STAMP.fullmatch(stamp)
    return (found[1], (found[2] or "").ljust(9, "0")) if found else ("", "")


def _times(offset: int, lines: list[tuple[str, bytes]]) -> bytes:
    """The index of these lines, as hosts write it: up to which offset the log was there when."""
    rows: list[str] = []
    newest = -1
    for number, (stamp, text) in enumerate(lines):
        offset += len(text)
        at = round((parse_timestamp(stamp) or 0.0) * 1000)
        following = lines[number + 1][0] if number + 1 < len(lines) else ""
        if stamp_key(following)[0] == stamp_key(stamp)[0] and at - newest < 100:
            continue
        newest = at
        rows.append(f"{offset:015d} {at:013d}\n")
    return "".join(rows).encode()
