"""`exec` and `ssh`: one-off commands and shells on workers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

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
    from tpuctl.cli.worker_output import WorkerFiles
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
    from tpuctl.cli.worker_output import open_output_dir, print_groups, temporary_files

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
