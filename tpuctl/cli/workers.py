"""Workers as named on the command line, and what it means when a command fails on some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import PartialError, TpuctlError, UnreachableError, UsageError
from tpuctl.lib.text import counted

if TYPE_CHECKING:
    from tpuctl.model.cloud import RemoteResult
    from tpuctl.model.records import RunRecord, SliceRecord


def check_workers(worker: str | None, all_workers: bool) -> None:
    """Raises UsageError for flags that exclude each other."""
    if all_workers and worker is not None:
        raise UsageError("--all-workers and --worker exclude each other", hint="keep one of them")


def choose(record: SliceRecord, worker: str | None) -> tuple[int, ...] | None:
    """The workers that the flag names, None for all. Raises UsageError."""
    from tpuctl.lib.text import parse_workers

    if worker is None:
        return None
    try:
        return parse_workers(worker, record.spec.hosts)
    except ValueError as error:
        raise UsageError(f"--worker: {error}", hint=f"tpuctl status {record.name}") from error


def choose_of_run(record: RunRecord, worker: str | None) -> tuple[int, ...] | None:
    """The same, of the workers that a run has now."""
    from tpuctl.lib.text import parse_workers

    known = record.attempt.workers if record.attempt else ()
    try:
        return None if worker is None else parse_workers(worker, max(known, default=0) + 1)
    except ValueError as error:
        raise UsageError(f"--worker: {error}", hint=f"tpuctl status {record.slice_name}") from error


def raise_for_failed(
    record: SliceRecord, results: list[RemoteResult], *, hint: str | None = None, partly: bool = False
) -> None:
    """Raises what the failed ones of `results` amount to; `hint` where there is no better one. `partly`: what
    failed was done in part."""
    from tpuctl.workers.exec import by_cause

    failed = [result for result in results if not result.ok]
    if not failed:
        return
    groups = by_cause(record.name, failed)
    said = "; ".join(f"{where}: {why}" for where, why in groups[:4])
    more = f"; and {counted(len(groups) - 4, 'other reason')}" if len(groups) > 4 else ""
    kind: type[TpuctlError] = PartialError if len(failed) < len(results) or partly else TpuctlError
    if all(result.failure == "connect" for result in results):
        kind, hint = UnreachableError, f"tpuctl status {record.name}"
    elif hint is None and any(result.failure == "connect" for result in failed):
        hint = f"`tpuctl up {record.name}` waits for hosts that are silent, and replaces them if they stay so"
    raise kind(
        f"{len(failed)} of {counted(len(results), 'worker')} failed: {said}{more}",
        hint=hint,
        details={"workers": [result.worker for result in failed]},
    )
