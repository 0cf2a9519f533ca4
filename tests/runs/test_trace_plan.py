"""When hosts begin a trace by their own clocks, and what becomes of what they say."""

from __future__ import annotations

import pytest

from tpuctl.hosts.protocol import TraceProcess, TraceReply, WorkerState
from tpuctl.model.hosts import FailureKind, RemoteResult
from tpuctl.runs.trace_plan import (
    ClockReading,
    WorkerTrace,
    describe_progress,
    group_troubles,
    judge_trace,
    lead_of,
    plan_offsets,
    spread_of,
    with_unfetched,
)

BEGIN = 1000.0
DONE = TraceProcess(1, "done", started=1000.01, ended=1005.01)
CUT = TraceProcess(2, "done", started=1000.02, ended=1002.02, cut="the program ended")
BUSY = TraceProcess(3, "busy", error="Profile has already been started.")
FAILED = TraceProcess(4, "failed", error="No space left on device")
IDLE = TraceProcess(5, "idle", error="it has not taken its devices yet")


def reading(worker: int, host_time: float, asked: float = 100.0, answered: float = 102.0) -> ClockReading:
    return ClockReading(worker, host_time, asked, answered)


@pytest.mark.parametrize(
    ("readings", "offsets"),
    [
        ([], {}),
        ([reading(0, 101.0)], {0: 0.0}),
        # Within what a call can tell all have the same clock, although they were read at different times.
        ([reading(0, 100.5), reading(1, 101.5), reading(2, 101.0)], {0: 0.0, 1: 0.0, 2: 0.0}),
        # This machine is late by an hour, and all begin at one moment all the same.
        ([reading(0, 3700.5), reading(1, 3701.5)], {0: 3600.0, 1: 3600.0}),
        # One host's clock is wrong: it begins by that, with the others.
        ([reading(0, 100.5), reading(1, 161.0), reading(2, 101.5)], {0: 0.0, 1: 60.0, 2: 0.0}),
    ],
)
def test_clocks_that_may_agree_are_taken_to_agree(
    readings: list[ClockReading], offsets: dict[int, float]
) -> None:
    assert plan_offsets(readings) == pytest.approx(offsets)


@pytest.mark.parametrize(("call_s", "lead_s"), [(0.1, 2.0), (3.0, 6.0), (60.0, 30.0)])
def test_a_trace_begins_when_all_hosts_have_heard_of_it(call_s: float, lead_s: float) -> None:
    assert lead_of([reading(0, 100.0, 100.0, 100.0 + call_s)]) == lead_s


@pytest.mark.parametrize(
    ("processes", "size", "left", "trouble"),
    [
        ([DONE], 100, 100, ""),
        ([DONE, IDLE], 100, 100, ""),
        ([IDLE, IDLE], 0, 0, "it has not taken its devices yet"),
        ([CUT], 100, 100, "cut off after 2.0 s: the program ended"),
        ([DONE, FAILED], 100, 100, "No space left on device"),
        ([BUSY, BUSY], 0, 0, "its program traces itself just now"),
        (
            [DONE],
            3 << 20,
            0,
            "a trace of 3 MiB is not fetched (limit 2 MiB: --max-size 4, or less than --seconds 5)",
        ),
        ([DONE], 0, 0, "no trace came of it"),
        ([], 100, 100, ""),
    ],
)
def test_what_a_worker_has_in_the_end(
    processes: list[TraceProcess], size: int, left: int, trouble: str
) -> None:
    reply = TraceReply(WorkerState.RUNNING, tuple(processes), size)
    found = judge_trace(7, reply, BEGIN, 5.0, 2 << 20)
    assert (found.worker, found.size_bytes, found.trouble) == (7, left, trouble)


def test_how_far_apart_they_began_and_for_how_long_they_traced() -> None:
    found = judge_trace(0, TraceReply(WorkerState.RUNNING, (DONE, CUT), 1), BEGIN, 5.0, 10)
    assert (found.late, found.seconds) == (pytest.approx(0.02), pytest.approx(2.0))
    assert spread_of([found, WorkerTrace(1, late=0.05), WorkerTrace(2)]) == pytest.approx(0.03)
    assert spread_of([found]) is None


def test_what_did_not_arrive_is_no_trace() -> None:
    rows = [
        WorkerTrace(0, 5),
        WorkerTrace(1, 5),
        WorkerTrace(2, trouble="gone"),
        WorkerTrace(3, trouble="gone"),
    ]
    lost = RemoteResult(1, None, failure=FailureKind.LOST, detail="the connection broke")
    found = with_unfetched(rows, [RemoteResult(0, 0), lost])
    assert [row.size_bytes for row in found] == [5, 0, 0, 0]
    assert group_troubles(found) == {"not fetched: the connection broke": [1], "gone": [2, 3]}


def test_progress_counts_processes() -> None:
    replies = [
        TraceReply(WorkerState.RUNNING, (TraceProcess(1, "tracing"), DONE)),
        TraceReply(WorkerState.EXITED),
    ]
    assert describe_progress(replies) == "1 tracing, 1 done"
