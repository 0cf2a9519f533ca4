"""The numbers that a program prints: the expression that finds them, the files in which hosts keep them (see
`tpuctl/agent/columns.py`), and news of them. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.attempts import NOT_FINITE, UNSEARCHED, Attempt
from tpuctl.model.records import RunRecord
from tpuctl.model.run_spec import RunSpec
from tpuctl.model.verdict import wait_for
from tpuctl.runs.states import News, RunEvent, RunFinding

STEP, STEPS = "step", "steps"
"""Names of groups that tell how far a program is; the others are of its metrics."""
RATE = "steps/s"
"""A column that no program prints: it follows from steps and times."""
RATE_LEAST_S = 0.9
"""Hosts look once a second: what they read sooner, at the end, was not written so soon."""


class Span(Struct, frozen=True):
    """One number over the matches of a row, and its value in the last of them. All are alike where it was
    infinite or none."""

    mean: float
    low: float
    high: float
    last: float


class MetricRow(Struct, frozen=True):
    """Some matches in a row: until `at` (epoch seconds, by the host's clock) and `step`, `count` of them."""

    at: float
    step: float | None
    count: int
    values: Mapping[str, Span]


def metric_names(pattern: str) -> tuple[str, ...]:
    """The names of the numbers that a pattern finds beside the step, in its order."""
    return tuple(name for name in re.compile(pattern).groupindex if name not in (STEP, STEPS))


def watches_steps(spec: RunSpec) -> bool:
    """Whether its pattern finds a step: one with names may find other numbers alone."""
    return not stepless(spec.progress) if spec.progress else False


def stepless(pattern: str) -> str:
    """What is lacking where a pattern finds numbers and no step; empty where it lacks nothing."""
    names = re.compile(pattern).groupindex
    if not names or STEP in names:
        return ""
    return (
        f"--progress names {', '.join(names)} and no group is called step, so no step is known: "
        r"name it, as in 'step (?P<step>\d+)'"
    )


def find_not_finite(run: RunRecord, attempt: Attempt, workers: Sequence[WorkerStatus]) -> RunFinding | None:
    """The first number that is infinite or none, once an attempt; also of a program that has ended since."""
    told = {w.worker: w.not_finite for w in workers if w.not_finite is not None}
    if not told:
        return None
    worker = min(told, key=lambda each: (told[each].step is None, told[each].step or 0.0, each))
    why = f"{told[worker].said} (worker {worker})"
    if run.spec.on_nan == "stop":
        return RunFinding(RunEvent.NOT_FINITE_FOR_GOOD, why)
    if attempt.not_finite:
        return None
    new = News(NOT_FINITE, why, f"{why}; `tpuctl metrics {run.id}` shows how it came to that", warns=True)
    return RunFinding(
        RunEvent.NOT_FINITE,
        why,
        wait_for("the run"),
        changes={"not_finite": why},
        news=(new,),
    )


def find_unsearched(attempt: Attempt, workers: Sequence[WorkerStatus]) -> RunFinding | None:
    """That hosts have given up the expression, once an attempt."""
    why = next((w.progress_error for w in workers if w.progress_error), "")
    if not why or attempt.unsearched:
        return None
    said = f"--progress {why}: steps are no longer looked for"
    return RunFinding(
        RunEvent.UNSEARCHED,
        said,
        wait_for("the run"),
        changes={"unsearched": said},
        news=(News(UNSEARCHED, said, said, warns=True),),
    )


def parse_rows(data: bytes) -> list[MetricRow]:
    """The rows of a file, without those that cannot be read, such as the last of one that is being fetched."""
    head, *lines = data.decode("utf-8", "replace").split("\n")
    names = head.split(" ")[3:]
    rows = (_row(line, names) for line in lines[:-1])
    return [row for row in rows if row is not None]


def last_row(tail: bytes) -> MetricRow | None:
    """The last row of the end of a file, without its values."""
    lines = tail.decode("utf-8", "replace").split("\n")[:-1]
    return next(
        (row for line in reversed(lines) if (row := _row(" ".join(line.split(" ")[:3]), [])) is not None), None
    )


def _row(line: str, names: Sequence[str]) -> MetricRow | None:
    at, _, rest = line.partition(" ")
    step, _, rest = rest.partition(" ")
    count, *fields = rest.split(" ")
    try:
        spans = zip(names, map(_span, fields), strict=True)
        return MetricRow(
            float(at), _number(step), int(count), {name: span for name, span in spans if span is not None}
        )
    except ValueError:
        return None


def _number(text: str) -> float | None:
    return None if text == "-" else float(text)


def _span(text: str) -> Span | None:
    """ValueError for what is none."""
    if text == "-":
        return None
    mean, *ends = map(float, text.split(":"))
    low, high, last, *_ = (*ends, mean) if ends else (mean, mean, mean)  # earlier hosts wrote no last one
    return Span(mean, low, high, last)


def furthest(ends: Mapping[int, MetricRow | None]) -> int | None:
    """Of workers, by their last rows, the one that came furthest, as `hang.furthest` has it: the first of equal
    ones."""
    known = {worker: row for worker, row in sorted(ends.items()) if row is not None}
    return max(known, key=lambda each: -math.inf if (step := known[each].step) is None else step, default=None)


def thin_rows(rows: Sequence[MetricRow], most: int) -> list[MetricRow]:
    """At most so many, each for as many matches as near as it goes."""
    if len(rows) <= most:
        return list(rows)
    share, merged = sum(row.count for row in rows) / most, 0
    found: list[MetricRow] = []
    group: list[MetricRow] = []
    for row in rows:
        group.append(row)
        merged += row.count
        if merged >= share * (len(found) + 1):
            found.append(_merge(group))
            group = []
    return [*found, *([_merge(group)] if group else [])]


def _merge(rows: Sequence[MetricRow]) -> MetricRow:
    names = dict.fromkeys(name for row in rows for name in row.values)
    step = next((row.step for row in reversed(rows) if row.step is not None), None)
    spans = {
        name: _merge_spans([(row.count, row.values[name]) for row in rows if name in row.values])
        for name in names
    }
    return MetricRow(rows[-1].at, step, sum(row.count for row in rows), spans)


def _merge_spans(spans: Sequence[tuple[int, Span]]) -> Span:
    finite = [(count, span) for count, span in spans if math.isfinite(span.mean)]
    if not finite:
        return spans[-1][1]
    whole = sum(count for count, _ in finite)
    mean = sum(count * span.mean for count, span in finite) / whole
    low, high = min(span.low for _, span in finite), max(span.high for _, span in finite)
    return Span(mean, low, high, finite[-1][1].last)


def with_rates(rows: Sequence[MetricRow]) -> Iterator[MetricRow]:
    """The same with a column for the rate, where steps went on since the host looked before. The last row of a
    look has it: all of them have one time."""
    at = step = None
    for now, group in itertools.groupby(rows, lambda row: row.at):
        *others, row = group
        yield from others
        if row.step is None:
            yield row
            continue
        if at is None or step is None or row.step <= step:
            at, step = now, row.step
        elif now - at >= RATE_LEAST_S:
            rate = (row.step - step) / (now - at)
            at, step = now, row.step
            row = MetricRow(row.at, row.step, row.count, {**row.values, RATE: Span(rate, rate, rate, rate)})
        yield row
