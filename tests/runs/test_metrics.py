"""What follows from the numbers that a program prints."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.errors import UsageError
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import NotFinite, WorkerStatus
from tpuctl.lib.names import check_progress
from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.records import RunState
from tpuctl.model.run_spec import RunRequest
from tpuctl.runs.metrics import (
    RATE,
    MetricRow,
    Span,
    furthest,
    last_row,
    metric_names,
    parse_rows,
    thin_rows,
    with_rates,
)
from tpuctl.runs.plan import RunObservation, RunPlan, plan_run
from tpuctl.runs.rules import check_run
from tpuctl.runs.states import RunEvent
from tpuctl.slices.states import ObservedEvent, SliceEvent

NOW = 50_000.0
ALIVE = ObservedEvent(SliceEvent.NODE_READY, "node big-1 is READY")
PATTERN = r"step (?P<step>\d+)/(?P<steps>\d+) loss (?P<loss>\S+) lr (?P<lr>\S+)"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("step (", "is no regular expression"),
        ("step", "has no group"),
        ("step (?:x)", "has no group"),
        (r"(?P<step>\d+) (?P<step>\d+)", "redefinition of group name"),
        (r"(?P<1st>\d+)", "bad character in group name"),
        ("(" * 500 + ")" * 499, "is no regular expression"),
        ("(x{1,99999999999})", "is no regular expression"),
    ],
)
def test_a_pattern_that_finds_nothing_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_progress(pattern)


def test_names_beside_the_step_are_metrics() -> None:
    assert metric_names(PATTERN) == ("loss", "lr")
    assert metric_names(r"(\d+) (\d+)") == ()


@pytest.mark.parametrize(
    ("progress", "on_nan", "why"),
    [
        (r"(\d+)", "stop", "--on-nan stop has no number to look at"),
        ("", "stop", "--on-nan stop has no number to look at"),
        (r"(?P<step>\d+)", "stop", "--on-nan stop has no number to look at"),
        (PATTERN, "restart", "--on-nan 'restart' is unknown"),
        (r"\d+", "report", r"--progress '\\d\+' has no group"),
    ],
)
def test_what_is_to_be_done_about_numbers_needs_some(progress: str | None, on_nan: str, why: str) -> None:
    wanted = RunRequest(command=("true",), no_checkpoint=True, on_nan=on_nan, progress=progress)
    with pytest.raises(UsageError, match=why):
        check_run(wanted)


def worker(number: int, state: WorkerState = WorkerState.RUNNING, **changes: Any) -> WorkerStatus:
    return WorkerStatus(
        number, state, started_at=NOW - 9, time=NOW, output_at=NOW, step=7.0, step_at=NOW, **changes
    )


def plan(*workers: WorkerStatus, on_nan: str = "report", **attempt: Any) -> RunPlan:
    running = an_attempt(state=AttemptPhase.RUNNING, **attempt)
    run = a_run(id="r", state=RunState.RUNNING, progress=PATTERN, on_nan=on_nan, attempt=running)
    return plan_run(RunObservation(run, a_slice(), ALIVE, workers, NOW))


BAD, LATER = NotFinite("loss", "nan", 7.0), NotFinite("loss", "inf", 9.0)


def test_what_is_no_number_is_said_once_of_the_worker_where_it_came_first() -> None:
    workers = [
        worker(0, not_finite=LATER),
        worker(1, not_finite=BAD),
        worker(2, not_finite=NotFinite("lr", "inf")),
    ]
    found = plan(*workers)
    why = "loss is nan at step 7 (worker 1)"
    assert (found.event, found.why, found.found.changes) == (RunEvent.NOT_FINITE, why, {"not_finite": why})
    goes_on = plan(*workers, not_finite=why)
    assert (goes_on.event, goes_on.verdict.why) == (RunEvent.RUNS, f"the run, whose {why}")


def test_a_run_that_wants_that_ends_although_its_program_came_to_an_end() -> None:
    ended = worker(0, WorkerState.EXITED, exit_status=0, not_finite=BAD)
    found = plan(ended, on_nan="stop")
    assert (found.event, found.to.cause) == (RunEvent.NOT_FINITE_FOR_GOOD, Cause.NOT_FINITE)
    assert plan(ended, not_finite="loss is nan").event is RunEvent.SUCCEEDED


def test_an_expression_that_was_given_up_is_said_once() -> None:
    slow = worker(0, progress_error="took more than 0.25 s")
    found = plan(slow)
    assert found.event is RunEvent.UNSEARCHED
    assert plan(slow, **found.found.changes).event is RunEvent.RUNS


def one(value: float) -> Span:
    return Span(value, value, value, value)


def row(step: float | None, at: float = 0.0, count: int = 1, **values: Span) -> MetricRow:
    return MetricRow(at, step, count, values)


FILE = b"at step count loss lr\n1.500 3 1 2.5 -\n2 - 4 3:1:7:2 nan\n"


@pytest.mark.parametrize(
    "more", [b"", b"9 4 1 2.5", b"x y z\n", b"1 2\n", b"1 2 3 4 5 6 7\n", b"\n\n", b"1 2 3 4:5 6\n", b"\xff\n"]
)
def test_what_cannot_be_read_of_a_file_is_left_out(more: bytes) -> None:
    first, second = parse_rows(FILE + more)
    assert (first.at, first.step, first.count, first.values) == (1.5, 3.0, 1, {"loss": one(2.5)})
    assert (second.step, second.count, second.values["loss"]) == (None, 4, Span(3, 1, 7, 2))
    assert math.isnan(second.values["lr"].mean)


@pytest.mark.parametrize("data", [b"", b"at step count\n", b"at", b"\0\0\0\n1 2 3\n"])
def test_a_file_without_rows_has_none(data: bytes) -> None:
    assert [each for each in parse_rows(data) if each.values] == []


def test_the_worker_ahead_speaks_and_of_equal_ones_the_first() -> None:
    assert furthest({3: row(9), 0: row(3), 2: row(9), 1: None}) == 2
    assert furthest({0: row(None), 1: row(1)}) == 1
    assert furthest({1: row(None), 0: row(None)}) == 0
    assert furthest({0: None}) is None


def test_the_last_row_is_found_in_the_end_of_a_file() -> None:
    whole = FILE + b"3 9 1 2.5 -\n4 1"
    for begin in range(len(FILE) + 1):
        found = last_row(whole[begin:])
        assert found is not None
        assert (found.at, found.step) == (3.0, 9.0)
    assert last_row(b"at step count loss\n") is None
    assert last_row(b"") is None


def test_thinned_rows_keep_the_extremes_and_weigh_the_mean() -> None:
    rows = [row(n, float(n), count=1 + n % 2, loss=one(float(n))) for n in range(100)]
    for most in (1, 3, 7, 99, 100, 1000):
        thin = thin_rows(rows, most)
        assert len(thin) <= most
        assert sum(each.count for each in thin) == 150
        assert (thin[-1].step, thin[-1].values["loss"].last) == (99, 99)
        assert (thin[0].values["loss"].low, thin[-1].values["loss"].high) == (0, 99)
    (whole,) = thin_rows(rows, 1)
    assert whole.values["loss"].mean == pytest.approx(sum(n * (1 + n % 2) for n in range(100)) / 150)
    gap, number = row(1, loss=one(math.nan)), row(2, loss=one(4.0))
    assert thin_rows([gap, number], 1)[0].values["loss"] == one(4.0)
    assert math.isnan(thin_rows([gap, gap], 1)[0].values["loss"].mean)


def test_the_rate_is_that_between_two_times_and_begins_anew_where_steps_go_back() -> None:
    rows = [row(1, 10.0), row(3, 10.0), row(5, 12.0), row(None, 13.0), row(6, 14.0), row(2, 15.0), row(4, 16.0)]
    rates = [each.values.get(RATE) for each in with_rates([*rows, row(9, 16.5), row(10, 17.0)])]
    assert rates == [None, None, one(1.0), None, one(0.5), None, one(2.0), None, one(6.0)]
