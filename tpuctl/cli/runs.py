"""`runs`, `logs`, `stop`, `attach`, `manifest`: runs that were started before."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.app import invocation
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.follow import follow as follow_to_end
from tpuctl.cli.follow import follow_or_leave, goes_on, print_run, stop_run
from tpuctl.cli.options import DryRun, Json, Quiet, RunId, Timeout, Workers, Yes
from tpuctl.cli.slice import confirm
from tpuctl.core.counting import counted
from tpuctl.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from tpuctl.core.records import RunRecord

RUNS = (
    Column("id", "RUN"),
    Column("slice", "SLICE", give=1),
    Column("state", "STATE"),
    Column("attempts", "ATTEMPTS"),
    Column("created", "CREATED (UTC)"),
    Column("command", "COMMAND", give=2, most=2),
)


def runs(ctx: typer.Context, json: Json = False) -> None:  # noqa: ARG001 - acts through its callback
    """List runs, newest first."""
    from tpuctl.workflows.report import run_rows

    with open_context(ctx) as context:
        rows, json_mode = run_rows(context), context.console.json_mode
        shown = rows if json_mode else [_run_line(row) for row in rows]
        context.console.table(shown, RUNS, empty="no runs; start one with `tpuctl run SCRIPT`")


def _run_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """A run as a person reads it; its command can be pasted."""
    lost = f", {row['preemptions']} lost" if row["preemptions"] else ""
    return {
        **row,
        "attempts": f"{row['attempts']}{lost}",
        "created": row["created"][: len("2026-11-21T10:15")].replace("T", " "),
        "command": shlex.join(row["command"]),
    }


def logs(
    ctx: typer.Context,
    run_id: RunId = "last",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    worker: Workers = None,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="This attempt; the newest if left out.")
    ] = None,
) -> None:
    """Print the output of a run.

    It is read from this machine, where the output is kept. Ctrl-C leaves; the run goes on.
    """
    from tpuctl.core.fold import parse_workers
    from tpuctl.workflows.documents import get_run

    with open_context(ctx) as context:
        record = get_run(context, run_id).record
        if record.attempt is None:
            raise NotFoundError(f"run {record.id} has not started yet", hint=f"tpuctl attach {record.id}")
        newest = record.attempt.number
        number = newest if attempt is None else attempt
        if not 1 <= number <= newest:
            has = counted(newest, "attempt")
            raise NotFoundError(f"run {record.id} has no attempt {number}: it has {has}", hint="tpuctl runs")
        known = record.attempt.workers
        try:
            chosen = known if worker is None else parse_workers(worker, max(known) + 1)
        except ValueError as error:
            raise UsageError(f"--worker: {error}", hint=f"tpuctl status {record.slice_name}") from error
        printed = _print_logs(context, record, number, chosen)
        if follow and number == newest and not record.state.final:
            invocation(ctx).if_interrupted = goes_on(record.id)
            context.emit.show_only(None if worker is None else chosen)
            follow_to_end(context, record.id, timeout=None)
        elif not printed:
            _say_where(context, record, number)


def _say_where(context: AppContext, record: RunRecord, number: int) -> None:
    """Nothing was printed: either nothing was written, or another machine has it. Raises NotFoundError where
    this machine never had the output of that attempt."""
    from tpuctl.workflows.watch import list_heartbeats

    if context.logs.has(record.id, number):
        context.console.say(f"the chosen workers wrote nothing in attempt {number} of run {record.id}")
        return
    hosts = sorted({beat.host for beat in list_heartbeats(context) if beat.machine != context.machine})
    passes = f"; {', '.join(hosts)} made passes and may have it" if hosts else ""
    what = f"attempt {number} of run {record.id}"
    if record.state.final or number != (record.attempt.number if record.attempt else 0):
        raise NotFoundError(
            f"the output of {what} is not on this machine: whichever machine followed it has it{passes}",
            hint=f"there: tpuctl logs {record.id} --attempt {number}",
        )
    raise NotFoundError(
        f"nothing of the output of {what} has been fetched to this machine yet",
        hint=f"tpuctl logs {record.id} --follow",
    )


def _print_logs(context: AppContext, record: RunRecord, number: int, workers: tuple[int, ...]) -> bool:
    """Whether there was anything to print."""
    printed = False
    for worker in workers:
        for stream, target in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            path = Path(context.logs.path(record.id, number, worker, stream))
            if not path.exists():
                continue
            prefix = f"{record.slice_name}-{worker} │ "
            with path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    target.write(f"{prefix}{line.rstrip(chr(10))}\n")
                    printed = True
            target.flush()
    return printed


def stop(
    ctx: typer.Context,
    run_id: RunId = "last",
    grace: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Between TERM and KILL.")
    ] = None,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Stop a run.

    Every process of it gets TERM, and KILL after the grace period.
    """
    from tpuctl.workflows.documents import get_run
    from tpuctl.workflows.stops import settle_stop, stop_error

    with open_context(ctx) as context:
        record = get_run(context, run_id).record
        if dry_run:
            _show_stop(context, record)
            return
        if not record.state.final:
            confirm(context, f"stop run {record.id}?", yes=yes)
        invocation(ctx).if_interrupted = f"the stop goes on: `tpuctl attach {record.id}` waits for the end"
        context.emit.show_only(())  # what it wrote is for `tpuctl logs`
        stopped = stop_run(context, record.id, grace, timeout)
        if record.state.final:
            stopped = settle_stop(context, record.id)
        context.emit.close()
        error = stop_error(context, stopped)
        if error is not None:
            raise error
        print_run(context, record.id)


def _show_stop(context: AppContext, record: RunRecord) -> None:
    over = record.state.final
    told = f"run {record.id} is over: it {record.state}" if over else f"would stop run {record.id}"
    if context.console.json_mode:
        context.console.data({"dry_run": True, "id": record.id, "state": record.state, "would_stop": not over})
    else:
        context.console.sentence(f"{told}{'' if over else f' ({record.state})'}")


def attach(
    ctx: typer.Context,
    run_id: RunId = "last",
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Restart it although attempts ended without a newer checkpoint.")
    ] = False,
    timeout: Timeout = None,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Follow a run that was started earlier.

    It may have been started on another machine. Ctrl-C leaves; the run goes on.
    """
    from tpuctl.workflows import progress
    from tpuctl.workflows.documents import get_run

    with open_context(ctx) as context:
        record = get_run(context, run_id).record
        if go_on:
            record = progress.go_on(context, record.id)
        follow_or_leave(context, invocation(ctx), record, detach=False, timeout=timeout)


def manifest(
    ctx: typer.Context,
    run_id: RunId = "last",
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="This attempt; the last one that has ended if left out.")
    ] = None,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Show what an attempt ran, where, and with which versions.

    This is its manifest, which also says how it ended.
    """
    from tpuctl.workflows.documents import get_run
    from tpuctl.workflows.report import manifest_of

    with open_context(ctx) as context:
        record = get_run(context, run_id).record
        found = manifest_of(context, record.id, attempt)
        if found is None:
            raise _no_manifest(record, attempt)
        if context.console.json_mode:
            context.console.data(found)
            return
        import yaml

        context.console.line(yaml.safe_dump(found, sort_keys=False, allow_unicode=True).rstrip())


def _no_manifest(record: RunRecord, attempt: int | None) -> NotFoundError:
    begun = record.attempt.number if record.attempt else 0
    if attempt is not None and not 1 <= attempt <= begun:
        has = f"it has {counted(begun, 'attempt')}" if begun else "it has not begun"
        return NotFoundError(f"run {record.id} has no attempt {attempt}: {has}", hint="tpuctl runs")
    told = f"no attempt of run {record.id} has ended yet"
    if attempt is not None:
        told = f"attempt {attempt} of run {record.id} goes on"
    return NotFoundError(told, hint=f"tpuctl attach {record.id}")
