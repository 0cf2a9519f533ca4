"""Whether a run stands still, by the signs of life of its workers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.records import RunState
from tpuctl.runs.charge import charge
from tpuctl.runs.hang import Slowdown, describe_progress, judge_pace, judge_stall, step_rate
from tpuctl.runs.plan import RunObservation, plan_run
from tpuctl.runs.states import RunEvent
from tpuctl.slices.states import ObservedEvent, SliceEvent

NOW = 50_000.0
LONG, SHORT = NOW - 900.0, NOW - 899.0
SINCE = "1970-01-01T13:38:20Z"
ALIVE = ObservedEvent(SliceEvent.NODE_READY, "node big-1 is READY")


def worker(number: int, **changes: Any) -> WorkerStatus:
    values: dict[str, Any] = {"started_at": NOW - 20_000.0, "time": NOW, **changes}
    return WorkerStatus(number, WorkerState.RUNNING, **values)


WROTE, QUIET = {"output_at": SHORT}, {"output_at": LONG}
STEPS = {"output_at": NOW, "step": 7.0, "step_at": SHORT}
STANDS = {"output_at": NOW, "step": 7.0, "step_at": LONG}
YOUNG = {"started_at": NOW - 10_799.0}


@pytest.mark.parametrize(
    ("progress", "first", "second", "why"),
    [
        ("", WROTE, WROTE, ""),
        ("", QUIET, QUIET, f"worker 0-1: no output since {SINCE}"),
        ("", WROTE, QUIET, ""),
        ("", WROTE, {**QUIET, "held": True}, f"worker 1: stopped by a signal since {SINCE}"),
        ("", WROTE, {**WROTE, "held": True}, ""),
        ("", YOUNG, YOUNG, ""),
        ("", {}, {}, "no output in 3 h"),
        ("", QUIET, {}, f"worker 0: no output since {SINCE}"),
        ("x", STEPS, {}, ""),
        ("x", STANDS, {}, f"worker 0: at the same step since {SINCE}"),
        ("x", STEPS, STANDS, f"worker 1: at the same step since {SINCE}"),
        ("x", {"output_at": NOW, **YOUNG}, {**YOUNG}, ""),
        ("x", {"output_at": NOW}, {}, "no step in 3 h"),
    ],
)
def test_who_stands_still_is_named(progress: str, first: Any, second: Any, why: str) -> None:
    run = a_run(progress=progress)
    assert judge_stall(run, [worker(0, **first), worker(1, **second)]).why == why


@pytest.mark.parametrize(
    ("progress", "changes"),
    [
        (r"loss (?P<loss>\S+)", {}),
        (r"step (?P<step>\d+)", {"progress_error": "took too long"}),
    ],
)
def test_output_is_the_sign_of_life_where_no_step_is_looked_for(progress: str, changes: Any) -> None:
    quiet, wrote = [worker(n, **QUIET, **changes) for n in (0, 1)], [worker(0, **WROTE, **changes)]
    assert judge_stall(a_run(progress=progress), quiet).why == f"worker 0-1: no output since {SINCE}"
    assert judge_stall(a_run(progress=progress), wrote).why == ""
    assert judge_stall(a_run(progress=progress), [worker(0, **changes)]).why == "no output in 3 h"


def test_the_limits_are_the_users() -> None:
    workers = [worker(0, **QUIET), worker(1, **QUIET)]
    assert judge_stall(a_run(stall_s=901.0), workers).why == ""
    assert judge_stall(a_run(first_step_limit_s=30_000.0), [worker(0), worker(1)]).why == ""


def test_a_worker_that_does_not_answer_is_named_where_the_others_wait_for_it() -> None:
    gone = WorkerStatus(1, WorkerState.UNREACHABLE)
    found = judge_stall(a_run(), [worker(0, **QUIET), gone])
    assert (found.why, found.workers) == (f"worker 1: no answer; worker 0: no output since {SINCE}", (1,))
    assert judge_stall(a_run(), [worker(0, **WROTE), gone]).why == ""
    young, old = NOW - 899.0, NOW - 900.0
    told = running(attempt={"stalled": f"worker 0-1: no output since {SINCE}"})
    assert plan(told, worker(0, **QUIET), gone).event is RunEvent.TROUBLE, "it is told as that, not as a stall"
    for since, event, cause in ((young, RunEvent.STALLED, None), (old, RunEvent.HOST_LOST, Cause.HOST_LOST)):
        wanted = running(on_stall="restart", attempt={"suspect_since": since})
        told = plan(wanted, worker(0, **QUIET), gone)
        assert (told.event, told.to.cause) == (event, cause)


def test_a_worker_that_ended_is_no_stall() -> None:
    assert (
        judge_stall(a_run(), [worker(0, **QUIET), WorkerStatus(1, WorkerState.EXITED, exit_status=1)]).why == ""
    )


@pytest.mark.parametrize(
    ("progress", "ended_at", "left", "why"),
    [
        ("x", NOW - 1.0, STANDS, f"worker 0: at the same step since {SINCE}"),
        ("x", LONG, STEPS, ""),
        ("", LONG, QUIET, f"worker 0: no output since {SINCE}"),
        # Often only one rank prints: the others end a moment later, or some minutes.
        ("", SHORT, QUIET, ""),
        ("x", SHORT, QUIET, ""),
        ("x", LONG, QUIET, f"worker 0: no output since {SINCE}"),
    ],
)
def test_who_runs_on_although_the_others_ended_well_stands_still_by_itself(
    progress: str, ended_at: float, left: Any, why: str
) -> None:
    done = WorkerStatus(1, WorkerState.EXITED, exit_status=0, ended_at=ended_at, time=NOW)
    found = judge_stall(a_run(progress=progress), [worker(0, **left), done])
    assert found.why == (f"{why}; the others have ended" if why else "")


def test_what_stands_still_seconds_after_others_is_told_with_them() -> None:
    nearly = {**STANDS, "step_at": NOW - 897.0}
    workers = [worker(0, **nearly), worker(1, **STANDS), worker(2, **STEPS, recent_rate=1.0)]
    why = f"worker 1: at the same step since {SINCE}"
    for stall in ({}, {"on_stall": "restart"}):
        assert plan(running(progress="x", **stall), *workers).effect is None
    known = running(progress="x", attempt={"stalled": why})
    assert plan(known, *workers).effect is None
    moves = {**STANDS, "step_at": NOW - 800.0}
    assert plan(running(progress="x"), worker(0, **moves), worker(1, **STANDS)).event is RunEvent.STALLED


def plan(run: Any, *workers: WorkerStatus) -> Any:
    return plan_run(RunObservation(run, a_slice(), ALIVE, workers, NOW))


def running(**changes: Any) -> Any:
    attempt = an_attempt(state=AttemptPhase.RUNNING, **changes.pop("attempt", {}))
    return a_run(state=RunState.RUNNING, attempt=attempt, **changes)


def test_a_stall_is_said_once_and_so_is_its_end() -> None:
    quiet, wrote = [worker(0, **QUIET), worker(1, **QUIET)], [worker(0, **WROTE), worker(1, **WROTE)]
    why = f"worker 0-1: no output since {SINCE}"
    found = plan(running(), *quiet)
    assert (found.event, found.found.changes) == (RunEvent.STALLED, {"stalled": why, "stalled_by": ""})
    known = running(attempt={"stalled": why})
    assert plan(known, *quiet).effect is None
    assert why in plan(known, *quiet).verdict.why
    assert (plan(known, *wrote).event, plan(known, *wrote).found.changes) == (
        RunEvent.GOES_ON,
        {"stalled": "", "stalled_by": ""},
    )


def test_a_stall_restarts_a_run_that_wants_that_and_is_charged_as_a_failure() -> None:
    found = plan(running(on_stall="restart"), worker(0, **QUIET), worker(1, **QUIET))
    assert (found.event, found.to.cause) == (RunEvent.STALLED_FOR_GOOD, Cause.STALLED)
    ended = an_attempt(state=AttemptPhase.ENDED, cause=Cause.STALLED)
    assert charge(a_run(), ended, NOW).failures == 1


PACES = [
    ({}, 0.0, Slowdown()),
    ({"recent_rate": 1.0, "usual_rate": 2.0}, 0.0, Slowdown(0.0, 1.0)),
    ({"recent_rate": 0.9, "usual_rate": 2.0}, 0.0, Slowdown(2.0, 0.9)),
    ({"recent_rate": 1.4, "usual_rate": 1.0}, 2.0, Slowdown(2.0, 1.4)),
    ({"recent_rate": 1.5, "usual_rate": 1.0}, 2.0, Slowdown(0.0, 1.5)),
    ({}, 2.0, Slowdown(2.0)),
]


@pytest.mark.parametrize(("said", "usual", "pace"), PACES)
def test_slow_is_below_half_of_the_usual_until_it_is_near_that_again(
    said: Any, usual: float, pace: Slowdown
) -> None:
    ahead, behind = worker(0, step=9.0, **said), worker(1, step=5.0, recent_rate=0.1, usual_rate=9.0)
    others = [behind] if said else []
    assert judge_pace(an_attempt(usual_rate=usual), [*others, ahead]) == pace


def test_a_fall_of_the_rate_is_said_once_and_so_is_its_end() -> None:
    well = {**STEPS, "recent_rate": 2.0, "usual_rate": 2.0}
    slow = [worker(0, **{**well, "recent_rate": 0.9})]
    found = plan(running(progress="x"), *slow)
    assert (found.event, found.found.changes) == (RunEvent.PACE_CHANGED, {"usual_rate": 2.0})
    assert found.why == "0.9 steps/s in the last 5 min, 2 before"
    known = running(progress="x", attempt={"usual_rate": 2.0})
    assert plan(known, *slow).effect is None
    assert "become slow" in plan(known, *slow).verdict.why
    again = plan(known, worker(0, **well))
    assert (again.event, again.found.changes) == (RunEvent.PACE_CHANGED, {"usual_rate": 0.0})
    assert again.why == "2 steps/s in the last 5 min again"


def test_how_far_it_is_and_how_long_it_takes() -> None:
    ahead = {"step": 120.0, "step_at": 160.0, "first_step": 20.0, "first_at": 110.0, "steps": 320.0}
    assert step_rate(worker(0, **ahead)) == 2.0
    assert (
        describe_progress(a_run(progress="x"), [worker(0, **ahead)]) == "step 120 of 320, 2/s, 1 min 40 s left"
    )
    assert describe_progress(a_run(progress="x"), [worker(0, step=3.0)]) == "step 3"
    values = {"step": 1234567.0, "values": {"loss": 2.34567, "lr": 1e-5, "norm": 3.0}}
    assert describe_progress(a_run(), [worker(0, **values)]) == "step 1234567, loss 2.346, lr 1e-05"
    given_up = describe_progress(a_run(progress="x"), [worker(0, step=3.0, progress_error="took too long")])
    assert given_up == "--progress took too long"
    busy = [worker(0, started_at=NOW - 1380.0, load=3.0), worker(1, started_at=NOW - 1379.0, load=0.1)]
    assert describe_progress(a_run(), busy) == "compiling 23 min"
    assert describe_progress(a_run(), [worker(0, load=0.2)]) == ""


def test_what_a_host_says_of_steps_is_read() -> None:
    said = {"run": "r", "attempt": "1", "state": "running", "stdout_bytes": 0, "stderr_bytes": 0}
    said |= {"boot_id": "b", "time": 1.0, "held": True, "progress": {"step": 3.0, "at": 9.0, "total": None}}
    found = WorkerStatus.parse(said, 0)
    assert (found.step, found.step_at, found.steps, found.held) == (3.0, 9.0, None, True)
    assert WorkerStatus.parse({**said, "progress": "x"}, 0).step is None
