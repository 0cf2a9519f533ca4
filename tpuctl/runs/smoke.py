"""The smoke test of a slice: what each worker's process must find, and which workers stand out.

Its program is `templates/smoke.py`. Only the join of all processes shows a host that is missing, and only a
product on each device one that is slow or has fallen back to the CPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

MARK = "tpuctl-smoke "
"""What the program's one line begins with."""
SLOW = 3.0
"""So many times the median is slow: chips of a slice differ by a few percent."""
NOISE_S = 0.05
"""Less than this above the median is what the scheduler of a busy host takes."""


class SmokeReport(Struct, frozen=True):
    """What one process found. Times are of the second round, in seconds; `matmul_s` is the slowest device's."""

    backend: str
    devices: int
    processes: int
    matmul_s: float
    collective_s: float


class SmokeFinding(Struct, frozen=True):
    """What is wrong with one worker."""

    worker: int
    what: str


def parse_report(output: str) -> SmokeReport | None:
    """The report in what a process wrote; None where there is none, or none that can be read."""
    for line in output.splitlines():
        if line.startswith(MARK):
            try:
                return msgspec.json.decode(line.removeprefix(MARK), type=SmokeReport)
            except msgspec.MsgspecError:
                return None
    return None


def judge_smoke(
    reports: Mapping[int, SmokeReport | str], *, backend: str, devices: int
) -> Sequence[SmokeFinding]:
    """What is wrong, by worker. A worker without a report has the last line that it wrote instead. `backend` is
    what each is to run on, `devices` how many each must have at least."""
    found: list[SmokeFinding] = []
    whole = [report.matmul_s for report in reports.values() if isinstance(report, SmokeReport)]
    usual = statistics.median(whole) if whole else 0.0
    for worker, report in sorted(reports.items()):
        if isinstance(report, str):
            found.append(SmokeFinding(worker, f"did not finish: {report}" if report else "did not finish"))
            continue
        if report.backend != backend:
            found.append(SmokeFinding(worker, f"runs on {report.backend}, not on {backend}"))
        if report.devices < devices:
            found.append(SmokeFinding(worker, f"has {report.devices} of {devices} devices"))
        if report.processes < len(reports):
            found.append(SmokeFinding(worker, f"was joined by {report.processes} of {len(reports)} processes"))
        if report.matmul_s > max(SLOW * usual, usual + NOISE_S):
            found.append(SmokeFinding(worker, f"is slow: {report.matmul_s:.3f} s, others {usual:.3f} s"))
    return found


def smoke_rows(reports: Mapping[int, SmokeReport | str], found: Sequence[SmokeFinding]) -> list[dict[str, Any]]:
    """One row per worker, for a table or JSON: what it measured, and what is wrong with it or `ok`."""
    rows: list[dict[str, Any]] = []
    for worker, report in sorted(reports.items()):
        known = report if isinstance(report, SmokeReport) else None
        rows.append(
            {
                "worker": worker,
                "backend": known.backend if known else None,
                "devices": known.devices if known else None,
                "matmul_s": known.matmul_s if known else None,
                "collective_s": known.collective_s if known else None,
                "finding": "; ".join(each.what for each in found if each.worker == worker) or "ok",
            }
        )
    return rows
