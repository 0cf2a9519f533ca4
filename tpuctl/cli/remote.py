"""`exec` and `ssh`: one-off commands and shells on workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.app import invocation
from tpuctl.cli.completing import slice_names
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.options import AllWorkers, Json, OnSlice, Timeout, Workers
from tpuctl.cli.words import split_words
from tpuctl.core.counting import counted
from tpuctl.errors import PartialError, TpuctlError, UnreachableError, UsageError

if TYPE_CHECKING:
    from tpuctl.cli.output import WorkerFiles
    from tpuctl.core.model import RemoteResult
    from tpuctl.core.records import SliceRecord
    from tpuctl.ports import OutputSink


def exec_(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] -- COMMAND...",
            help="The slice, and what to run on its workers.",
            autocompletion=slice_names,
        ),
    ],
    on: OnSlice = None,
    worker: Workers = None,
    all_workers: AllWorkers = False,
    timeout: Timeout = None,
    group: Annotated[
        bool, typer.Option("--group", help="Print identical output once, when all have ended.")
    ] = False,
    output_dir: Annotated[
        str | None, typer.Option("--output-dir", metavar="DIR", help="One file per worker and stream instead.")
    ] = None,
    no_stdin: Annotated[
        bool,
        typer.Option("--no-stdin", "-n", help="Leave standard input alone, as within a loop that reads it."),
    ] = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Run one command on the workers of a slice.

    It ends when this command ends. On one worker its exit status is passed through; on several it is 0, 3
    when some failed, 1 when all did.

    Standard input that is a pipe or a file goes to a command on one worker; for several it is refused when it
    has something. Of a file, such as that of a `while read` loop, what the command does not read stays for
    others; of a pipe it is gone, and that is said: -n leaves both alone. For a terminal there is `tpuctl ssh`.
    """
    from tpuctl.local.standard_input import find_input
    from tpuctl.workflows.execute import execute, resolve_slice

    if all_workers and worker is not None:
        raise UsageError("--all-workers and --worker exclude each other", hint="keep one of them")
    shared = invocation(ctx)
    before, argv = split_words(shared, list(words or []))
    if not argv or len(before) > 1:
        import shlex

        meant = shlex.join(before[1:]) or "hostname"
        raise UsageError(
            "put -- before the command", hint=f"tpuctl exec {before[0] if before else 'NAME'} -- {meant}"
        )
    name = before[0] if before else on
    with open_context(ctx) as context:
        record = resolve_slice(context, name)
        chosen = choose(record, worker)
        shared.if_interrupted = "what it started on the workers ends with it; the slice is as it was"

        def start(sink: OutputSink | None) -> list[RemoteResult]:
            given = None if no_stdin else find_input()
            found = execute(context, record, argv, workers=chosen, timeout_s=timeout, sink=sink, given=given)
            context.emit.close()
            return found

        results = _with_output(context, record, start, group=group, output_dir=output_dir)
        _end(record, results, quiet=context.console.json_mode)


def _with_output(
    context: AppContext,
    record: SliceRecord,
    start: Callable[[OutputSink | None], list[RemoteResult]],
    *,
    group: bool,
    output_dir: str | None,
) -> list[RemoteResult]:
    """Runs the command with its output where the flags want it."""
    from tpuctl.cli.output import open_output_dir, print_groups, temporary_files

    if output_dir is not None:
        files = open_output_dir(output_dir)
        results = start(files.write)
        files.close()
        context.console.say(f"output of {counted(len(results), 'worker')} is in {output_dir}")
        if context.console.json_mode:
            context.console.data([_result_row(result, None) for result in results])
        return results
    if not group and not context.console.json_mode:
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


def choose(record: SliceRecord, worker: str | None) -> tuple[int, ...] | None:
    """The workers that the flag names, None for all. Raises UsageError."""
    from tpuctl.core.fold import parse_workers

    if worker is None:
        return None
    try:
        return parse_workers(worker, record.spec.hosts)
    except ValueError as error:
        raise UsageError(f"--worker: {error}", hint=f"tpuctl status {record.name}") from error


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


def raise_for_failed(
    record: SliceRecord, results: list[RemoteResult], *, hint: str | None = None, partly: bool = False
) -> None:
    """Raises what the failed ones of `results` amount to; `hint` where there is no better one. `partly`: what
    failed was done in part."""
    from tpuctl.core.fold import common_cause, fold_label, group_equal

    failed = [result for result in results if not result.ok]
    if not failed:
        return
    groups = group_equal(failed, lambda each: common_cause(f"{record.name}-{each.worker}", _why(each)))
    said = "; ".join(
        f"{fold_label(record.name, [r.worker for r in members])}: {why}" for why, members in groups[:4]
    )
    more = f"; and {counted(len(groups) - 4, 'other reason')}" if len(groups) > 4 else ""
    kind: type[TpuctlError] = PartialError if len(failed) < len(results) or partly else TpuctlError
    if all(result.failure == "connect" for result in results):
        kind = UnreachableError
    raise kind(
        f"{len(failed)} of {counted(len(results), 'worker')} failed: {said}{more}",
        hint=f"tpuctl status {record.name}" if kind is UnreachableError else hint,
        details={"workers": [result.worker for result in failed]},
    )


def _why(result: RemoteResult) -> str:
    """Why a worker failed."""
    if result.failure is not None or result.detail:
        return result.detail or str(result.failure)
    said = result.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return said[0] if said else f"exit status {result.exit_status}"


def ssh(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [ARGS]...", help="The slice; ARGS go to ssh.", autocompletion=slice_names
        ),
    ] = None,
    worker: Annotated[int, typer.Option("--worker", metavar="N", min=0, help="Which worker.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the ssh command instead.")] = False,
) -> None:
    """Open a shell on one worker.

    Uses the real ssh, with the host key pinned. The exit status is that of ssh: the command's own, or 255
    when there was no connection.
    """
    import shlex

    from tpuctl.workflows.execute import resolve_slice

    before, behind = split_words(invocation(ctx), list(words or []))
    with open_context(ctx) as context:
        record = resolve_slice(context, before[0] if before else None)
        argv = _ssh_argv(context, record, worker, [*before[1:], *behind])
        if dry_run:
            context.console.line(shlex.join(argv))
            return
    os.execvp(argv[0], argv)  # noqa: S606 - a list, no shell; our process becomes ssh


def _ssh_argv(context: AppContext, record: SliceRecord, worker: int, extra: list[str]) -> list[str]:
    from tpuctl.remote.openssh import ssh_argv, write_known_hosts
    from tpuctl.workflows.execute import choose_workers
    from tpuctl.workflows.targets import host_targets

    everyone = host_targets(context, record)
    target = choose_workers(record, [worker], everyone)[0]
    known_hosts = context.config.state_dir / "known_hosts" / record.name
    write_known_hosts(known_hosts, everyone)
    return ssh_argv(target, context.key_pair.private_path, known_hosts, extra, context.proxy)
