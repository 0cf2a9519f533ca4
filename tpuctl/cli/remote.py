"""`exec` and `ssh`: one-off commands and shells on workers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.app import invocation
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.options import AllWorkers, Json, OnSlice, Timeout, Workers
from tpuctl.cli.words import split_words
from tpuctl.errors import PartialError, UnreachableError, UsageError

if TYPE_CHECKING:
    from tpuctl.core.model import RemoteResult
    from tpuctl.core.records import SliceRecord


def exec_(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="[NAME] -- COMMAND...", help="The slice, and what to run on its workers."),
    ],
    on: OnSlice = None,
    worker: Workers = None,
    all_workers: AllWorkers = False,
    timeout: Timeout = None,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Run one command on the workers of a slice; it ends when this command ends.

    On one worker its exit status is passed through; on several it is 0, or 3 when some failed.
    """
    from tpuctl.workflows.execute import execute, resolve_slice

    if all_workers and worker is not None:
        raise UsageError("--all-workers and --worker exclude each other", hint="keep one of them")
    shared = invocation(ctx)
    before, argv = split_words(shared, list(words or []))
    if not argv or len(before) > 1:
        raise UsageError("put -- before the command", hint="tpuctl exec NAME -- hostname")
    name = before[0] if before else on
    with open_context(ctx) as context:
        record = resolve_slice(context, name)
        chosen = choose(record, worker)
        output: dict[tuple[int, str], list[bytes]] = {}

        def collect(index: int, stream: str, data: bytes) -> None:
            output.setdefault((index, stream), []).append(data)

        sink = collect if context.console.json_mode else None
        results = execute(context, record, argv, workers=chosen, timeout_s=timeout, sink=sink)
        context.emit.close()
        if context.console.json_mode:
            context.console.data([_result_row(result, output) for result in results])
        _end(record, results, quiet=context.console.json_mode)


def choose(record: SliceRecord, worker: str | None) -> tuple[int, ...] | None:
    """The workers that the flag names, None for all. Raises UsageError."""
    from tpuctl.core.fold import parse_workers

    if worker is None:
        return None
    try:
        return parse_workers(worker, record.spec.hosts)
    except ValueError as error:
        raise UsageError(f"--worker: {error}", hint=f"tpuctl status {record.name}") from error


def _result_row(result: RemoteResult, output: dict[tuple[int, str], list[bytes]]) -> dict[str, object]:
    def text(stream: str) -> str:
        return b"".join(output.get((result.worker, stream), [])).decode("utf-8", "replace")

    return {
        "worker": result.worker,
        "exit_status": result.exit_status,
        "failure": result.failure,
        "detail": result.detail or None,
        "stdout": text("stdout"),
        "stderr": text("stderr"),
        "duration_s": round(result.duration_s, 3),
    }


def _end(record: SliceRecord, results: list[RemoteResult], *, quiet: bool) -> None:
    failed = [result for result in results if not result.ok]
    if not failed:
        return
    if len(results) == 1 and failed[0].exit_status is not None:
        raise typer.Exit(failed[0].exit_status)
    if quiet:
        raise typer.Exit(PartialError.exit_code)
    raise_for_failed(record, results)


def raise_for_failed(record: SliceRecord, results: list[RemoteResult]) -> None:
    """Raises what the failed ones of `results` amount to."""
    from tpuctl.core.fold import fold_label

    failed = [result for result in results if not result.ok]
    if not failed:
        return
    where = fold_label(record.name, [result.worker for result in failed])
    first = failed[0]
    said = first.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    why = first.detail or first.failure or (said[0] if said else f"exit status {first.exit_status}")
    kind = UnreachableError if all(result.failure == "connect" for result in results) else PartialError
    raise kind(f"{where}: {why}", details={"workers": [result.worker for result in failed]})


def ssh(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME] [ARGS]...", help="The slice; ARGS go to ssh.")
    ] = None,
    worker: Annotated[int, typer.Option("--worker", metavar="N", min=0, help="Which worker.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the ssh command instead.")] = False,
) -> None:
    """Open a shell on one worker with the real ssh, its host key pinned."""
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
    from tpuctl.workflows.slices import host_targets

    everyone = host_targets(context, record)
    target = choose_workers(record, [worker], everyone)[0]
    known_hosts = context.config.state_dir / "known_hosts" / record.name
    write_known_hosts(known_hosts, everyone)
    return ssh_argv(target, context.key_pair.private_path, known_hosts, extra)
