"""`tpuctl logs`: what the workers of a run wrote."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.following import follow as follow_to_end
from tpuctl.cli.following import goes_on
from tpuctl.cli.invocation import invocation
from tpuctl.cli.options import RunId, Workers
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.lib.shell import quote
from tpuctl.lib.text import counted

if TYPE_CHECKING:
    from tpuctl.model.records import RunRecord


def logs(
    ctx: typer.Context,
    run_id: RunId = "last",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the run ends.")] = False,
    worker: Workers = None,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only lines in which this is found.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="This attempt; the newest if left out.")
    ] = None,
) -> None:
    """Print the output of a run.

    The output is kept on this machine. Ctrl-C stops following; the run goes on.
    """
    from tpuctl.lib.text import parse_workers
    from tpuctl.state.repository import get_run

    with open_context(ctx) as context:
        record = get_run(context, run_id).record
        if record.attempt is None:
            raise NotFoundError(f"run {record.id} has not started yet", hint=f"tpuctl attach {record.id}")
        if follow and grep is not None:
            raise UsageError(
                "--grep goes without --follow", hint=f"tpuctl logs {record.id} --grep {quote(grep)}"
            )
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
        printed = _print_logs(context, record, number, chosen, _pattern(grep))
        if follow and number == newest and not record.state.final:
            invocation(ctx).if_interrupted = goes_on(record.id)
            context.emit.show_only(None if worker is None else chosen)
            follow_to_end(context, record.id, timeout=None)
        elif not printed and grep is not None:
            context.console.say(f"no line in which {grep!r} is found")
        elif not printed:
            _say_where(context, record, number)


def _say_where(context: AppContext, record: RunRecord, number: int) -> None:
    """Nothing was printed: either nothing was written, or another machine has it. Raises NotFoundError where
    this machine never had the output of that attempt."""
    from tpuctl.watch.cycle import list_heartbeats

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


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    """Raises UsageError."""
    try:
        return None if grep is None else re.compile(grep)
    except re.error as error:
        raise UsageError(f"--grep {grep!r} is no regular expression: {error}") from error


def _print_logs(
    context: AppContext,
    record: RunRecord,
    number: int,
    workers: tuple[int, ...],
    pattern: re.Pattern[str] | None,
) -> bool:
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
                    if pattern is not None and pattern.search(line) is None:
                        continue
                    target.write(f"{prefix}{line.rstrip(chr(10))}\n")
                    printed = True
            target.flush()
    return printed
