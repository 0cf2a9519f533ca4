"""The numbers of a run's program over its attempts, as far as they are kept: for people, and as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.lib.text import counted
from tpuctl.lib.time import render_instant
from tpuctl.model.attempts import Attempt, Cause
from tpuctl.model.processes import METRICS
from tpuctl.model.records import RunRecord
from tpuctl.runs.log_archive import restore_logs
from tpuctl.runs.metrics import RATE, MetricRow, Span, furthest, last_row, parse_rows, thin_rows, with_rates
from tpuctl.state.repository import list_attempts
from tpuctl.views.plot import Drawing, Mark, Point, draw_curves, draw_line

LINE_WIDTH, PAGE_POINTS = 40, 400
"""Bars of a line on a screen, and points of a curve in a page."""
TAIL_BYTES, FILE_MAX = 16 << 10, 64 << 20
"""Of a file: so much has its last row, and more is none of ours."""
ATTEMPTS_MAX = 30
"""The newest attempts of a run are drawn."""
_LOST = frozenset({Cause.PREEMPTED, Cause.HOST_LOST})
_GOOD = frozenset({Cause.SUCCEEDED, Cause.STOPPED})


class AttemptMetrics(Struct, frozen=True):
    """Of one attempt, by the worker that came furthest. `cause` is why it ended, empty while it goes on."""

    number: int
    worker: int
    rows: tuple[MetricRow, ...]
    cause: str = ""

    @property
    def last_step(self) -> float | None:
        return next((row.step for row in reversed(self.rows) if row.step is not None), None)

    @property
    def said(self) -> str:
        """`attempt 1: steps 0 to 420, preempted`."""
        steps = [row.step for row in self.rows if row.step is not None]
        span = f"steps {steps[0]:.12g} to {steps[-1]:.12g}" if steps else counted(len(self.rows), "row")
        return f"attempt {self.number}: {span}, {self.cause or 'goes on'}"


class MetricColumn(Struct, frozen=True):
    """One number of a run: its last value, None for what is infinite or no number; the least and most of all
    attempts, and how it went as a line."""

    name: str
    last: float | None
    low: float | None
    high: float | None
    line: str


def attempt_metrics(services: Services, run_id: str, attempt: Attempt) -> AttemptMetrics | None:
    """What this machine has of one attempt; None where that is nothing."""
    ends: dict[int, MetricRow | None] = {}
    for worker in attempt.workers:
        tail = services.logs.tail(run_id, attempt.number, worker, METRICS, TAIL_BYTES)
        ends[worker] = last_row(tail)
    ahead = furthest(ends)
    if ahead is None:
        return None
    data = services.logs.read(run_id, attempt.number, ahead, METRICS, 0, FILE_MAX)
    cause = str(attempt.cause) if attempt.cause is not None else ""
    return AttemptMetrics(attempt.number, ahead, tuple(parse_rows(data)), cause)


def run_metrics(services: Services, run: RunRecord) -> list[AttemptMetrics]:
    """Those of the newest attempts of a run, oldest first; also what other machines put into a shared store."""
    attempts = {each.number: each for each in list_attempts(services, run.id)}
    if run.attempt is not None:
        attempts[run.attempt.number] = run.attempt
    found = []
    for number in sorted(attempts)[-ATTEMPTS_MAX:]:
        restore_logs(services, run.id, number)
        found.append(attempt_metrics(services, run.id, attempts[number]))
    return [each for each in found if each is not None]


def last_values(services: Services, runs: Iterable[RunRecord]) -> dict[str, dict[str, float | None]]:
    """The last numbers of each run's last attempt, as far as this machine has them, by run and name."""
    found = {}
    for run in runs:
        last = attempt_metrics(services, run.id, run.attempt) if run.spec.progress and run.attempt else None
        if last is not None:
            found[run.id] = {column.name: column.last for column in columns([last])}
    return found


def columns(attempts: Sequence[AttemptMetrics], width: int = LINE_WIDTH) -> list[MetricColumn]:
    """The columns of these attempts, in the order of the expression, and at the end the rate. Thinning keeps
    the extremes."""
    thin = [thin_rows(list(with_rates(each.rows)), 4 * width) for each in attempts]
    found = []
    for name in _names(thin):
        spans = [[row.values[name] for row in rows if name in row.values] for rows in thin]
        finite = [span for each in spans for span in each if math.isfinite(span.mean)]
        found.append(
            MetricColumn(
                name,
                next(_finite(each[-1].last) for each in reversed(spans) if each),
                min((span.low for span in finite), default=None),
                max((span.high for span in finite), default=None),
                draw_line([[span.mean for span in each] for each in spans], width),
            )
        )
    return found


def _names(attempts: Iterable[Iterable[MetricRow]]) -> list[str]:
    names = dict.fromkeys(name for rows in attempts for row in rows for name in row.values)
    return [*(name for name in names if name != RATE), *(name for name in names if name == RATE)]


def data_rows(attempts: Sequence[AttemptMetrics]) -> list[dict[str, Any]]:
    """All rows as data; what is infinite or no number has no value that JSON knows."""
    return [
        {
            "attempt": each.number,
            "worker": each.worker,
            "time": render_instant(row.at, whole=True),
            "step": row.step,
            "count": row.count,
            "values": {name: _cells(span) for name, span in row.values.items()},
        }
        for each in attempts
        for row in each.rows
    ]


def _cells(span: Span) -> dict[str, float | None]:
    return {"mean": _finite(span.mean), "min": _finite(span.low), "max": _finite(span.high)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def csv_rows(attempts: Sequence[AttemptMetrics]) -> list[list[Any]]:
    """The same as a table, with its head: columns `X`, `X_min` and `X_max` for each name X."""
    names = _names(each.rows for each in attempts)
    head = [
        "attempt",
        "worker",
        "time",
        "step",
        "count",
        *(n + end for n in names for end in ("", "_min", "_max")),
    ]
    return [head, *([*_row(each, row), *_values(row, names)] for each in attempts for row in each.rows)]


def _row(attempt: AttemptMetrics, row: MetricRow) -> list[Any]:
    step = "" if row.step is None else f"{row.step:.15g}"
    return [attempt.number, attempt.worker, render_instant(row.at, whole=True), step, row.count]


def _values(row: MetricRow, names: Sequence[str]) -> Iterable[Any]:
    for name in names:
        span = row.values.get(name)
        yield from ("", "", "") if span is None else (span.mean, span.low, span.high)


def curves(attempts: Sequence[AttemptMetrics]) -> list[Drawing]:
    """For the page of a run: a picture of each column over the steps, or where no step is known over the rows.
    The ends of attempts are marked."""
    thin = [thin_rows(list(with_rates(each.rows)), PAGE_POINTS) for each in attempts]
    by_step = all(row.step is not None for rows in thin for row in rows)
    places: list[list[float]] = []
    begin = 0
    for rows in thin:
        places.append(
            [row.step if by_step and row.step is not None else begin + n for n, row in enumerate(rows)]
        )
        begin += len(rows)
    marks = [
        Mark(place[-1], f"attempt {each.number}: {each.cause}", "lost" if each.cause in _LOST else "bad")
        for each, place in zip(attempts, places, strict=True)
        if each.cause and each.cause not in _GOOD
    ]
    found = []
    for name in _names(thin):
        points = [
            [_point(x, row.values[name]) for x, row in zip(place, rows, strict=True) if name in row.values]
            for place, rows in zip(places, thin, strict=True)
        ]
        found.append(draw_curves(name, points, marks))
    return found


def _point(x: float, span: Span) -> Point:
    return Point(x, span.mean, span.low, span.high)
