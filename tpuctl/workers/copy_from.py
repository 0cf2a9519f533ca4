"""Copies from workers: each sends its list of files, and then those parts of them that are not here yet.

One `FileReceiver` per worker takes what comes.
"""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.ports import Clock, EventSink
from tpuctl.errors import TpuctlError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.protocol import MalformedReplyError
from tpuctl.hosts.requests import Masks, SendRequest, SurveyRequest
from tpuctl.model.cloud import HostTarget, RemoteResult
from tpuctl.transfer.frames import Begin, Frame, FrameReader, Piece, Want, render_wants
from tpuctl.transfer.progress import TransferProgress
from tpuctl.transfer.tree import TreeFile
from tpuctl.workers.copy_to import COPY_TIMEOUT_S, host_path
from tpuctl.workers.file_list import FileSurvey, SurveyReader, UnreadFile, describe_missing, limits_of
from tpuctl.workers.file_receiver import FileReceiver, judge_room

SURVEY_TIMEOUT_S = 600.0
"""For a walk over millions of files."""
COMPARED_AT_ONCE = 8
ROUNDS = 3
"""How often a file is asked for that was written to while it was read."""
STDERR_KEPT = 8192
TRACE_SUFFIX = ".xplane.pb"
"""Of a file of a trace, as xprof and TensorBoard look for it."""
Select = Callable[[HostTarget, FileSurvey], FileSurvey]
"""What of the things that a worker has is fetched."""


class Pulled(Struct, frozen=True):
    """Results in the order of the targets; one of which not everything could be copied is not ok.

    `files` and `size_bytes` are what is here now from `workers` of them, of which `received_bytes` came just
    now; `left_out` counts sockets, pipes and devices.
    """

    results: tuple[RemoteResult, ...]
    workers: int
    files: int
    size_bytes: int
    received_bytes: int
    left_out: int


def name_of_source(path: str) -> str:
    """The name that a copy of `path` gets; empty where the path has none of its own, as with `.`."""
    name = posixpath.basename(host_path(path).rstrip("/"))
    return "" if name in (".", "..") else name


def pull(
    agent: HostAgent,
    targets: Sequence[HostTarget],
    path: str,
    open_receiver: Callable[[HostTarget], FileReceiver],
    *,
    clock: Clock,
    emit: EventSink,
    select: Select = lambda _target, survey: survey,
    may_lack: bool = False,
    masks: Masks | None = None,
) -> Pulled:
    """Fetches `path` from every target, where nothing `may` be, as far as `select` takes it.
    What broke off before goes on where it was, if the worker's file is still the same; equal files do not
    travel. A worker that fails does not stop the others, and neither does what a worker cannot read.

    Raises UsageError for a path that cannot be meant, and TpuctlError before anything is copied when there is
    no room for all of it.
    """
    survey = SurveyRequest(host_path(path), limits_of(len(targets)).entries, may_lack, masks)
    return _Pull(agent, targets, survey, clock, emit, select).run(open_receiver)


class _Source(Struct):
    """One worker: its list, where it goes, and what is wrong with it."""

    receiver: FileReceiver
    survey: FileSurvey
    reader: FrameReader
    wanted: tuple[Want, ...] = ()
    request: bytes = b""
    trouble: TpuctlError | None = None
    missing: Sequence[UnreadFile] = ()

    @property
    def files(self) -> list[TreeFile]:
        """What is here now, unless there was trouble."""
        lost = {each.name for each in self.missing}
        return [
            entry for entry in self.survey.entries if isinstance(entry, TreeFile) and entry.path not in lost
        ]

    def fail(self, error: TpuctlError) -> None:
        self.trouble = self.trouble or error


class _Pull:
    def __init__(
        self,
        agent: HostAgent,
        targets: Sequence[HostTarget],
        request: SurveyRequest,
        clock: Clock,
        emit: EventSink,
        select: Select,
    ) -> None:
        self._select = select
        self._agent = agent
        self._targets = list(targets)
        self._request = request
        subject = self._targets[0].slice_name if self._targets else ""
        self._meter = TransferProgress(clock, emit, subject, len(self._targets), back=True)
        self._results: dict[int, RemoteResult] = {}
        self._sources: dict[int, _Source] = {}
        self._said: dict[int, bytes] = {}

    def run(self, open_receiver: Callable[[HostTarget], FileReceiver]) -> Pulled:
        try:
            self._survey(open_receiver)
            self._plan()
            self._check_room()
            for _ in range(ROUNDS):
                asked = [target for target in self._targets if self._has_wants(target)]
                if not asked:
                    break
                self._receive(asked)
            self._finish()
        finally:
            for source in self._sources.values():
                source.receiver.close()
        return self._outcome()

    def _survey(self, open_receiver: Callable[[HostTarget], FileReceiver]) -> None:
        limits = limits_of(len(self._targets))
        readers = {target.worker: SurveyReader(limits) for target in self._targets}
        wrong: dict[int, str] = {}

        def take(worker: int, stream: str, data: bytes) -> None:
            if stream != "stdout":
                self._keep_said(worker, data)
            elif worker not in wrong:
                try:
                    readers[worker].feed(data)
                except (MalformedReplyError, TpuctlError) as error:
                    wrong[worker] = str(error)

        results = self._agent.stream(
            self._targets,
            self._request,
            take,
            timeout_s=SURVEY_TIMEOUT_S,
            should_stop=lambda: len(wrong) == len(readers),
        )
        for target, result in zip(self._targets, results, strict=True):
            if target.worker in wrong:  # it answered, and it is we who hung up then
                result = replace(result, failure=None)
            self._results[target.worker] = result
            why = wrong.get(target.worker) or self._why(result)
            if not why:
                try:
                    survey = self._select(target, readers[target.worker].survey())
                    self._sources[target.worker] = _Source(open_receiver(target), survey, FrameReader())
                except MalformedReplyError as error:
                    why = str(error)
            if why:
                self._fail(target.worker, why)

    def _why(self, result: RemoteResult) -> str:
        """Why a command failed, in words; empty if it did not."""
        if result.ok:
            return ""
        said = self._said.get(result.worker, b"").decode(errors="replace").strip()
        return result.detail or said or f"exit status {result.exit_status}"

    def _keep_said(self, worker: int, data: bytes) -> None:
        self._said[worker] = (self._said.get(worker, b"") + data)[-STDERR_KEPT:]

    def _fail(self, worker: int, why: str) -> None:
        result = self._results[worker]
        status = None if result.failure is not None else result.exit_status or 1
        self._results[worker] = replace(result, exit_status=status, detail=why or result.detail)
        source = self._sources.get(worker)
        if source is not None:
            source.fail(TpuctlError(why))

    def _plan(self) -> None:
        def compare(worker: int) -> None:
            try:
                self._sources[worker].receiver.plan(self._sources[worker].survey.entries)
            except TpuctlError as error:
                self._fail(worker, error.message)

        with ThreadPoolExecutor(max_workers=COMPARED_AT_ONCE) as pool:
            list(pool.map(compare, self._sources))

    def _check_room(self) -> None:
        needs = {
            target.label: self._sources[target.worker].receiver.room()
            for target in self._targets
            if target.worker in self._sources and self._sources[target.worker].trouble is None
        }
        judge_room(needs)

    def _has_wants(self, target: HostTarget) -> bool:
        source = self._sources.get(target.worker)
        if source is None or source.trouble is not None:
            return False
        source.wanted = source.receiver.wants()
        source.request = render_wants(source.wanted)
        source.reader = FrameReader()
        sizes = {entry.path: entry.blob.size for entry in source.files}
        self._meter.expect(sum(max(0, sizes[want.name] - want.have) for want in source.wanted))
        return bool(source.wanted)

    def _receive(self, targets: Sequence[HostTarget]) -> None:
        busy = {target.worker for target in targets}

        def on_end(result: RemoteResult) -> None:
            if result.ok:
                busy.discard(result.worker)
                self._meter.done(len(self._sources) - len(busy))

        def request(target: HostTarget) -> SendRequest:
            size = len(self._sources[target.worker].request)
            return SendRequest(self._request.path, size, self._request.masks)

        results = self._agent.stream(
            targets,
            request,
            self._take,
            payload=lambda target: [self._sources[target.worker].request],
            timeout_s=COPY_TIMEOUT_S,
            should_stop=lambda: all(self._sources[t.worker].trouble is not None for t in targets),
            on_end=on_end,
        )
        for result in results:
            self._results[result.worker] = result
            if not result.ok:
                self._fail(result.worker, self._why(result))

    def _take(self, worker: int, stream: str, data: bytes) -> None:
        source = self._sources[worker]
        if stream != "stdout":
            self._keep_said(worker, data)
        elif source.trouble is None:
            try:
                for frame in source.reader.feed(data):
                    self._count(source, frame)
                    source.receiver.take(frame)
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
                    source.missing = source.receiver.finish()
                except TpuctlError as error:
                    source.fail(error)
            if source.trouble is not None:
                self._fail(worker, source.trouble.message)
                continue
            lacking = [*source.survey.unread, *source.missing]
            if lacking:
                count = source.survey.unread_count + len(source.missing)
                result, said = self._results[worker], describe_missing(lacking, count)
                self._results[worker] = replace(result, exit_status=result.exit_status or 1, detail=said)

    def _outcome(self) -> Pulled:
        fine = [each for each in self._sources.values() if each.trouble is None and each.survey.entries]
        files = [entry for source in fine for entry in source.files]
        return Pulled(
            tuple(self._results[target.worker] for target in self._targets),
            len(fine),
            len(files),
            sum(entry.blob.size for entry in files),
            self._meter.moved,
            sum(source.survey.left_out for source in fine),
        )


def session_folder(directory: Path, session: str) -> Path:
    """Where a session of the log directory `directory` has its hosts, as xprof looks for them."""
    return directory / "plugins" / "profile" / session


def fetch_traces(
    agent: HostAgent,
    targets: Sequence[HostTarget],
    path: str,
    place: Path,
    *,
    clock: Clock,
    emit: EventSink,
) -> tuple[tuple[RemoteResult, ...], list[Path]]:
    """Fetches what each target has in the folder `path`. Returns what came of it, and the files in `place`, one
    for each process; they arrive elsewhere, so that a viewer never sees half of one.
    """
    arriving = place.parents[2] / f".arriving-{place.name}"
    try:
        arriving.mkdir(parents=True, exist_ok=True)
        pulled = pull(agent, targets, path, lambda t: FileReceiver(arriving / t.label), clock=clock, emit=emit)
        files = [each for target in targets for each in _settle(arriving / target.label, target.label, place)]
        return pulled.results, files
    except OSError as error:
        raise TpuctlError(f"cannot write {place}: {error.strerror}", hint="--to another directory") from error
    finally:
        shutil.rmtree(arriving, ignore_errors=True)


def _settle(folder: Path, label: str, place: Path) -> list[Path]:
    """`LABEL.xplane.pb`, and of several processes `LABEL.PROCESS.xplane.pb`."""
    found = sorted(folder.glob(f"*{TRACE_SUFFIX}"))
    if found:
        place.mkdir(parents=True, exist_ok=True)
    named = {each: label if len(found) == 1 else f"{label}.{each.name[: -len(TRACE_SUFFIX)]}" for each in found}
    return [each.replace(place / f"{name}{TRACE_SUFFIX}") for each, name in named.items()]
