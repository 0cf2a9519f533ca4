"""What is done next for a run, and which budget an ended attempt is charged to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, a_slice, an_attempt, an_incarnation
from tpuctl.hosts.protocol import HostEvent, WorkerState, WorkerView
from tpuctl.model import timeouts
from tpuctl.model.records import AttemptPhase, Cause, Desired, RunState, SliceState, WorkerEnd
from tpuctl.model.run_spec import Policy
from tpuctl.model.verdict import Blocked
from tpuctl.runs.plan import RunStep, charge, plan_run, worker_ends
from tpuctl.slices.states import ObservedEvent, SliceEvent

ALIVE = ObservedEvent(SliceEvent.NODE_READY, "node big-1 is READY")
PREEMPTED = ObservedEvent(SliceEvent.PREEMPTED, "node big-1 is PREEMPTED")
NOW = 3000.0


def running(worker):
    return WorkerView(worker, WorkerState.RUNNING)


def exited(worker, status):
    return WorkerView(worker, WorkerState.EXITED, exit_status=status)


def unreachable(worker):
    return WorkerView(worker, WorkerState.UNREACHABLE)


def plan(run=None, slice_=None, observed=ALIVE, workers=(), now=NOW):
    return plan_run(run or a_run(), slice_ or a_slice(), observed, list(workers), now)


def test_a_run_waits_for_its_slice_and_starts_when_it_is_ready():
    fresh = a_run(attempt=None, state=RunState.WAITING)
    assert plan(fresh, a_slice(state=SliceState.PROVISIONING)).step is None
    assert plan(fresh, a_slice()).step is RunStep.NEW_ATTEMPT


def test_no_worker_starts_before_every_worker_acknowledged():
    starting = a_run(attempt=an_attempt(state=AttemptPhase.STARTING))
    prepared = [WorkerView(0, WorkerState.PREPARED), WorkerView(1, WorkerState.PREPARED)]
    assert plan(a_run(attempt=an_attempt(state=AttemptPhase.PREPARING))).step is RunStep.PREPARE
    assert plan(starting, workers=prepared).step is RunStep.START
    assert plan(starting, workers=[running(0), running(1)]).step is RunStep.MARK_RUNNING


def test_success_needs_every_worker():
    assert plan(workers=[exited(0, 0), running(1)]).step is None
    answer = plan(workers=[exited(0, 0), exited(1, 0)])
    assert (answer.step, answer.cause) == (RunStep.DECIDE, Cause.SUCCEEDED)


def test_a_failing_worker_is_charged_only_after_two_reads_that_show_the_slice_alive():
    workers = [exited(0, 1), running(1)]
    assert plan(workers=workers).step is RunStep.SUSPECT
    once = a_run(attempt=an_attempt(suspect_since=NOW, suspect_reads=1))
    assert plan(once, workers=workers, now=NOW + 0.5).step is None
    assert plan(once, workers=workers, now=NOW + timeouts.VERDICT_READ_GAP_S).step is RunStep.SUSPECT
    twice = a_run(attempt=an_attempt(suspect_since=NOW, suspect_reads=2))
    answer = plan(twice, workers=workers, now=NOW + 3)
    assert (answer.step, answer.cause) == (RunStep.DECIDE, Cause.FAILED)


def test_a_failing_worker_of_a_preempted_slice_is_a_preemption():
    suspect = a_run(attempt=an_attempt(suspect_since=NOW, suspect_reads=1))
    answer = plan(suspect, observed=PREEMPTED, workers=[exited(0, 1), unreachable(1)])
    assert (answer.step, answer.cause) == (RunStep.DECIDE, Cause.PREEMPTED)


def test_an_attempt_of_an_earlier_incarnation_was_preempted():
    later = a_slice(incarnation=an_incarnation(number=2, cloud_name="big-2"))
    assert plan(slice_=later).cause is Cause.PREEMPTED


def test_the_verdict_waits_for_unreachable_hosts_but_not_for_ever():
    workers = [exited(0, 1), unreachable(1)]
    suspect = a_run(attempt=an_attempt(suspect_since=NOW, suspect_reads=9))
    assert plan(suspect, workers=workers, now=NOW + 60).step is None
    answer = plan(suspect, workers=workers, now=NOW + timeouts.VERDICT_MAX_S)
    assert (answer.step, answer.cause) == (RunStep.DECIDE, Cause.HOST_LOST)


def test_workers_that_only_do_not_answer_have_long_to_come_back():
    suspect = a_run(attempt=an_attempt(suspect_since=NOW, suspect_reads=1))
    later = NOW + timeouts.UNREACHABLE_MAX_S - 1
    assert plan(suspect, workers=[unreachable(0), running(1)], now=later).step is None
    assert plan(suspect, workers=[running(0), running(1)], now=later).step is RunStep.CLEAR
    given_up = plan(suspect, workers=[unreachable(0), running(1)], now=later + 1)
    assert (given_up.step, given_up.cause) == (RunStep.DECIDE, Cause.HOST_LOST)


def test_exit_status_75_asks_for_a_restart():
    twice = a_run(attempt=an_attempt(suspect_since=NOW, suspect_reads=2))
    assert plan(twice, workers=[exited(0, 75), exited(1, 75)]).cause is Cause.RESTART_ASKED
    assert plan(twice, workers=[exited(0, 75), exited(1, 1)]).cause is Cause.FAILED


def test_a_rebooted_host_is_not_the_users_failure():
    twice = a_run(attempt=an_attempt(suspect_since=NOW, suspect_reads=2))
    lost = WorkerView(1, WorkerState.LOST)
    assert plan(twice, workers=[running(0), lost]).cause is Cause.HOST_LOST


def shut_down(worker, status=None):
    return WorkerView(
        worker,
        WorkerState.EXITED,
        exit_status=status,
        signal=15 if status is None else None,
        event=HostEvent.SHUT_DOWN,
        interrupted=True,
    )


def suspect(since=NOW, reads=2):
    return a_run(attempt=an_attempt(suspect_since=since, suspect_reads=reads))


@pytest.mark.parametrize("status", [None, 0, 1, 75], ids=["killed", "saved", "failed", "asked"])
def test_a_host_that_was_shut_down_is_no_failure_however_its_program_ended(status):
    workers = [shut_down(0, status), exited(1, 1)]
    assert plan(workers=workers).step is RunStep.SUSPECT
    assert plan(suspect(), workers=workers, now=NOW + 60).step is None
    late = plan(suspect(), workers=workers, now=NOW + timeouts.VERDICT_MAX_S)
    assert (late.step, late.cause) == (RunStep.DECIDE, Cause.HOST_LOST)
    assert late.why == "worker 0 was shut down with its host, worker 1 exited with 1"
    told = plan(suspect(), observed=PREEMPTED, workers=workers)
    assert (told.cause, told.why) == (Cause.PREEMPTED, "node big-1 is PREEMPTED")


def test_a_program_that_saves_and_ends_well_because_its_host_goes_down_has_not_succeeded():
    assert plan(workers=[shut_down(0, 0), shut_down(1, 0)]).step is RunStep.SUSPECT


def test_a_host_that_came_back_from_a_reboot_is_not_waited_for_any_longer():
    again = WorkerView(0, WorkerState.EXITED, signal=15, event=HostEvent.REBOOTED, interrupted=True)
    assert plan(suspect(reads=1), workers=[again, exited(1, 1)]).step is not RunStep.DECIDE
    answer = plan(suspect(), workers=[again, exited(1, 1)])
    assert (answer.step, answer.cause) == (RunStep.DECIDE, Cause.HOST_LOST)
    assert answer.why.startswith("worker 0 lost its host to a reboot")


def test_a_worker_whose_host_goes_down_is_in_trouble_before_its_program_ends():
    leaving = WorkerView(0, WorkerState.RUNNING, event=HostEvent.SHUT_DOWN, interrupted=True)
    assert plan(workers=[leaving, running(1)]).step is RunStep.SUSPECT
    assert plan(suspect(), workers=[leaving, exited(1, 1)]).step is None


def test_a_notice_of_preemption_decides_where_the_api_says_nothing():
    noticed = WorkerView(0, WorkerState.EXITED, exit_status=1, event=HostEvent.PREEMPTED)
    assert plan(suspect(), workers=[noticed, running(1)]).step is None
    late = NOW + timeouts.VERDICT_MAX_S
    assert plan(suspect(), workers=[noticed, running(1)], now=late).cause is Cause.PREEMPTED
    announced = WorkerView(0, WorkerState.EXITED, exit_status=1, event=HostEvent.MAINTENANCE)
    assert plan(suspect(), workers=[announced, running(1)], now=late).cause is Cause.HOST_LOST


def test_workers_of_a_preempted_attempt_that_still_answer_are_stopped_and_the_others_not_waited_for():
    ending = a_run(attempt=an_attempt(state=AttemptPhase.ENDING, cause=Cause.PREEMPTED))
    assert plan(ending, workers=[unreachable(0), running(1)]).step is RunStep.STOP_WORKERS
    assert plan(ending, workers=[unreachable(0), exited(1, 1)]).step is RunStep.END_ATTEMPT


def test_what_outlives_its_supervisor_is_ended_before_the_attempt_is():
    ending = a_run(attempt=an_attempt(state=AttemptPhase.ENDING, cause=Cause.HOST_LOST))
    orphans = WorkerView(0, WorkerState.LOST, survivors=(7,), survivors_said="7 python3 of ada")
    assert plan(ending, workers=[orphans, exited(1, 1)]).step is RunStep.STOP_WORKERS
    roots = WorkerView(0, WorkerState.EXITED, signal=15, survivors=(8,), survivors_said="8 sh of root")
    assert plan(ending, workers=[roots, exited(1, 1)]).step is RunStep.END_ATTEMPT
    [end] = worker_ends([roots])
    assert (end.survivors, end.note) == ((8,), "outlived by 8 sh of root")


def test_the_other_workers_are_stopped_before_an_attempt_ends():
    ending = a_run(attempt=an_attempt(state=AttemptPhase.ENDING, cause=Cause.FAILED))
    assert plan(ending, workers=[exited(0, 1), running(1)]).step is RunStep.STOP_WORKERS
    assert plan(ending, workers=[exited(0, 1), exited(1, 143)]).step is RunStep.END_ATTEMPT


def test_a_worker_that_does_not_answer_is_asked_to_stop_until_patience_ends():
    attempt = an_attempt(state=AttemptPhase.ENDING, cause=Cause.STOPPED, ending_since=NOW)
    ending = a_run(attempt=attempt, policy=Policy(grace_s=10))
    assert plan(ending, workers=[exited(0, 143), unreachable(1)], now=NOW + 60).step is RunStep.STOP_WORKERS
    assert plan(ending, workers=[exited(0, 143), unreachable(1)], now=NOW + 71).step is RunStep.END_ATTEMPT


def test_success_on_every_worker_counts_even_when_the_slice_goes_right_after():
    assert plan(observed=PREEMPTED, workers=[exited(0, 0), exited(1, 0)]).cause is Cause.SUCCEEDED


def test_a_worker_that_never_ends_does_not_hold_the_attempt_for_ever():
    attempt = an_attempt(state=AttemptPhase.ENDING, cause=Cause.STOPPED, ending_since=NOW)
    ending = a_run(attempt=attempt, policy=Policy(grace_s=10))
    hanging = [exited(0, 143), running(1)]
    assert plan(ending, workers=hanging, now=NOW + 60).step is RunStep.STOP_WORKERS
    assert plan(ending, workers=hanging, now=NOW + 71).step is RunStep.END_ATTEMPT


def test_a_stop_ends_a_run_at_every_stage():
    assert plan(a_run(stop_asked=True), workers=[running(0), running(1)]).cause is Cause.STOPPED
    waiting = a_run(stop_asked=True, attempt=None, state=RunState.WAITING)
    assert plan(waiting).state is RunState.STOPPED


def test_a_removed_slice_blocks_the_run_and_a_slice_taken_down_ends_it():
    waiting = a_run(attempt=None, state=RunState.WAITING)
    removed = plan(waiting, a_slice(state=SliceState.REMOVED))
    assert isinstance(removed.verdict, Blocked)
    down = plan(waiting, a_slice(desired=Desired.DOWN, state=SliceState.DELETING))
    assert (down.step, down.state) == (RunStep.FINISH, RunState.STOPPED)


def failure(*ends, number=1):
    return an_attempt(
        number=number, state=AttemptPhase.ENDED, cause=Cause.FAILED, suspect_why="it broke", ends=ends
    )


def test_a_program_that_fails_at_once_and_twice_in_the_same_way_is_not_tried_a_third_time():
    stopped = WorkerEnd(1, signal=15, note="stopped", ran_s=70.0)
    once = charge(a_run(policy=Policy(max_failures=9)), failure(WorkerEnd(0, 1, ran_s=2.0), stopped), NOW)
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
    run = a_run(policy=Policy(max_failures=2))
    for number, end in enumerate([WorkerEnd(0, 1, ran_s=2.0), second, WorkerEnd(0, 1, ran_s=2.0)]):
        assert run.state is not RunState.FAILED
        run = charge(run, failure(end, number=number + 1), NOW)
    assert (run.state, run.failures) == (RunState.FAILED, 3)


def test_workers_that_were_stopped_do_not_count_whatever_else_is_noted_of_them():
    run = a_run(policy=Policy(max_failures=9))
    for note, signal in (("stopped; its disk is full", 15), ("stopped", 9)):
        ends = WorkerEnd(0, 1, ran_s=2.0), WorkerEnd(1, signal=signal, note=note, ran_s=2.0)
        run = charge(run, failure(*ends), NOW)
    assert (run.state, run.failures) == (RunState.FAILED, 2)


def test_a_quick_failure_is_forgotten_when_something_else_ends_an_attempt():
    run = charge(a_run(policy=Policy(max_failures=9)), failure(WorkerEnd(0, 1, ran_s=2.0)), NOW)
    run = charge(run, an_attempt(state=AttemptPhase.ENDED, cause=Cause.PREEMPTED), NOW)
    assert charge(run, failure(WorkerEnd(0, 1, ran_s=2.0)), NOW).state is RunState.WAITING


def test_by_default_a_run_is_not_ended_for_good_by_one_failure():
    run = charge(a_run(policy=Policy()), failure(WorkerEnd(0, 134, ran_s=4000.0)), NOW)
    assert run.state is RunState.WAITING


@pytest.mark.parametrize(
    ("cause", "policy", "state"),
    [
        (Cause.SUCCEEDED, Policy(), RunState.SUCCEEDED),
        (Cause.STOPPED, Policy(), RunState.STOPPED),
        (Cause.FAILED, Policy(max_failures=0), RunState.FAILED),
        (Cause.FAILED, Policy(max_failures=1), RunState.WAITING),
        (Cause.PREEMPTED, Policy(max_preemptions=1), RunState.WAITING),
        (Cause.PREEMPTED, Policy(max_preemptions=0), RunState.GAVE_UP),
        (Cause.HOST_LOST, Policy(max_preemptions=0), RunState.GAVE_UP),
        (Cause.RESTART_ASKED, Policy(max_restarts=0), RunState.GAVE_UP),
        (Cause.RESTART_ASKED, Policy(max_restarts=1), RunState.WAITING),
    ],
)
def test_an_ended_attempt_is_charged_to_its_own_budget(cause, policy, state):
    attempt = an_attempt(state=AttemptPhase.ENDED, cause=cause)
    run = charge(a_run(policy=policy), attempt, NOW)
    assert run.state is state
    charged = {
        Cause.FAILED: (1, 0, 0),
        Cause.PREEMPTED: (0, 1, 0),
        Cause.HOST_LOST: (0, 1, 0),
        Cause.RESTART_ASKED: (0, 0, 1),
    }.get(cause, (0, 0, 0))
    assert (run.failures, run.preemptions, run.restarts) == charged
