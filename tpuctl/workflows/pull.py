"""Copies from workers: each sends its list of files, and then those parts of them that are not here yet.

Local files are the caller's: one `Landing` per worker takes what comes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from tpuctl.core.arrival import (
    Begin,
    Found,
    FoundFile,
    Frame,
    FrameReader,
    Piece,
    Want,
    parse_survey,
    render_wants,
)
from tpuctl.core.host_protocol import MalformedReplyError
from tpuctl.core.model import HostTarget, RemoteResult
from tpuctl.errors import TpuctlError
from tpuctl.ports import Clock, EventSink
from tpuctl.workflows.copy import COPY_TIMEOUT_S, host_path
from tpuctl.workflows.host_helper import HelperReply, HostHelper
from tpuctl.workflows.meter import Meter

SURVEY_TIMEOUT_S = 600.0
"""For a walk over millions of files."""
LOOKS_AT_ONCE = 8
ROUNDS = 3
"""How often a file is asked for that was written to while it was read."""
STDERR_KEPT = 8192


class Landing(Protocol):
    """Takes the files of one worker. Every failure is a TpuctlError."""

    def plan(self, found: Sequence[Found]) -> None:
        """Takes the list of what comes, and looks at what is here already."""
        ...

    def wants(self) -> tuple[Want, ...]:
        """What is to be asked for now, and again after it was answered."""
        ...

    def take(self, frame: Frame) -> None: ...

    def finish(self) -> None:
        """Nothing more comes. TpuctlError when a file is missing."""
        ...

    def close(self) -> None:
        """Lets go. What has arrived of an unfinished file is kept for the next time."""
        ...


@dataclass(frozen=True)
class Pulled:
    """Results in the order of the targets. `files` and `size_bytes` are what the good ones have, of which
    `received_bytes` came now; `left_out` counts sockets, pipes and devices."""

    results: tuple[RemoteResult, ...]
    files: int
    size_bytes: int
    received_bytes: int
    left_out: int


def name_of_source(path: str) -> str:
    """The name that a copy of `path` gets; empty where the path has none of its own, as with `.`."""
    name = posixpath.basename(host_path(path).rstrip("/"))
    return "" if name in (".", "..") else name


def pull(
    helper: HostHelper,
    targets: Sequence[HostTarget],
    path: str,
    open_landing: Callable[[HostTarget], Landing],
    *,
    clock: Clock,
    emit: EventSink,
) -> Pulled:
    """Fetches `path` from every target. What broke off before goes on where it was, if the worker's file is
    still the same; equal files do not travel. A worker that fails does not stop the others.

    Raises UsageError for a path that cannot be meant.
    """
    return _Pull(helper, targets, host_path(path), clock, emit).run(open_landing)


@dataclass
class _Source:
    """One worker: its list, where it goes, and what is wrong with it."""

    landing: Landing
    found: tuple[Found, ...]
    reader: FrameReader
    wanted: tuple[Want, ...] = ()
    request: bytes = b""
    trouble: TpuctlError | None = None

    def fail(self, error: TpuctlError) -> None:
        self.trouble = self.trouble or error


class _Pull:
    def __init__(
        self, helper: HostHelper, targets: Sequence[HostTarget], path: str, clock: Clock, emit: EventSink
    ) -> None:
        self._helper = helper
        self._targets = list(targets)
        self._path = path
        subject = self._targets[0].slice_name if self._targets else ""
        self._meter = Meter(clock, emit, subject, len(self._targets), back=True)
        self._results: dict[int, RemoteResult] = {}
        self._sources: dict[int, _Source] = {}
        self._said: dict[int, bytes] = {}
        self._left_out = 0

    def run(self, open_landing: Callable[[HostTarget], Landing]) -> Pulled:
        try:
            self._survey(open_landing)
            self._plan()
            for _ in range(ROUNDS):
                asked = [target for target in self._targets if self._has_wants(target)]
                if not asked:
                    break
                self._receive(asked)
            self._finish()
        finally:
            for source in self._sources.values():
                source.landing.close()
        return self._outcome()

    def _survey(self, open_landing: Callable[[HostTarget], Landing]) -> None:
        replies = self._helper.call(self._targets, "survey", {"path": self._path}, timeout_s=SURVEY_TIMEOUT_S)
        for target, reply in zip(self._targets, replies, strict=True):
            self._results[target.worker] = replace(reply.result, stdout=b"")
            if reply.data is None:
                self._fail(target.worker, reply.message or "the worker sent no list of files")
                continue
            try:
                found = parse_survey(reply.data)
            except (MalformedReplyError, TpuctlError) as error:
                self._fail(target.worker, str(error))
                continue
            self._left_out += _count(reply)
            self._sources[target.worker] = _Source(open_landing(target), found, FrameReader())

    def _fail(self, worker: int, why: str) -> None:
        result = self._results[worker]
        status = None if result.failure is not None else result.exit_status or 1
        self._results[worker] = replace(result, exit_status=status, detail=why or result.detail)
        source = self._sources.get(worker)
        if source is not None:
            source.fail(TpuctlError(why))

    def _plan(self) -> None:
        def look(worker: int) -> None:
            try:
                self._sources[worker].landing.plan(self._sources[worker].found)
            except TpuctlError as error:
                self._fail(worker, error.message)

        with ThreadPoolExecutor(max_workers=LOOKS_AT_ONCE) as pool:
            list(pool.map(look, self._sources))

    def _has_wants(self, target: HostTarget) -> bool:
        source = self._sources.get(target.worker)
        if source is None or source.trouble is not None:
            return False
        source.wanted = source.landing.wants()
        source.request = render_wants(source.wanted)
        source.reader = FrameReader()
        sizes = {entry.name: entry.size for entry in source.found if isinstance(entry, FoundFile)}
        self._meter.expect(sum(max(0, sizes[want.name] - want.have) for want in source.wanted))
        return bool(source.wanted)

    def _receive(self, targets: Sequence[HostTarget]) -> None:
        busy = {target.worker for target in targets}

        def on_end(result: RemoteResult) -> None:
            if result.ok:
                busy.discard(result.worker)
                self._meter.done(len(self._sources) - len(busy))

        results = self._helper.send_back(
            targets,
            self._path,
            lambda target: self._sources[target.worker].request,
            self._take,
            timeout_s=COPY_TIMEOUT_S,
            should_stop=lambda: all(self._sources[t.worker].trouble is not None for t in targets),
            on_end=on_end,
        )
        for result in results:
            self._results[result.worker] = result
            if not result.ok:
                said = self._said.get(result.worker, b"").decode(errors="replace").strip()
                self._fail(result.worker, result.detail or said or f"exit status {result.exit_status}")

    def _take(self, worker: int, stream: str, data: bytes) -> None:
        source = self._sources[worker]
        if stream != "stdout":
            self._said[worker] = (self._said.get(worker, b"") + data)[-STDERR_KEPT:]
        elif source.trouble is None:
            try:
                for frame in source.reader.feed(data):
                    self._count(source, frame)
                    source.landing.take(frame)
            except (MalformedReplyError, TpuctlError) as error:
                source.fail(error if isinstance(error, TpuctlError) else TpuctlError(str(error)))

    def _count(self, source: _Source, frame: Frame) -> None:
        if isinstance(frame, Piece):
            self._meter.add(len(frame.data))
        elif isinstance(frame, Begin) and frame.start == 0 and frame.number < len(source.wanted):
            self._meter.expect(source.wanted[frame.number].have)

    def _finish(self) -> None:
        for worker, source in self._sources.items():
            if source.trouble is None:
                try:
                    source.landing.finish()
                except TpuctlError as error:
                    source.fail(error)
            if source.trouble is not None:
                self._fail(worker, source.trouble.message)

    def _outcome(self) -> Pulled:
        good = [source for source in self._sources.values() if source.trouble is None]
        files = [entry for source in good for entry in source.found if isinstance(entry, FoundFile)]
        return Pulled(
            tuple(self._results[target.worker] for target in self._targets),
            len(files),
            sum(entry.size for entry in files),
            self._meter.moved,
            self._left_out,
        )


def _count(reply: HelperReply) -> int:
    data: Mapping[str, object] = reply.data or {}
    found = data.get("left_out")
    return found if isinstance(found, int) else 0
