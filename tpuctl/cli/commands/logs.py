"""`tpuctl logs`: what the workers of a run wrote."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from tpuctl.cli.clusters import seen_now
from tpuctl.cli.context import AppContext
from tpuctl.cli.following import follow as follow_to_end
from tpuctl.cli.following import goes_on
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.lib.names import parse_pattern
from tpuctl.lib.text import counted
from tpuctl.lib.time import parse_duration, render_instant, render_moment
from tpuctl.model.requests import LogsRequest

if TYPE_CHECKING:
    from tpuctl.lib.text import Place
    from tpuctl.model.records import RunRecord
    from tpuctl.runs.log_lines import LogBlock

LABELS = 1024
"""Of workers that wrote lines alike; there may be as many as there are sets of workers."""
PRINTED_BYTES = 1 << 16
"""Written at once where no person waits for them: a call for each few lines takes as long as the lines."""


def logs(context: AppContext, request: LogsRequest) -> None:
    """Print the output of a run.

    Lines of all workers in the order of time, whatever stream they were written to; what several wrote alike
    stands once, as `big[0-3]`. `--worker 3.2` is one process of a worker that has several.

    The output is kept on this machine. Ctrl-C stops following; the run goes on.
    """
    from tpuctl.runs.log_archive import restore_logs
    from tpuctl.state.repository import get_run

    record = seen_now(context, get_run(context, request.run).record)
    if record.attempt is None:
        raise NotFoundError(f"run {record.id} has not started yet", hint=f"tpuctl attach {record.id}")
    if request.follow and context.console.json_mode:
        raise UsageError("--json and --follow exclude each other", hint=f"tpuctl logs {record.id} --json")
    newest = record.attempt.number
    numbers = _numbers(record, newest, request.attempt, newest_only=request.follow)
    chosen, processes = _chosen(record, request.worker)
    pattern, begin = _pattern(request.grep), _begin(context, request.since)
    for number in numbers:
        restore_logs(context, record.id, number)
    here = [number for number in numbers if context.logs.has(record.id, number)]
    names = _logs(record, chosen, processes)
    lines = [(number, _blocks(context, record, number, names, begin, pattern)) for number in here]
    if context.console.json_mode:
        if not here:
            _say_where(context, record, numbers[-1], request.since)
        _print_json(context, lines)
        return
    if request.run == "last":
        context.console.say(f"run {record.id}")
    if here:
        _say_missing(context, record, [number for number in numbers if number not in here])
    stamped = request.timestamps
    printed = _print_attempts(context, record, lines, named=len(numbers) > 1, stamped=stamped)
    if request.follow and numbers[-1] == newest and not record.state.final:
        with context.interruptible(goes_on(record.id)):
            only = None if request.worker is None else chosen
            context.emit.show_only(only, pattern, stamped=stamped, processes=processes)
            follow_to_end(context, record.id, timeout=None)
    elif not printed:
        _say_where(context, record, numbers[-1], request.since, request.grep if here else None)


def _numbers(record: RunRecord, newest: int, attempt: int | None, *, newest_only: bool) -> Sequence[int]:
    """The attempts that are meant. Raises NotFoundError."""
    if attempt is None:
        return [newest] if newest_only else range(1, newest + 1)
    if not 1 <= attempt <= newest:
        has = counted(newest, "attempt")
        raise NotFoundError(f"run {record.id} has no attempt {attempt}: it has {has}", hint="tpuctl runs")
    return [attempt]


def _say_missing(context: AppContext, record: RunRecord, missing: Sequence[int]) -> None:
    """The output of an attempt is on another machine, or was never fetched."""
    for number in missing:
        context.console.say(f"attempt {number} of run {record.id}: no output of it is on this machine")


def _chosen(record: RunRecord, words: str | None) -> tuple[Sequence[int], frozenset[tuple[int, int]]]:
    """The workers that `words` name, all without, and the single processes. Raises UsageError."""
    from tpuctl.lib.text import parse_workers
    from tpuctl.model.processes import parse_places

    attempt = record.attempt
    if words is None or attempt is None:
        return attempt.workers if attempt is not None else (), frozenset()
    plain, processes = parse_places(words)
    try:
        workers = parse_workers(plain, max(attempt.workers) + 1) if plain or not processes else ()
        for worker, process in sorted(processes):
            if worker not in attempt.workers or process >= attempt.processes:
                has = counted(attempt.processes, "process", "processes")
                raise ValueError(f"there is no {worker}.{process}: each worker has {has}")
    except ValueError as error:
        raise UsageError(f"--worker: {error}", hint=f"tpuctl status {record.slice_name}") from error
    return workers, processes


def _logs(record: RunRecord, workers: Sequence[int], processes: frozenset[Place]) -> Sequence[tuple[int, str]]:
    """The logs of these, each by its worker and stream."""
    from tpuctl.model.processes import is_chosen, split_stream

    attempt = record.attempt
    if attempt is None:
        return []
    everything = [(worker, stream) for worker in attempt.workers for stream in attempt.streams]
    return [log for log in everything if is_chosen(split_stream(*log)[0], workers, processes)]


def _begin(context: AppContext, since: str | None) -> float | None:
    return None if since is None else context.clock.now() - parse_duration(since, "--since")


def _blocks(
    context: AppContext,
    record: RunRecord,
    number: int,
    logs: Sequence[tuple[int, str]],
    begin: float | None,
    pattern: re.Pattern[str] | None,
) -> Iterator[LogBlock]:
    from tpuctl.model.processes import split_stream
    from tpuctl.runs.log_archive import kept_blocks
    from tpuctl.runs.log_folding import fold_blocks
    from tpuctl.runs.log_lines import grep_blocks

    found = kept_blocks(context, record.id, number, logs, begin)
    if pattern is not None:
        found = grep_blocks(found, pattern)
    return fold_blocks(found, len({split_stream(*log)[0] for log in logs}))


def _say_where(
    context: AppContext, record: RunRecord, number: int, since: str | None, grep: str | None = None
) -> None:
    """Nothing was printed: either nothing was written, or another machine has it. Raises NotFoundError where
    this machine never had the output of that attempt."""
    from tpuctl.watch.cycle import list_heartbeats

    if grep is not None:
        context.console.say(f"no line in which {grep!r} is found")
        return
    if context.logs.has(record.id, number):
        last = f" in the last {since}" if since else ""
        context.console.say(f"the chosen workers wrote nothing{last} in attempt {number} of run {record.id}")
        return
    removed = context.logs.removed_at(record.id)
    if removed is not None:
        raise NotFoundError(
            f"the logs of run {record.id} were removed from this machine at {render_moment(removed)}:"
            f" all were more than logs_limit_mib ({context.config.logs_limit_mib})",
            hint="`tpuctl keep RUN` keeps those of a run; logs_limit_mib in your settings is the limit",
        )
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
        return None if grep is None else parse_pattern(grep)
    except ValueError as error:
        raise UsageError(f"--grep '{grep}' {error}") from error


def _print_attempts(
    context: AppContext,
    record: RunRecord,
    attempts: Sequence[tuple[int, Iterable[LogBlock]]],
    *,
    named: bool,
    stamped: bool,
) -> bool:
    """Whether there was anything to print."""
    printed = False
    for number, found in attempts:
        if named and record.attempt is not None:
            context.console.say(f"attempt {number} of {record.attempt.number}")
        printed = _print_blocks(found, record.slice_name, stamped=stamped) or printed
    return printed


def _print_blocks(blocks: Iterable[LogBlock], slice_name: str, *, stamped: bool) -> bool:
    """Whether there was anything to print."""
    from tpuctl.cli.live import output_prefix, output_stamp

    label_of = lru_cache(LABELS)(lambda workers: output_prefix(slice_name, workers, at=None).encode())
    waiting, room = bytearray(), 0 if sys.stdout.isatty() else PRINTED_BYTES
    printed = False
    try:
        for block in blocks:
            prefix = label_of(block.workers)
            if stamped and block.at is not None:
                prefix = output_stamp(block.at).encode() + prefix
            waiting += prefix + "\n".join(block.texts).encode().replace(b"\n", b"\n" + prefix) + b"\n"
            printed = True
            if len(waiting) >= room:
                _put(waiting)
    finally:
        _put(waiting)
    return printed


def _put(waiting: bytearray) -> None:
    sys.stdout.buffer.write(waiting)
    sys.stdout.flush()
    waiting.clear()


def _print_json(context: AppContext, attempts: Sequence[tuple[int, Iterable[LogBlock]]]) -> None:
    """A list, an object a line: it may be longer than memory."""
    import json

    from tpuctl.model.processes import worker_of

    between = "[\n"
    for number, block in ((number, block) for number, blocks in attempts for block in blocks):
        row = {
            "attempt": number,
            "time": None if block.at is None else render_instant(block.at, whole=True),
            "workers": sorted({worker_of(place) for place in block.workers}),
            "processes": [f"{place[0]}.{place[1]}" for place in block.workers if not isinstance(place, int)],
            "stream": block.stream,
        }
        for text in block.texts:
            context.console.out.write(between + json.dumps({**row, "text": text}, ensure_ascii=False))
            between = ",\n"
    context.console.line("[]" if between.startswith("[") else "\n]")
