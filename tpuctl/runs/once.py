"""A program that looks at hosts before a run: one attempt within a limit, and what each worker reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tpuctl.engine.services import Services
from tpuctl.errors import PendingError
from tpuctl.model.records import RunRecord
from tpuctl.runs.follow import follow_run, start_run, stop_run
from tpuctl.runs.submit import Submission, submit_run

T = TypeVar("T")


def run_once(
    services: Services,
    submission: Submission,
    run_id: str,
    limit_s: float,
    parse: Callable[[str], T | None],
) -> tuple[RunRecord, dict[int, T | str]]:
    """The run when it is over, and by worker its report; the last line that it wrote where it made none.
    `limit_s` counts from when every worker runs; what goes on then is stopped."""
    record = submit_run(services, submission, run_id, named=True)
    started = start_run(services, record.id)
    try:
        ended = follow_run(services, record.id, deadline=services.clock.now() + limit_s)
    except PendingError:
        ended = stop_run(services, record.id)
    workers = started.attempt.workers if started.attempt is not None else ()
    return ended, {worker: _report_of(services, ended, worker, parse) for worker in workers}


def _report_of(services: Services, run: RunRecord, worker: int, parse: Callable[[str], T | None]) -> T | str:
    number = run.attempt.number if run.attempt is not None else 1
    written = {}
    for stream in ("stdout", "stderr"):
        path = Path(services.logs.path(run.id, number, worker, stream))
        written[stream] = path.read_text(errors="replace") if path.exists() else ""
    report = parse(written["stdout"])
    if report is not None:
        return report
    lines = [line.strip() for line in written["stderr"].splitlines() if line.strip()]
    return lines[-1] if lines else ""
