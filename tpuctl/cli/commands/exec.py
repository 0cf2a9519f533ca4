"""`exec` and `ssh`: one-off commands and shells on workers."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from tpuctl.cli.completion import slice_names
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import Timeout
from tpuctl.cli.workers import check_workers, choose, raise_for_failed
from tpuctl.errors import PartialError, TpuctlError, UsageError
from tpuctl.lib.options import argument
from tpuctl.lib.text import counted
from tpuctl.model.requests import ExecRequest

if TYPE_CHECKING:
    from tpuctl.engine.ports import OutputSink
    from tpuctl.model.cloud import RemoteResult
    from tpuctl.model.records import SliceRecord


def exec_(
    context: AppContext,
    words: Annotated[
        list[str],
        argument("[NAME] -- COMMAND...", "The slice, and what to run on its workers.", complete=slice_names),
    ],
    request: ExecRequest = ExecRequest(),
    timeout: Timeout = None,
) -> None:
    """Run one command on the workers of a slice.

    The command on the workers ends with this one. On one worker its exit status is passed through; on
    several it is 0, 3 when some failed, 1 when all did.

    With one worker, standard input (a pipe or a file) goes to the command; with several, input is refused.
    Inside a loop that reads standard input use -n. For a terminal use `tpuctl ssh`.
    """
    from tpuctl.lib.standard_input import find_input
    from tpuctl.slices.choose import resolve_slice
    from tpuctl.workers.exec import execute

    check_workers(request.worker, request.all_workers)
    before, argv = context.shared.split(words)
    if not argv or len(before) > 1:
        raise _no_command(context, before)
    record = resolve_slice(context, before[0] if before else request.on)
    chosen = choose(record, request.worker)

    def start(sink: OutputSink | None) -> list[RemoteResult]:
        given = None if request.no_stdin else find_input()
        found = execute(context, record, argv, workers=chosen, timeout_s=timeout, sink=sink, given=given)
        context.emit.close()
        return found

    with context.interruptible("what it started on the workers ends with it; the slice is as it was"):
        results = _with_output(context, record, start, request)
        _end(record, results, quiet=context.console.json_mode)


def _no_command(context: AppContext, before: Sequence[str]) -> UsageError:
    """What was typed again, options and all, with -- where the command begins."""
    from tpuctl.slices.choose import is_known

    arguments = context.shared.arguments
    name = before[0] if before else "NAME"
    if "--" in arguments or not before or (len(before) == 1 and is_known(context, name)):
        return UsageError("which command?", hint=f"tpuctl exec {name} -- hostname")
    first = arguments.index(name)
    begins = first if len(before) == 1 else arguments.index(before[1], first + 1)
    meant = shlex.join([*arguments[:begins], "--", *arguments[begins:]])
    return UsageError("put -- before the command", hint=f"tpuctl {meant}")


def _with_output(
    context: AppContext,
    record: SliceRecord,
    start: Callable[[OutputSink | None], list[RemoteResult]],
    request: ExecRequest,
) -> list[RemoteResult]:
    """Runs the command with its output where the flags want it."""

    if request.output_dir is not None:
        files = open_output_dir(request.output_dir)
        results = start(files.write)
        files.close()
        context.console.say(f"output of {counted(len(results), 'worker')} is in {request.output_dir}")
        if context.console.json_mode:
            context.console.data([_result_row(result, None) for result in results])
        return results
    if not request.group and not context.console.json_mode:
        return start(None)
    with temporary_files() as files:
        results = start(files.write)
        files.close()
        if context.console.json_mode:
            context.console.data([_result_row(result, files) for result in results])
        else:
            print_groups(record.name, results, files, _write_raw)
    return results


def _write_raw(stream: str, data: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.buffer.write(data)
    target.flush()


def _result_row(result: RemoteResult, files: WorkerFiles | None) -> dict[str, object]:
    row: dict[str, object] = {
        "worker": result.worker,
        "exit_status": result.exit_status,
        "failure": result.failure,
        "detail": result.detail or None,
        "duration_s": round(result.duration_s, 3),
    }
    if files is not None:
        for stream in ("stdout", "stderr"):
            row[stream] = files.read(result.worker, stream).decode("utf-8", "replace")
    return row


def _end(record: SliceRecord, results: list[RemoteResult], *, quiet: bool) -> None:
    failed = [result for result in results if not result.ok]
    if not failed:
        return
    if len(results) == 1 and failed[0].exit_status is not None:
        raise typer.Exit(failed[0].exit_status)
    if quiet:
        raise typer.Exit((PartialError if len(failed) < len(results) else TpuctlError).exit_code)
    raise_for_failed(record, results)


STREAMS = ("stdout", "stderr")
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkerFiles:
    """One file per worker and stream below `directory`, which `flag` names, written as output arrives and never
    held in memory."""

    def __init__(self, directory: Path, flag: str = "") -> None:
        self._directory = directory
        self._flag = flag
        self._open: dict[Path, BinaryIO] = {}

    def path(self, worker: int, stream: str) -> Path:
        return self._directory / f"worker-{worker}.{stream}"

    def write(self, worker: int, stream: str, data: bytes) -> None:
        """An output sink; see `ports.OutputSink`. Raises TpuctlError where the disk is full."""
        path = self.path(worker, stream)
        with self._naming(path):
            if path not in self._open:
                handle = os.open(path, NEW_FILE, 0o666)
                self._open[path] = os.fdopen(handle, "wb")
            self._open[path].write(data)

    def close(self) -> None:
        """All of them, also where the last bytes of one have no room, of which it raises as `write`."""
        with ExitStack() as closing:
            for path, file in self._open.items():
                closing.enter_context(self._naming(path))
                closing.callback(file.close)
            self._open.clear()

    @contextmanager
    def _naming(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            from tpuctl.lib.output_files import refused

            raise refused(path, self._flag, error) from error

    def read(self, worker: int, stream: str) -> bytes:
        path = self.path(worker, stream)
        return path.read_bytes() if path.exists() else b""

    def digest(self, worker: int) -> str:
        """Equal for workers that wrote the same."""
        found = hashlib.sha256()
        for stream in STREAMS:
            found.update(self.read(worker, stream) + b"\0")
        return found.hexdigest()


def open_output_dir(directory: str) -> WorkerFiles:
    """Files for `--output-dir`. Raises UsageError when it cannot be a directory, or what is there no file."""
    from tpuctl.lib.output_files import check_output

    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output-dir {directory}: {error.strerror}", hint="name a directory") from error
    for stream in STREAMS:
        for earlier in path.glob(f"worker-*.{stream}"):
            check_output(earlier, "--output-dir", kind="output", overwrite=True)
    return WorkerFiles(path, "--output-dir")


@contextmanager
def temporary_files() -> Iterator[WorkerFiles]:
    """Files that are gone afterwards."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tpuctl-output-") as directory:
        files = WorkerFiles(Path(directory))
        try:
            yield files
        finally:
            files.close()


def print_groups(
    name: str, results: Sequence[RemoteResult], files: WorkerFiles, write: Callable[[str, bytes], None]
) -> None:
    """Prints what workers wrote, identical output once under the folded names of its workers."""
    from tpuctl.lib.text import fold_label, group_equal

    for _, members in group_equal(results, lambda result: files.digest(result.worker)):
        workers = [result.worker for result in members]
        write("stdout", f"── {fold_label(name, workers)} ({len(workers)})\n".encode())
        for stream in STREAMS:
            content = files.read(workers[0], stream)
            if content:
                write(stream, content if content.endswith(b"\n") else content + b"\n")
