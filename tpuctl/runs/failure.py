"""What the end of an attempt means: whose fault it was, what to do, and whether it would come again.

The texts are a table, `manifests/tables/failures.yaml`. A worker that ended because another one did is a
consequence: the first cause is that of the worker that ended first, by the clocks of the hosts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.text import fold_workers
from tpuctl.model.attempts import Attempt, Cause, Failure, Fault
from tpuctl.model.processes import place_of
from tpuctl.model.records import RunRecord

END_LINES = 40
"""An exception further from the end of what a program wrote did not end it: it went on after that."""
EVIDENCE_MAX = 300
LINE_ENDS = 2000
"""Characters at either end of a line that are searched: to look through one without end takes the square of its
length."""
_BY_ITSELF = frozenset({WorkerState.EXITED, WorkerState.LOST})
_TRACEBACK = "Traceback (most recent call last):"
_RANK = re.compile(r"^\[(?:rank)?\d+\]: ?")
"""What torchrun and mpirun put before the lines of a process."""
_EXCEPTION = re.compile(r"^(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b")
_OF_WORKERS = frozenset({Cause.FAILED, Cause.HOST_LOST})
_WITHOUT = frozenset({Cause.SUCCEEDED, Cause.STOPPED, Cause.RESTART_ASKED})


class PatternSource(StrEnum):
    """Where the pattern of a signature is searched."""

    LOG = "log"
    ERROR = "error"
    END = "end"
    CAUSE = "cause"


class Signature(Struct, frozen=True):
    """One row of the table. `peer`: a consequence of another worker's end. `hardware`: the second time on the
    same worker another slice is asked for."""

    id: str
    whose: Fault
    pattern: re.Pattern[str]
    meaning: str
    remedy: str
    retry: bool
    sample: str
    of: PatternSource = PatternSource.LOG
    peer: bool = False
    hardware: bool = False


class WorkerLog(Struct, frozen=True):
    """The ends of what one worker wrote."""

    stdout: str = ""
    stderr: str = ""


class _Match(Struct, frozen=True):
    """What one worker's end was found to be."""

    signature: Signature
    groups: Mapping[str, str]
    evidence: str
    worker: int | None
    ended_at: float
    process: int | None = None


def parse_signatures(data: Mapping[str, Any]) -> tuple[Signature, ...]:
    """The rows of `manifests/tables/failures.yaml`, in order."""
    return msgspec.convert(
        data["signatures"], tuple[Signature, ...], dec_hook=lambda _, text: re.compile(text, re.MULTILINE)
    )


def failed_workers(workers: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    """Those that ended by themselves without success: neither told to by us nor with their host."""
    return [
        worker
        for worker in workers
        if worker.state in _BY_ITSELF
        and not (worker.succeeded or worker.stop_asked or worker.stopped or worker.rebooted)
    ]


def name_failure(
    table: Sequence[Signature],
    run: RunRecord,
    attempt: Attempt,
    workers: Sequence[WorkerStatus],
    logs: Mapping[int, WorkerLog],
) -> Failure | None:
    """What ended `attempt`; None where nothing failed. `logs` are of `failed_workers`.

    Where hosts were lost, a worker of another one counts only if its end is certain to come again: that is a
    bug, and no preemption, whatever happened beside it.
    """
    cause = attempt.cause
    if cause is None or cause in _WITHOUT:
        return None
    found: _Match | None = None
    if cause in _OF_WORKERS:
        matches = [
            _match_worker(table, worker, logs.get(worker.worker, WorkerLog()))
            for worker in failed_workers(workers)
        ]
        if cause is Cause.HOST_LOST:
            matches = [match for match in matches if not match.signature.retry]
        found = min(matches, key=lambda match: (match.signature.peer, match.ended_at), default=None)
    if found is None and cause is Cause.FAILED:
        # Workers could not be prepared or started: what they answered says why.
        said = _with_short_lines(attempt.suspect_why)
        found = _search(table, dict.fromkeys((PatternSource.LOG, PatternSource.ERROR), said), None, 0.0)
    if found is None:
        found = _match_cause(table, cause, attempt.suspect_why, _lost_worker(workers))
    return _failure(found, run, attempt.mend)


def _lost_worker(workers: Sequence[WorkerStatus]) -> int | None:
    silent = {WorkerState.LOST, WorkerState.UNREACHABLE}
    return next((each.worker for each in workers if each.state in silent or each.event), None)


def _failure(found: _Match, run: RunRecord, mend: str) -> Failure:
    signature = found.signature
    names = {
        "mend": mend,
        "run": run.id,
        "slice": run.slice_name,
        "worker": "all" if found.worker is None else fold_workers([place_of(found.worker, found.process)]),
    }
    words = {**found.groups, **names}
    return Failure(
        signature=signature.id,
        whose=signature.whose,
        worker=found.worker,
        process=found.process,
        evidence=found.evidence[:EVIDENCE_MAX],
        meaning=signature.meaning.format_map(words),
        remedy=signature.remedy.format_map(words),
        retry=signature.retry,
    )


def _match_worker(table: Sequence[Signature], worker: WorkerStatus, log: WorkerLog) -> _Match:
    end = describe_end(worker)
    wrote = {
        PatternSource.LOG: _with_short_lines(f"{log.stdout}\n{log.stderr}"),
        PatternSource.ERROR: _with_short_lines(ending_line(log.stderr) or ending_line(log.stdout)),
        PatternSource.END: end,
    }
    at = worker.failed_at if worker.failed_at is not None else float("inf")
    found = _search(table, wrote, worker.worker, at) or _match_cause(table, Cause.HOST_LOST, end, worker.worker)
    return replace(found, process=worker.process)


def _with_short_lines(text: str) -> str:
    """What is searched of `text`. Progress bars write many lines in one, each over the last."""
    lines = re.split(r"[\r\n]", text)
    return "\n".join(
        line if len(line) <= 2 * LINE_ENDS else f"{line[:LINE_ENDS]}\n{line[-LINE_ENDS:]}" for line in lines
    )


def _match_cause(table: Sequence[Signature], cause: Cause, why: str, worker: int | None) -> _Match:
    found = _search(table, {PatternSource.CAUSE: str(cause)}, worker, float("inf"))
    if found is None:
        raise LookupError(f"the table of failures has no row for the cause {cause}")
    return _Match(found.signature, {}, why, worker, found.ended_at)


def _search(
    table: Sequence[Signature], texts: Mapping[PatternSource, str], worker: int | None, at: float
) -> _Match | None:
    for signature in table:
        text = texts.get(signature.of, "")
        match = signature.pattern.search(text) if text else None
        if match is not None:
            groups = {name: value or "" for name, value in match.groupdict().items()}
            line = text[: match.start()].rpartition("\n")[2] + text[match.start() :].partition("\n")[0]
            return _Match(signature, groups, line.strip(), worker, at)
    return None


def describe_end(worker: WorkerStatus) -> str:
    """How a worker ended, as the table has it: `signal 9 oom`, `exit 127: cannot run x`. A shell says 137 for a
    child that signal 9 ended."""
    number, status = worker.signal, worker.exit_status
    if number is None and status is not None and 128 < status <= 128 + 64:
        number = status - 128
    words = f"signal {number}" if number is not None else f"exit {status}" if status is not None else "lost"
    oom = " oom" if worker.oom_kills else ""
    return f"{words}{oom}: {worker.detail}" if worker.detail else f"{words}{oom}"


def ending_line(text: str) -> str:
    """The exception with which a Python program ended, else its last line."""
    lines = [_RANK.sub("", line) for line in text.splitlines() if line.strip()][-END_LINES:]
    begins = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    behind = lines[begins[-1] + 1 :] if begins else []
    raised = next((line for line in behind if not line[0].isspace()), "")
    if raised:
        return raised
    named = [line for line in lines if _EXCEPTION.match(line)]
    return named[-1] if named else lines[-1] if lines else ""


def describe_failure(failure: Failure) -> str:
    """`worker 3: Python does not find flax (module-not-found, environment)`."""
    place = None if failure.worker is None else place_of(failure.worker, failure.process)
    who = "" if place is None else f"worker {fold_workers([place])}: "
    whose = f", {failure.whose}" if failure.whose is not Fault.UNKNOWN else ""
    return f"{who}{failure.meaning} ({failure.signature}{whose})"
