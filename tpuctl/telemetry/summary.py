"""Many hosts on one screen: rows that are alike as one, the spread of figures, and who is slowest. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from tpuctl.lib.text import fold_workers

Figures = Mapping[str, float | None]
WIDTHS = (1.0, 5.0, 10.0, 25.0, 50.0, math.inf)
"""Figures are alike that are so near to each other, in percent of the largest one of all. Rows are folded with
the first of these with which there is room for them."""
LEAST_SCALE = {
    **dict.fromkeys(("duty_percent", "cpu_percent"), 100.0),
    **dict.fromkeys(("disk_read_s", "disk_written_s", "net_in_s", "net_out_s"), 100.0 * (1 << 20)),
    "memory_used": 64.0 * (1 << 30),
    **dict.fromkeys(("step_age_s", "checkpoint_s", "checkpoint_blocks_s"), 60.0),
    "since_checkpoint_s": 3600.0,
}
"""What is little beside these is alike, even where it is the largest one."""
STEPS = "step"
STEPS_NOISE = 1.0
"""Hosts are asked one after the other while steps go on."""
SLOW_RATE, SLOW_DUTY = 0.9, 20.0
"""A worker is slow below this part of the usual rate, or with so many points of duty less than usual."""


class FigureRow(Struct, frozen=True):
    """What is told of `place` of a worker: all of it, or one chip. `text` is never folded with another."""

    worker: int
    place: int
    figures: Figures
    text: str = ""


class Folded(Struct, frozen=True):
    """Rows that are alike: of all these workers the same places. `figures`: the least and the most; None where
    nothing is known."""

    workers: tuple[int, ...]
    places: tuple[int, ...]
    figures: Mapping[str, tuple[float, float] | None]
    text: str = ""


class Spread(Struct, frozen=True):
    """Of one figure over all rows that have it."""

    least: float
    median: float
    most: float


def fold(rows: Sequence[FigureRow], lines_max: int) -> list[Folded]:
    """At most so many lines if that is possible without mixing what is known with what is not, or texts."""
    found: list[Folded] = []
    for width in WIDTHS:
        found = _fold_by(rows, {name: _steps(name, rows, width) for name in _names(rows)})
        if len(found) <= lines_max:
            break
    return found


def _fold_by(rows: Sequence[FigureRow], buckets: Mapping[str, Sequence[float]]) -> list[Folded]:
    """Alike places of each worker first, then workers all of whose places are alike."""
    by_worker: dict[int, dict[Hashable, list[FigureRow]]] = {}
    for row in rows:
        alike: Hashable = (row.text, *(_bucket(each, row.figures.get(name)) for name, each in buckets.items()))
        by_worker.setdefault(row.worker, {}).setdefault(alike, []).append(row)
    same: dict[Hashable, list[int]] = {}
    for worker, groups in by_worker.items():
        shape = tuple((alike, tuple(row.place for row in group)) for alike, group in groups.items())
        same.setdefault(shape, []).append(worker)
    found = []
    for workers in same.values():
        for alike, first in by_worker[workers[0]].items():
            rows_here = [row for worker in workers for row in by_worker[worker][alike]]
            found.append(_folded(workers, [row.place for row in first], rows_here))
    return found


def _folded(workers: Sequence[int], places: Sequence[int], rows: Sequence[FigureRow]) -> Folded:
    ranges = {}
    for name in _names(rows):
        values = [value for row in rows if (value := row.figures.get(name)) is not None]
        ranges[name] = (min(values), max(values)) if values else None
    return Folded(tuple(workers), tuple(places), ranges, rows[0].text)


def _steps(name: str, rows: Sequence[FigureRow], width: float) -> list[float]:
    """Where buckets of a figure end, the largest first: each reaches so far down from a figure that there is,
    so that two which are near to each other are not apart because a round number is between them."""
    values = sorted((value for row in rows if (value := row.figures.get(name)) is not None), reverse=True)
    if not values:
        return []
    reach = max(width, STEPS_NOISE) if name == STEPS else width * _largest(name, values) / 100.0
    tops = values[:1]
    for value in values:
        if tops[-1] - value > reach:
            tops.append(value)
    return tops


def _bucket(tops: Sequence[float], value: float | None) -> int | None:
    return None if value is None else sum(top >= value for top in tops)


def _largest(name: str, values: Sequence[float]) -> float:
    return max(*values, LEAST_SCALE.get(name, 0.0), 0.0)


def _names(rows: Sequence[FigureRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.figures))


def spread(rows: Sequence[FigureRow]) -> dict[str, Spread]:
    """Of each figure that some rows have."""
    found = {}
    for name in _names(rows):
        values = [value for row in rows if (value := row.figures.get(name)) is not None]
        if values:
            found[name] = Spread(min(values), median(values), max(values))
    return found


class Slowest(Struct, frozen=True):
    """The workers that are behind all others, and by what that is seen."""

    workers: tuple[int, ...]
    why: str

    @property
    def said(self) -> str:
        return f"worker {fold_workers(self.workers)}: {self.why}"


def find_slowest(
    steps: Mapping[int, float], rates: Mapping[int, float], duty: Mapping[int, float]
) -> Slowest | None:
    """By worker: its last step, its steps per second, the duty cycle of its chips. In a collective all are at
    the same step, and the chips of those that wait are busy: then the idle one is behind."""
    for values, slack, unit in (
        (steps, STEPS_NOISE, "step {:g}"),
        (rates, (1.0 - SLOW_RATE) * median(rates.values()) if rates else 0.0, "{:.2g} steps/s"),
        (duty, SLOW_DUTY, "duty {:.0f} %"),
    ):
        usual = median(values.values()) if values else 0.0
        behind = [worker for worker, value in values.items() if value < usual - slack]
        if behind:
            least = min(values[worker] for worker in behind)
            named = tuple(sorted(worker for worker in behind if values[worker] == least))
            return Slowest(named, f"{unit.format(least)}, usual is {unit.format(usual)}")
    return None
