"""The smoke test of a slice: what each worker's process must find, and which workers stand out.

Its program is `templates/smoke.py`. Only the join of all processes shows a host that is missing, and only a
product on each device one that is slow or has fallen back to the CPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from tpuctl.lib.text import fold_workers

MARK = "tpuctl-smoke "
"""What the line with the program's report begins with."""
STEP_MARK = "tpuctl-smoke-step "
"""What a line begins with that says to which step it comes, and then what its products took, once it knows."""
SLOW = 3.0
"""So many times the others' median is slow: chips of a slice differ by a few percent."""
NOISE_S = 0.05
"""Less than this above the median is what the scheduler of a busy host takes."""
STEPS = ("start", "join", "devices", "collective")
"""Of the program, in their order."""
TOGETHER = frozenset({"join", "collective"})
"""Steps that end for nobody before all have come to them."""


class SmokeReport(Struct, frozen=True):
    """What one process found. Times are of the second round, in seconds; `matmul_s` is the slowest device's."""

    backend: str
    devices: int
    processes: int
    matmul_s: float
    collective_s: float


class Unfinished(Struct, frozen=True):
    """A process that made no report: the step that it came to, the last line of its errors, and what the
    slowest product took, if it came so far."""

    step: str = STEPS[0]
    said: str = ""
    matmul_s: float | None = None


Reports = Mapping[int, SmokeReport | Unfinished]


class SmokeFinding(Struct, frozen=True):
    """What is wrong with one worker."""

    worker: int
    what: str


def parse_report(output: str, said: str) -> SmokeReport | Unfinished:
    """The report in what a process wrote, or how far it came; `said` is the last line of its errors."""
    step, matmul_s = STEPS[0], None
    for line in output.splitlines():
        if line.startswith(MARK):
            try:
                return msgspec.json.decode(line.removeprefix(MARK), type=SmokeReport)
            except (msgspec.MsgspecError, RecursionError):
                break
        found, _, took = line.removeprefix(STEP_MARK).partition(" ")
        if line.startswith(STEP_MARK) and found in STEPS:
            step = found
            with suppress(ValueError):  # the line was cut off
                matmul_s = float(took)
    return Unfinished(step, said, matmul_s)


def judge_smoke(reports: Reports, *, backend: str, devices: int) -> Sequence[SmokeFinding]:
    """What is wrong, by worker; with those that wait for another one nothing is. `backend` is what each is to
    run on, `devices` how many each must have at least."""
    found: list[SmokeFinding] = []
    slow = _slow(reports)
    for worker, report in sorted(reports.items()):
        if worker in slow:
            found.append(SmokeFinding(worker, slow[worker]))
        if isinstance(report, Unfinished):
            if worker not in slow and not _waited_for(reports, worker):
                found.append(SmokeFinding(worker, _unfinished(reports, report)))
            continue
        if report.backend != backend:
            found.append(SmokeFinding(worker, f"runs on {report.backend}, not on {backend}"))
        if report.devices < devices:
            found.append(SmokeFinding(worker, f"has {report.devices} of {devices} devices"))
        if report.processes < len(reports):
            found.append(SmokeFinding(worker, f"was joined by {report.processes} of {len(reports)} processes"))
    return found


def _slow(reports: Reports) -> Mapping[int, str]:
    """Workers whose products took much longer than those of the others, also where these gave up waiting."""
    times = {worker: each.matmul_s for worker, each in reports.items() if each.matmul_s is not None}
    slow = {}
    for worker, took in times.items():
        others = [time for each, time in times.items() if each != worker]
        usual = statistics.median_low(others) if others else took
        if took > max(SLOW * usual, usual + NOISE_S):
            slow[worker] = f"is slow: {took:.3f} s, others {usual:.3f} s"
    return slow


def _waited_for(reports: Reports, worker: int) -> list[int]:
    """The workers without which this one cannot end its step."""
    own = reports[worker]
    if not isinstance(own, Unfinished) or own.step not in TOGETHER:
        return []
    at, slow = STEPS.index(own.step), _slow(reports)
    return sorted(
        other
        for other, report in reports.items()
        if isinstance(report, Unfinished)
        and (STEPS.index(report.step) < at or (other in slow and worker not in slow))
    )


def _unfinished(reports: Reports, report: Unfinished) -> str:
    steps = {each.step if isinstance(each, Unfinished) else "" for each in reports.values()}
    if len(reports) > 1 and steps == {report.step} <= TOGETHER:
        return f"waited in vain for the others: none came past `{report.step}`"
    return f"did not finish: {report.said}" if report.said else "did not finish"


def smoke_rows(reports: Reports, found: Sequence[SmokeFinding]) -> list[dict[str, Any]]:
    """One row per worker, for a table or JSON: what it measured, and what is wrong with it or `ok`."""
    rows: list[dict[str, Any]] = []
    for worker, report in sorted(reports.items()):
        known = report if isinstance(report, SmokeReport) else None
        wrong = [each.what for each in found if each.worker == worker]
        waited = _waited_for(reports, worker)
        wrong += [f"waits for worker {fold_workers(waited)}"] if waited else []
        rows.append(
            {
                "worker": worker,
                "backend": known.backend if known else None,
                "devices": known.devices if known else None,
                "matmul_s": report.matmul_s,
                "collective_s": known.collective_s if known else None,
                "finding": "; ".join(wrong) or "ok",
            }
        )
    return rows
