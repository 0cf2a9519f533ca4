"""What is done next for a run, and which budget an ended attempt is charged to.

The cases of the plan are in tests/data/plans/runs.yaml.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, a_slice, an_attempt
from tests.support.cases import changed, check, load_cases
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.codec import from_data
from tpuctl.model import timeouts
from tpuctl.model.attempts import AttemptPhase, Cause, WorkerEnd
from tpuctl.model.records import RunState
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.runs.charge import charge, worker_ends
from tpuctl.runs.plan import RunObservation, plan_run
from tpuctl.runs.trouble import refused_until
from tpuctl.slices.states import ObservedEvent

NOW = 3000.0
ALIVE = {"event": "node-ready", "why": "node big-1 is READY"}


@pytest.mark.parametrize("case", load_cases("runs", NOW))
def test_what_is_done_next(case: dict[str, Any]) -> None:
    run, slice_ = changed(a_run(), case.get("run", {})), changed(a_slice(), case.get("slice", {}))
    workers = [from_data(WorkerStatus, {"worker": n, **each}) for n, each in enumerate(case.get("workers", ()))]
    seen = from_data(ObservedEvent, case.get("seen", ALIVE))
    check(plan_run(RunObservation(run, slice_, seen, workers, case.get("now", NOW))), case["plan"])


def test_what_outlived_a_worker_is_noted():
    roots = WorkerStatus(0, WorkerState.EXITED, signal=15, survivors=(8,), survivors_said="8 sh of root")
    [end] = worker_ends([roots])
    assert (end.survivors, end.note) == ((8,), "outlived by 8 sh of root")


def failure(*ends, number=1):
    return an_attempt(
        number=number, state=AttemptPhase.ENDED, cause=Cause.FAILED, suspect_why="it broke", ends=ends
    )


def test_a_program_that_fails_at_once_and_twice_in_the_same_way_is_not_tried_a_third_time():
    stopped = WorkerEnd(1, signal=15, note="stopped", ran_s=70.0, stopped=True)
    once = charge(
        a_run(policy=RestartPolicy(max_failures=9)), failure(WorkerEnd(0, 1, ran_s=2.0), stopped), NOW
    )
    assert (once.state, once.failures) == (RunState.WAITING, 1)
    twice = charge(once, failure(WorkerEnd(0, 1, ran_s=3.0), replace(stopped, signal=9)), NOW)
    assert (twice.state, twice.failures) == (RunState.FAILED, 2)
    assert twice.reason == "it broke, for the second time within 60 s of its start"


@pytest.mark.parametrize(
    "second",
    [
        WorkerEnd(0, 1, ran_s=61.0),
        WorkerEnd(0, 2, ran_s=3.0),
        WorkerEnd(0, signal=6, ran_s=3.0),
        WorkerEnd(0, note="lost"),
    ],
    ids=["later", "another status", "a signal", "unseen"],
)
def test_other_failures_have_their_whole_budget(second):
    run = a_run(policy=RestartPolicy(max_failures=2))
    for number, end in enumerate([WorkerEnd(0, 1, ran_s=2.0), second, WorkerEnd(0, 1, ran_s=2.0)]):
        assert run.state is not RunState.FAILED
        run = charge(run, failure(end, number=number + 1), NOW)
    assert (run.state, run.failures) == (RunState.FAILED, 3)


def test_a_program_that_does_not_come_up_on_the_chips_twice_is_not_tried_a_third_time():
    ended = an_attempt(state=AttemptPhase.ENDED, cause=Cause.NOT_JOINED, suspect_why="on cpu")
    once = charge(a_run(policy=RestartPolicy(max_failures=9)), ended, NOW)
    assert (once.state, once.failures) == (RunState.WAITING, 1)
    twice = charge(once, ended, NOW)
    assert (twice.state, twice.reason) == (RunState.FAILED, "on cpu, for the second time")


def test_workers_that_were_stopped_do_not_count_as_failed():
    run = a_run(policy=RestartPolicy(max_failures=9))
    for signal in (15, 9):
        ends = WorkerEnd(0, 1, ran_s=2.0), WorkerEnd(1, signal=signal, ran_s=2.0, stopped=True)
        run = charge(run, failure(*ends), NOW)
    assert (run.state, run.failures) == (RunState.FAILED, 2)


def test_a_quick_failure_is_forgotten_when_something_else_ends_an_attempt():
    run = charge(a_run(policy=RestartPolicy(max_failures=9)), failure(WorkerEnd(0, 1, ran_s=2.0)), NOW)
    run = charge(run, an_attempt(state=AttemptPhase.ENDED, cause=Cause.PREEMPTED), NOW)
    assert charge(run, failure(WorkerEnd(0, 1, ran_s=2.0)), NOW).state is RunState.WAITING


def test_by_default_a_run_is_not_ended_for_good_by_one_failure():
    run = charge(a_run(policy=RestartPolicy()), failure(WorkerEnd(0, 134, ran_s=4000.0)), NOW)
    assert run.state is RunState.WAITING


@pytest.mark.parametrize(
    ("cause", "policy", "state"),
    [
        (Cause.SUCCEEDED, RestartPolicy(), RunState.SUCCEEDED),
        (Cause.STOPPED, RestartPolicy(), RunState.STOPPED),
        (Cause.FAILED, RestartPolicy(max_failures=0), RunState.FAILED),
        (Cause.FAILED, RestartPolicy(max_failures=1), RunState.WAITING),
        (Cause.PREEMPTED, RestartPolicy(max_preemptions=1), RunState.WAITING),
        (Cause.PREEMPTED, RestartPolicy(max_preemptions=0), RunState.GAVE_UP),
        (Cause.HOST_LOST, RestartPolicy(max_preemptions=0), RunState.GAVE_UP),
        (Cause.RESTART_ASKED, RestartPolicy(max_restarts=0), RunState.GAVE_UP),
        (Cause.RESTART_ASKED, RestartPolicy(max_restarts=1), RunState.WAITING),
        (Cause.NOT_JOINED, RestartPolicy(max_failures=0), RunState.FAILED),
        (Cause.BAD_DATA, RestartPolicy(max_failures=0), RunState.FAILED),
        (Cause.DRIFTED, RestartPolicy(max_failures=9), RunState.FAILED),
        (Cause.NOT_SET_UP, RestartPolicy(max_failures=9), RunState.FAILED),
    ],
)
def test_an_ended_attempt_is_charged_to_its_own_budget(cause, policy, state):
    attempt = an_attempt(state=AttemptPhase.ENDED, cause=cause)
    run = charge(a_run(policy=policy), attempt, NOW)
    assert run.state is state
    charged = {
        Cause.FAILED: (1, 0, 0),
        Cause.NOT_JOINED: (1, 0, 0),
        Cause.BAD_DATA: (1, 0, 0),
        Cause.PREEMPTED: (0, 1, 0),
        Cause.HOST_LOST: (0, 1, 0),
        Cause.RESTART_ASKED: (0, 0, 1),
    }.get(cause, (0, 0, 0))
    assert (run.failures, run.preemptions, run.restarts) == charged


SUSPECT, SUBMITTED = 2900.0, 1900.0


@pytest.mark.parametrize(
    ("cause", "lasts", "ready_at", "waits"),
    [
        (Cause.DRIFTED, True, SUBMITTED - 1, 0.0),
        (Cause.DRIFTED, True, None, 0.0),
        (Cause.DRIFTED, True, SUBMITTED + 1, timeouts.ACKNOWLEDGE_MAX_S),
        (Cause.FAILED, True, SUBMITTED + 1, 0.0),
        (Cause.FAILED, False, SUBMITTED - 1, timeouts.ACKNOWLEDGE_MAX_S),
        (Cause.HOST_LOST, False, SUBMITTED - 1, timeouts.VERDICT_MAX_S),
    ],
    ids=["drift", "drift, adopted", "drift of new hosts", "lasting", "passing", "silent"],
)
def test_what_workers_refuse_is_tried_again_only_while_it_may_pass(cause, lasts, ready_at, waits):
    for since, first in ((None, NOW), (SUSPECT, SUSPECT)):
        attempt = an_attempt(state=AttemptPhase.PREPARING, suspect_since=since, ready_at=ready_at)
        run = a_run(created_at=SUBMITTED, attempt=attempt)
        assert refused_until(run, attempt, cause, NOW, lasts=lasts) == first + waits
