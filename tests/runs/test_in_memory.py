"""Every workflow over hosts in memory: hours of a fleet's life in milliseconds, by the clock of the test."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.support.environments import make_pinned
from tests.support.jobs import SPEC, bring_up, run_to_end, submit
from tests.support.memory.process import Killed, Process, Steps, Wait, scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.engine.events import Transfer, Warn
from tpuctl.errors import ConflictError
from tpuctl.hosts.requests import StopRequest
from tpuctl.model.attempts import Attempt, AttemptPhase, Cause, TimelineEntry
from tpuctl.model.cloud import FailureKind
from tpuctl.model.records import Doubt, RunRecord, RunState, SliceState
from tpuctl.model.refs import EnvironmentRef
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.model.timeouts import STEP_MAX_S, UNREACHABLE_MAX_S, VERDICT_MAX_S
from tpuctl.model.verdict import Blind
from tpuctl.runs.attempt import attempt_hosts
from tpuctl.runs.follow import follow_run, start_run
from tpuctl.runs.log_archive import restore_logs
from tpuctl.runs.progress import go_on
from tpuctl.runs.reconcile import advance_run, find_end
from tpuctl.runs.request import request_stop
from tpuctl.runs.stops import confirm_stop, stop_error
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_slice
from tpuctl.slices.enrollment import enroll_machine
from tpuctl.slices.reconcile import advance_slice
from tpuctl.state.repository import find_run, get_run, get_slice, save
from tpuctl.views.slices import slice_status
from tpuctl.watch.reconciler import PassLine, run_pass
from tpuctl.workers.exec import execute

pytestmark = pytest.mark.slow

HOUR = 3600.0


def pass_for(place: MemoryPlace, services: MemoryServices, seconds: float) -> None:
    """Passes of a watchdog, one a minute."""
    for _ in range(int(seconds / 60)):
        place.clock.advance(60.0)
        run_pass(services)


def test_a_slice_comes_up_in_minutes_of_its_own_time_and_goes_without_a_trace(place, services):
    began = services.clock.now()
    record = bring_up(services, "big")
    assert record.state is SliceState.READY
    assert 150 < services.clock.now() - began < 600
    assert [set(host.users_seen) for host in place.hosts.all()] == [{"tpuctl"}] * 2
    take_down(services, "big")
    assert get_slice(services, "big").record.state is SliceState.GONE
    assert place.world.snapshot()["nodes"] == place.world.snapshot()["queuedResources"] == []


def test_a_run_of_minutes_is_followed_to_its_end_with_its_output_kept(place, services):
    def train(process: Process) -> Steps:
        for step in range(6):
            process.print(f"rank {process.env['TPUCTL_RANK']} step {step}")
            yield 100.0
        return 0

    place.hosts.programs["main.py"] = train
    bring_up(services, "big")
    began = services.clock.now()
    run = run_to_end(services, "big", "as train says", policy=RestartPolicy())
    assert run.state is RunState.SUCCEEDED, run.reason
    assert services.clock.now() - began >= 600.0
    lines = [f"rank {rank} step {step}" for rank in range(2) for step in range(6)]
    assert sorted(services.output().splitlines()) == lines
    kept = {key: bytes(data).decode() for key, data in services.logs.files.items() if data}
    assert sorted("".join(kept[key] for key in kept if key[3] == "stdout").splitlines()) == lines
    assert {key[2:] for key in kept} == {
        (rank, name) for rank in range(2) for name in ("stdout", "stdout-times")
    }


def test_every_worker_is_told_where_the_coordinator_of_its_attempt_listens(place, services):
    told: dict[str, str] = {}

    def train(process: Process) -> Steps:
        told[process.env["TPUCTL_RANK"]] = process.env["TPUCTL_COORDINATOR"]
        yield 60.0
        return 0

    place.hosts.programs["main.py"] = train
    bring_up(services, "big")
    run = run_to_end(services, "big", "tells")
    assert run.attempt.coordinator
    assert told == {"0": run.attempt.coordinator, "1": run.attempt.coordinator}


def test_passes_bring_a_preempted_slice_and_its_run_back_with_its_logs_up_to_the_last_of_them(place, services):
    place.hosts.programs["main.py"] = scripted(2 * HOUR, lines=[f"second {10 * each}" for each in range(720)])
    bring_up(services, "big")
    run = submit(services, "big", "two hours")
    pass_for(place, services, 600)
    running = get_run(services, run.id).record
    assert running.state is RunState.RUNNING
    collected_s = services.clock.now() - running.attempt.started_at
    place.clock.advance(59.0)
    place.world.preempt("big-1")
    pass_for(place, services, 1800)
    for worker in (0, 1):
        kept = place.logs["laptop"].files[run.id, 1, worker, "stdout"].decode().splitlines()
        assert kept == [f"second {10 * each}" for each in range(len(kept))]
        assert collected_s - 10 < 10 * len(kept) <= collected_s + 10
    again = get_run(services, run.id).record
    assert (again.state, again.attempt.number, again.preemptions) == (RunState.RUNNING, 2, 1)
    assert again.reason == "", "what is over is not why it runs"
    pass_for(place, services, 3 * HOUR)
    assert get_run(services, run.id).record.state is RunState.SUCCEEDED
    assert get_slice(services, "big").record.incarnation.cloud_name == "big-2"


def test_one_worker_that_dies_ends_the_others_and_the_run(place, services):
    def train(process: Process) -> Steps:
        yield 120.0
        if process.env["TPUCTL_RANK"] == "1":
            raise Killed(9)
        yield Wait()

    place.hosts.programs["main.py"] = train
    bring_up(services, "big")
    run = run_to_end(services, "big", "one dies")
    assert run.state is RunState.FAILED
    assert {end.worker: end.signal for end in run.attempt.ends} == {0: 15, 1: 9}


def test_a_run_goes_on_while_this_machine_is_cut_off_and_is_attached_to_again(place):
    blocked = False
    services = place.machine("a", reaches=lambda _host: not blocked)
    place.hosts.programs["main.py"] = scripted(900.0, lines=["one", "two"])
    bring_up(services, "big")
    run = submit(services, "big", "a quarter")
    start_run(services, run.id)
    blocked = True
    pass_for(place, services, 600)
    blocked = False
    after = place.machine("a", process=2)
    assert follow_run(after, run.id).state is RunState.SUCCEEDED
    assert b"".join(after.logs.files.values()).count(b"one") == 2
    assert get_run(after, run.id).record.preemptions == 0


def test_workers_that_are_lost_while_others_go_on_are_told_in_one_line_by_cause(place, services):
    record = bring_up(services, "big", accelerator_type="v4-32", hosts=4, chips=16)
    place.hosts.programs["long"] = scripted(600.0)
    for host in place.hosts.all()[1:]:
        host.hang()
    results = execute(services, record, ["long"])
    assert [result.ok for result in results] == [True, False, False, False]
    told = [(event.subject, event.text) for event in services.events if isinstance(event, Warn)]
    [(subject, text)] = told
    assert (subject, text.partition(":")[0]) == ("big[1-3]", "broke off the SSH handshake")


def test_exec_is_in_a_session_and_ends_with_its_time(place, services):
    record = bring_up(services, "big")
    said: dict[int, bytes] = {}

    def sink(worker: int, name: str, data: bytes) -> None:
        said[worker] = data

    results = execute(services, record, ["hostname"], sink=sink)
    expected = {n: f"{worker.hostname}\n".encode() for n, worker in enumerate(record.incarnation.workers)}
    assert ([result.ok for result in results], said) == ([True, True], expected)
    place.hosts.programs["endless"] = scripted(1e9)
    ended = execute(services, record, ["endless"], timeout_s=30.0)
    assert {result.failure for result in ended} == {FailureKind.TIMEOUT}
    place.clock.advance(10.0)
    for host in place.hosts.all():
        host.advance()
        assert [process.argv for process in host.processes if process.alive] == []


def test_code_over_a_slow_link_takes_several_bounded_passes_and_then_the_run_starts(place):
    services = place.machine(bytes_per_s=500_000.0)
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    run = submit(services, "big", "x" * 30_000_000)
    took: list[float] = []
    lines: list[PassLine] = []
    while get_run(services, run.id).record.state is not RunState.RUNNING:
        assert len(took) < 15
        began = services.clock.now()
        lines += run_pass(services)
        took.append(services.clock.now() - began)
        place.clock.advance(60.0)
    assert max(took) <= STEP_MAX_S
    sending = sum(seconds > 10.0 for seconds in took)
    assert sending == 5, "60 s of sending in slices of 12 s: nothing was sent twice"
    expected = [event.total_bytes for event in services.events if isinstance(event, Transfer)]
    assert sorted(expected, reverse=True) == expected, "each pass has less to send than the one before"
    assert next(line.acted for line in lines if line.subject == run.id), "it began the attempt"


def step_until_running(place: MemoryPlace, services: MemoryServices, run_id: str, passes: int) -> list[float]:
    """Steps as passes do, one pass a minute; how long each step took."""
    took: list[float] = []
    for _ in range(passes):
        acted = True
        while acted:
            began = services.clock.now()
            acted = advance_run(services, run_id).acted
            took.append(services.clock.now() - began)
            if get_run(services, run_id).record.state is RunState.RUNNING:
                return took
        place.clock.advance(60.0)
    raise AssertionError(f"not running after {passes} passes: {get_run(services, run_id).record.attempt}")


@pytest.mark.parametrize("answer_s", [0.0, 1.5, 3.0, 5.0])
def test_no_step_outlasts_its_limit_where_hosts_answer_slowly_and_the_code_is_large(place, answer_s):
    services = place.machine(bytes_per_s=500_000.0)
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    run = submit(services, "big", "x" * 10_000_000)
    place.hosts.answer_s = answer_s
    took = step_until_running(place, services, run.id, passes=15)
    assert max(took) <= STEP_MAX_S
    attempt = get_run(services, run.id).record.attempt
    assert (attempt.number, attempt.suspect_since) == (1, None), "slow is not lost"
    assert [row["worker"] for row in attempt.hosts] == ["0", "1"]


@pytest.mark.parametrize("answer_s", [1.5, 3.0])
def test_no_step_outlasts_its_limit_with_an_environment_on_slow_hosts(place, services, answer_s):
    spec = make_pinned({"numpy": ("2.0.0", "0" * 64)}, "3.10", name="small")
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    run = submit(services, "big", "in its environment")
    stored = find_run(services, run.id)
    blob = services.store.put_blob(spec.content)
    pinned = replace(stored.record.spec, environment=EnvironmentRef("small", blob))
    save(services, stored, replace(stored.record, spec=pinned))
    place.hosts.answer_s = answer_s
    took = step_until_running(place, services, run.id, passes=15)
    assert max(took) <= STEP_MAX_S
    attempt = get_run(services, run.id).record.attempt
    assert (attempt.number, [row["packages"] for row in attempt.hosts]) == (1, ["numpy==2.0.0"] * 2)


@pytest.mark.parametrize("trouble", ["no python", "silent"])
def test_an_environment_that_cannot_be_had_ends_the_run_and_hosts_that_are_silent_do_not(
    place, services, trouble
):
    spec = make_pinned(
        {"numpy": ("2.0.0", "0" * 64)}, "3.12" if trouble == "no python" else "3.10", name="small"
    )
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    run = submit(services, "big", "in its environment")
    stored = find_run(services, run.id)
    blob = services.store.put_blob(spec.content)
    pinned = replace(stored.record.spec, environment=EnvironmentRef("small", blob))
    save(services, stored, replace(stored.record, spec=pinned))
    place.hosts.answer_s = 6.0
    while get_run(services, run.id).record.attempt is None:
        advance_run(services, run.id)
    assert get_run(services, run.id).record.attempt.hosts, "all have said who they are"
    if trouble == "silent":
        place.hosts.all()[1].hang()
    if trouble == "silent":
        assert "worker 1" in advance_run(services, run.id).verdict.why
        return
    while not get_run(services, run.id).record.state.final:
        advance_run(services, run.id)
    ended = get_run(services, run.id).record
    assert (ended.state, ended.attempt.cause, ended.failures) == (RunState.FAILED, Cause.DRIFTED, 0)
    assert "environment small needs Python 3.12, which this host has not" in ended.reason
    assert "mend it: tpuctl env lock small" in ended.reason


def test_steps_that_meet_hosts_too_slow_for_them_end_in_time_and_start_nothing(place, services):
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    run = submit(services, "big", "for hosts that hang")
    place.hosts.answer_s = 30.0
    for _ in range(3):
        began = services.clock.now()
        outcome = advance_run(services, run.id)
        assert services.clock.now() - began <= STEP_MAX_S
    assert (outcome.acted, "did not answer" in outcome.verdict.why) == (False, True)
    assert worker_processes(place, run.id) == []


def test_a_step_in_which_no_host_of_any_slice_answers_ends_in_time(place, services):
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    bring_up(services, "other")
    run = submit(services, "big", "cut off")
    start_run(services, run.id)
    for host in place.hosts.all():
        host.hang()
    began = services.clock.now()
    outcome = advance_run(services, run.id)
    assert services.clock.now() - began <= STEP_MAX_S
    assert isinstance(outcome.verdict, Blind)


def test_a_slice_whose_hosts_have_gone_silent_is_looked_at_in_bounded_steps(place, services):
    bring_up(services, "big")
    bring_up(services, "other")
    for host in place.hosts.all():
        host.hang()
    stored = get_slice(services, "big")
    doubt = Doubt(services.store.now() - HOUR / 6, "nobody answers")
    doubted = replace(stored.record.incarnation, doubt=doubt)
    save(services, stored, replace(stored.record, state=SliceState.BOOTING, incarnation=doubted))
    began = services.clock.now()
    outcome, _ = advance_slice(services, "big")
    assert services.clock.now() - began <= STEP_MAX_S
    assert isinstance(outcome.verdict, Blind)


@pytest.mark.parametrize("rebooted", [True, False], ids=["reboot", "end of a program"])
def test_what_became_of_one_host_is_no_silence_of_another(place, services, rebooted):
    def train(process: Process) -> Steps:
        yield HOUR if process.env["TPUCTL_RANK"] == "0" or rebooted else 60.0
        return 1

    place.hosts.programs["main.py"] = train
    bring_up(services, "big")
    run = submit(services, "big", "train")
    start_run(services, run.id)
    first, second = place.hosts.all()
    place.clock.advance(60.0)
    if rebooted:
        second.reboot()
    advance_run(services, run.id)
    assert get_run(services, run.id).record.attempt.suspect_since is not None
    place.clock.advance(30.0 if rebooted else 1.0)
    first.hang()
    hung_at = place.clock.now()
    pass_for(place, services, 240)
    incarnation = get_slice(services, "big").record.incarnation
    assert (incarnation.cloud_name, incarnation.doubt.since >= hung_at) == ("big-1", True)


@pytest.mark.parametrize("hosts", [(1,), (0, 1)], ids=["one host", "all hosts"])
def test_a_home_that_fills_up_after_its_slice_was_ready_has_it_made_anew(place, services, hosts):
    bring_up(services, "big")
    for worker in hosts:
        place.hosts.all()[worker].unfit = "cannot install the agent: No space left on device"
    stored = get_slice(services, "big")
    doubted = replace(stored.record.incarnation, doubt=Doubt(services.store.now(), "a run lost its hosts"))
    save(services, stored, replace(stored.record, state=SliceState.BOOTING, incarnation=doubted))
    pass_for(place, services, UNREACHABLE_MAX_S - 120)
    assert get_slice(services, "big").record.incarnation.cloud_name == "big-1"
    pass_for(place, services, 900)
    record = get_slice(services, "big").record
    assert (record.state, record.incarnation.cloud_name) == (SliceState.READY, "big-2")


def test_a_worker_that_says_nothing_leaves_time_to_stop_the_others(place, services):
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    run = submit(services, "big", "one of two")
    start_run(services, run.id)
    request_stop(services, run.id)
    advance_run(services, run.id)
    first, second = place.hosts.all()
    first.hang()
    began = services.clock.now()
    advance_run(services, run.id)
    assert services.clock.now() - began <= STEP_MAX_S
    place.clock.advance(5.0)
    second.advance()
    assert [process.argv for process in second.processes if process.alive] == []


@pytest.mark.parametrize("answer_s", [0.0, 3.0, 5.0])
def test_all_of_large_logs_is_kept_in_steps_that_end_in_time(place, answer_s):
    services = place.machine()
    lines = [f"{number:07d} " + "x" * 992 for number in range(20_000)]
    place.hosts.programs["main.py"] = scripted(60.0, lines=lines)
    bring_up(services, "big")
    run = submit(services, "big", "much to say")
    start_run(services, run.id)
    place.clock.advance(90.0)
    place.hosts.answer_s = answer_s
    took: list[float] = []
    while not get_run(services, run.id).record.state.final:
        assert len(took) < 60
        began = services.clock.now()
        advance_run(services, run.id)
        took.append(services.clock.now() - began)
        place.clock.advance(1.0)
    assert max(took) <= STEP_MAX_S
    whole = "".join(f"{line}\n" for line in lines).encode()
    for worker in (0, 1):
        assert bytes(place.logs["laptop"].files[run.id, 1, worker, "stdout"]) == whole


def test_logs_of_a_worker_that_answers_too_slowly_are_not_waited_for_without_end(place, services):
    place.hosts.programs["main.py"] = scripted(60.0, lines=["done"])
    bring_up(services, "big")
    run = submit(services, "big", "a word")
    start_run(services, run.id)
    place.clock.advance(90.0)
    place.hosts.answer_s = 11.0
    began = place.clock.now()
    while not get_run(services, run.id).record.state.final:
        started = services.clock.now()
        advance_run(services, run.id)
        assert services.clock.now() - started <= STEP_MAX_S
        place.clock.advance(1.0)
        assert place.clock.now() - began < 300.0
    assert get_run(services, run.id).record.state is RunState.SUCCEEDED


def test_two_machines_share_a_fleet_and_a_pass_without_news_changes_nothing(place):
    first, second = place.machine("a"), place.machine("b", skew_s=120.0)
    enroll_machine(second)
    bring_up(first, "big")
    before = (place.server.changes, len(place.world.journal.entries()))
    for services in (first, second):
        lines = run_pass(services)
        assert [(line.subject, line.result, line.acted) for line in lines] == [("big", "done", False)]
    assert (place.server.changes, len(place.world.journal.entries())) == before


def worker_processes(place: MemoryPlace, run_id: str) -> list[str]:
    """The attempts of a run that run on any host, one entry per process."""
    running = [each for host in place.hosts.all() for each in host.running()]
    return sorted(each.number for each in running if each.run == run_id)


def test_an_attempt_that_outlived_two_others_is_ended_before_the_next(place, services):
    """A worker whose network comes and goes: attempt 1 lives on there while 2 cannot even be prepared."""
    lost_peer = []

    def train(process: Process) -> Steps:
        while process.env["TPUCTL_RANK"] == "1" or not lost_peer:
            yield 10.0
        return 1

    place.hosts.programs["main.py"] = train
    bring_up(services, "other")
    bring_up(services, "big")
    run = submit(services, "big", "as registered", policy=RestartPolicy(grace_s=1.0))
    start_run(services, run.id)
    flaky = place.hosts.all()[-1]

    def attempt() -> tuple[int, str]:
        found = get_run(services, run.id).record.attempt
        return (0, "") if found is None else (found.number, str(found.state))

    flaky.vanish()
    lost_peer.append(flaky)
    while attempt() != (1, "ended"):
        pass_for(place, services, 60)
    assert worker_processes(place, run.id) == ["1"]
    lost_peer.clear()
    flaky.recover()
    cut = place.machine("cut", reaches=lambda host: host is not flaky)
    while attempt()[0] == 1:
        # The slice is found well; who begins the attempt does not reach that worker.
        place.clock.advance(60)
        advance_slice(services, "big")
        advance_run(cut, run.id)
    flaky.vanish()
    while attempt() != (2, "ended"):
        pass_for(place, services, 60)
    assert worker_processes(place, run.id) == ["1"]
    flaky.recover()
    pass_for(place, services, 600)
    assert attempt() == (3, "running")
    assert worker_processes(place, run.id) == ["3", "3"]


def test_what_a_stopped_run_left_behind_is_ended_before_the_next_run(place, services):
    place.hosts.programs["main.py"] = scripted(24 * HOUR)
    bring_up(services, "other")
    bring_up(services, "big")
    first = submit(services, "big", "as registered", policy=RestartPolicy(grace_s=1.0))
    start_run(services, first.id)
    place.hosts.all()[-1].vanish()
    request_stop(services, first.id)
    pass_for(place, services, 300)
    assert get_run(services, first.id).record.state is RunState.STOPPED
    assert worker_processes(place, first.id) == ["1"]
    place.hosts.all()[-1].recover()
    second = submit(services, "big", "as registered", policy=RestartPolicy(grace_s=1.0), variables={"N": "2"})
    pass_for(place, services, 300)
    assert get_run(services, second.id).record.state is RunState.RUNNING
    assert worker_processes(place, first.id) == []
    assert worker_processes(place, second.id) == ["1", "1"]


def test_a_node_that_vanished_before_anybody_saw_it_is_asked_for_again(place, services):
    request_slice(services, "big", SPEC, pay=False, admit=lambda: None)
    while get_slice(services, "big").record.state is not SliceState.PROVISIONING:
        pass_for(place, services, 60)
    place.clock.advance(HOUR)
    [node] = place.world._kernel.nodes.values()
    place.world._nodes.finish_deletion(node)
    assert [request.state for request in services.cloud.list_queued().items] == ["ACTIVE"]
    pass_for(place, services, 540)
    assert get_slice(services, "big").record.last_incarnation == 1
    pass_for(place, services, 900)
    assert get_slice(services, "big").record.state is SliceState.READY
    assert get_slice(services, "big").record.last_incarnation == 2


def test_a_node_that_was_missing_has_the_whole_time_for_its_silent_hosts(place, services):
    bring_up(services, "other")
    bring_up(services, "big")
    node = next(node for node in place.world._kernel.nodes.values() if node.path.id == "big-1")
    place.world._kernel.hidden.add(node.path.name)
    pass_for(place, services, 480)
    assert get_slice(services, "big").record.state is SliceState.BOOTING
    for host in place.hosts.hosts_of(node.key):
        host.vanish()
    place.world._kernel.hidden.clear()
    pass_for(place, services, 840)
    assert get_slice(services, "big").record.state is SliceState.BOOTING, "given up before its time"
    for host in place.hosts.hosts_of(node.key):
        host.recover()
    pass_for(place, services, 60)
    assert get_slice(services, "big").record.state is SliceState.READY


def test_a_node_taken_between_two_reads_of_it_is_looked_at_again(place, services):
    gone = {"kind": "error", "method": "nodes.getGuestAttributes", "code": 5, "message": "was not found"}
    place.world.faults.add({**gone, "times": 3})
    assert bring_up(services, "big").state is SliceState.READY


def run_whose_stop_one_worker_did_not_hear(place, services):
    """Stopped while its last worker, which works on, could not be reached; with that host."""
    place.hosts.programs["main.py"] = scripted(10 * HOUR)
    bring_up(services, "big")
    run = submit(services, "big", "as main.py says", policy=RestartPolicy(grace_s=1.0))
    start_run(services, run.id)
    host = place.hosts.all()[-1]
    host.refuse()
    host.cut()
    request_stop(services, run.id)
    return follow_run(services, run.id), host


def test_a_stop_that_a_worker_did_not_hear_says_which_until_a_second_one_ends_it(place, services):
    stopped, host = run_whose_stop_one_worker_did_not_hear(place, services)
    error = stop_error(services, stopped)
    assert (stopped.state, error.exit_code, error.details["workers"]) == (RunState.STOPPED, 3, [1])
    assert "worker 1 of big did not answer" in error.message
    assert f"tpuctl stop {stopped.id}" in error.hint
    again = confirm_stop(services, stopped.id)
    assert stop_error(services, again).details["workers"] == [1]
    host.recover()
    assert stop_error(services, confirm_stop(services, stopped.id)) is None
    assert place.hosts.all()[-1].processes == []
    assert get_run(services, stopped.id).record.attempt.ends[1].note == "stopped"
    assert get_run(services, stopped.id).record.attempt.ends[1].stopped


def test_nothing_of_a_stopped_run_is_left_to_prove_when_its_hosts_are_gone(place, services):
    stopped, _host = run_whose_stop_one_worker_did_not_hear(place, services)
    take_down(services, "big")
    assert stop_error(services, confirm_stop(services, stopped.id)) is None


def test_a_pass_ends_what_a_stop_could_not_reach(place, services):
    stopped, host = run_whose_stop_one_worker_did_not_hear(place, services)
    run_pass(services)
    assert stop_error(services, get_run(services, stopped.id).record) is not None
    host.recover()
    pass_for(place, services, 180.0)
    assert stop_error(services, get_run(services, stopped.id).record) is None
    assert host.processes == []


@pytest.mark.parametrize(("status", "state"), [(0, RunState.SUCCEEDED), (7, RunState.FAILED)])
def test_a_run_that_ended_unseen_does_not_hold_its_slice(place, services, status, state):
    place.hosts.programs["main.py"] = scripted(60.0, exit_status=status)
    bring_up(services, "big")
    first = submit(services, "big", "as main.py says", policy=RestartPolicy(max_failures=0))
    start_run(services, first.id)
    with pytest.raises(ConflictError, match=f"run {first.id} is still running"):
        submit(services, "big", "another")
    place.clock.advance(HOUR)
    second = submit(services, "big", "another")
    assert second.id != first.id
    assert get_run(services, first.id).record.state is state


def test_a_look_for_the_end_of_a_run_that_works_changes_nothing(place, services):
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    started = start_run(services, submit(services, "big", "as main.py says").id)
    began = services.clock.now()
    assert find_end(services, started.id) == started
    assert services.clock.now() - began < 5.0


def test_after_five_attempts_without_a_newer_checkpoint_a_person_is_asked(place, services):
    place.hosts.programs["main.py"] = scripted(100 * HOUR)
    bring_up(services, "big", queued=False)
    run = submit(services, "big", "for ever")
    stored = get_run(services, run.id)
    spec = replace(run.spec, no_checkpoint=False, checkpoint_dir="gs://bucket/ck")
    save(services, stored, replace(stored.record, spec=spec))
    services.objects.write("gs://bucket/ck/step_1/data", b"weights")

    def run_until(wanted: Callable[[RunRecord], object]) -> None:
        for _ in range(60):
            pass_for(place, services, 60.0)
            if wanted(get_run(services, run.id).record):
                return
        raise AssertionError(f"it never happened: {get_run(services, run.id).record}")

    def runs(attempt: int) -> Callable[[RunRecord], object]:
        return lambda record: record.state is RunState.RUNNING and record.attempt.number == attempt

    for number in range(1, 7):
        run_until(runs(number))
        services.objects.write(f"gs://bucket/ck0/step_{number}/data", b"weights of another run")
        place.world.preempt(get_slice(services, "big").record.incarnation.cloud_name)
    run_until(lambda record: record.question)
    pass_for(place, services, 300.0)
    lines = run_pass(services)
    assert [(line.subject, line.result) for line in lines] == [(run.id, "blocked")]
    assert "5 attempts ended without a newer checkpoint" in lines[0].why
    record = get_run(services, run.id).record
    assert (record.preemptions, record.fruitless, record.attempt.number) == (6, 5, 6)
    go_on(services, run.id)
    run_until(runs(7))


@pytest.mark.parametrize(("workers", "incarnation"), [((1, 1, 2), 2), ((1, 0, 1, 2), 2), ((1, 0, 2), 1)])
def test_another_slice_is_asked_for_when_hardware_of_a_worker_fails_twice(
    place, services, workers, incarnation
):
    """`workers` has whose chip fails in each attempt; 2 is nobody's."""
    failing = iter(workers)

    def train(process: Process) -> Steps:
        if process.env["TPUCTL_RANK"] == "0":
            place.bad = next(failing)
        yield 100.0
        if process.env["TPUCTL_RANK"] == str(place.bad):
            process.print("Core halted: the observed errors are: [Hardware].", "stderr")
            return 1
        yield 100.0
        return 0

    place.hosts.programs["main.py"] = train
    bring_up(services, "big")
    policy = RestartPolicy(max_failures=0, max_preemptions=3, grace_s=1.0)
    run = run_to_end(services, "big", "breaks chips", policy=policy)
    assert (run.state, run.failures) == (RunState.SUCCEEDED, 0)
    broken = [e for e in services.store.list("journal/slices/big/") if e.data["action"] == "broken"]
    assert len(broken) == incarnation - 1
    assert get_slice(services, "big").record.last_incarnation == incarnation


def test_what_one_machine_collected_is_there_for_another_without_the_hosts(place, services):
    def train(process: Process) -> Steps:
        for number in range(1000):
            process.write(b"%d: %d\n" % (int(process.env["TPUCTL_RANK"]), number))
            yield 10.0
        return 0

    place.server.shared = True
    place.hosts.programs["main.py"] = train
    bring_up(services, "big")
    run = submit(services, "big", "writes on and on")
    start_run(services, run.id)
    watchdog = place.machine("watchdog")
    for _ in range(3):
        pass_for(place, watchdog, 60)
    [document] = services.store.list(f"logs/{run.id}/")
    assert len(document.data["segments"]) >= 2
    collected = [watchdog.logs.read(run.id, 1, worker, "stdout", 0, 1 << 20) for worker in (0, 1)]
    assert min(map(len, collected)) > 60
    services.logs.write(run.id, 1, 1, "stdout", 0, collected[1][:5])
    for _ in range(2):
        restore_logs(services, run.id, 1)
        here = [services.logs.read(run.id, 1, worker, "stdout", 0, 1 << 20) for worker in (0, 1)]
        assert here == collected


def lose_worker_1(place: MemoryPlace, services: MemoryServices, run: RunRecord, limit_s: float) -> None:
    """Worker 1 loses its network; the cause is decided within 30 s of the limit, and names it."""
    began = services.store.now()
    place.hosts.all()[1].vanish()
    attempt = get_run(services, run.id).record.attempt
    while attempt.cause is None:
        assert services.store.now() - began <= limit_s + 30.0
        place.clock.advance(5.0)
        advance_run(services, run.id)
        attempt = get_run(services, run.id).record.attempt
    assert attempt.cause is Cause.HOST_LOST
    assert re.search("worker 1(:| does) no", attempt.suspect_why)


@pytest.mark.parametrize(("peer_ends", "limit_s"), [(False, UNREACHABLE_MAX_S), (True, VERDICT_MAX_S)])
def test_a_worker_that_loses_its_network_is_named_in_time_and_the_others_stop(
    place, services, peer_ends, limit_s
):
    """Its peers hang in a collective operation, or end because of it."""

    def train(process: Process) -> Steps:
        who = process.env["TPUCTL_ATTEMPT"], process.env["TPUCTL_RANK"]
        while not (peer_ends and who == ("1", "0")):
            yield 1.0
        yield 10.0
        process.write(b"Connection closed by peer\n", "stderr")
        return 1

    place.hosts.programs["main.py"] = train
    bring_up(services, "big")
    run = submit(services, "big", "loses the network of worker 1")
    start_run(services, run.id)
    lose_worker_1(place, services, run, limit_s)
    pass_for(place, services, 1800)
    record = get_run(services, run.id).record
    assert (record.state, record.attempt.number, record.preemptions) == (RunState.RUNNING, 2, 1)
    assert worker_processes(place, run.id) == ["2", "2"]


def test_a_stall_limit_counts_where_a_worker_has_lost_its_network_too(place, services):
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    limits = {"first_step_limit_s": 60.0, "stall_s": 60.0, "on_stall": "restart"}
    run = submit(services, "big", "loses the network of worker 1", **limits)
    start_run(services, run.id)
    lose_worker_1(place, services, run, 60.0)
    request_stop(services, run.id)
    pass_for(place, services, 1200)
    assert get_run(services, run.id).record.state is RunState.STOPPED
    assert worker_processes(place, run.id) in ([], ["1"]), "but on the host that nobody reaches"


@pytest.mark.parametrize("stall", ["report", "restart"])
def test_a_worker_that_runs_on_when_the_others_have_ended_is_told_and_restarted(place, services, stall):
    def train(process: Process) -> Steps:
        for step in range(9):
            if step == 5 and process.env["TPUCTL_RANK"] == "1" and not restarted(services):
                yield 9 * HOUR
            process.print(f"step {step}")
            yield 10.0
        return 0

    place.hosts.programs["main.py"] = train
    bring_up(services, "big")
    run = submit(
        services, "big", "hangs", progress=r"step (\d+)", stall_s=120.0, on_stall=stall, policy=RestartPolicy()
    )
    start_run(services, run.id)
    pass_for(place, services, 1200)
    record, told = get_run(services, run.id).record, "worker 1: at the same step since "
    if stall == "restart":
        assert (record.state, record.failures) == (RunState.SUCCEEDED, 1)
        return
    assert record.attempt.stalled.startswith(told)
    assert record.attempt.stalled.endswith("; the others have ended")
    rows = [document.data for document in services.store.list(f"journal/{run.key}/")]
    assert len([row for row in rows if row["action"] == "stalled"]) == 1


def restarted(services: MemoryServices) -> bool:
    return any(key[1] == 2 for key in services.logs.files)


def test_where_the_others_stood_when_a_worker_failed_is_kept(place, services):
    def train(process: Process) -> Steps:
        yield 10.0
        if process.env["TPUCTL_RANK"] == "1":
            return 1
        yield HOUR
        return 0

    place.hosts.programs["main.py"] = train
    bring_up(services, "big")
    run = run_to_end(services, "big", "fails on worker 1")
    assert run.state is RunState.FAILED
    kept = {key[2:] for key in services.logs.files if key[:2] == (run.id, 1) and key[3] in ("stacks", "host")}
    assert kept == {(0, "stacks"), (1, "host")}


def attempt_of(services: MemoryServices, run: RunRecord) -> Attempt:
    attempt = get_run(services, run.id).record.attempt
    assert attempt is not None
    return attempt


def test_of_a_start_that_a_worker_refused_no_stacks_are_fetched(place, services):
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    run = submit(services, "big", "is stopped on worker 1 by hand")
    place.hosts.answer_s = 4.0
    while get_run(services, run.id).record.attempt is None or not attempt_of(services, run).coordinator:
        advance_run(services, run.id)
    place.hosts.answer_s = 0.0
    hosts = attempt_hosts(services, get_run(services, run.id).record, get_slice(services, "big").record)
    hosts.agent.ask(hosts.targets[1:], StopRequest(run.id, hosts.attempt.attempt_id, 1.0))
    over = follow_run(services, run.id, deadline=services.clock.now() + 3600)
    assert "was stopped before it started" in over.reason
    assert not [key for key in services.logs.files if key[3] == "stacks"]


@pytest.mark.parametrize("lost", ["host", "sshd"])
def test_a_worker_lost_before_it_said_that_it_began_is_named_at_once_and_the_run_begins_again(
    place, services, lost
):
    """Without its sshd alone the heartbeats of its host go on, and have been seen to move by the limit."""
    limit_s = 600.0
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    wait = {"on_stall": "restart", "stall_s": 30.0, "first_step_limit_s": limit_s}
    run = submit(services, "big", "waits for its peer", policy=RestartPolicy(), **wait)
    place.hosts.answer_s = 5.0  # such that they are prepared in one pass and started in the next
    advance_run(services, run.id)
    while attempt_of(services, run).state is AttemptPhase.PREPARING:
        advance_run(services, run.id)
    assert attempt_of(services, run).state is AttemptPhase.STARTING
    _, cut = place.hosts.all()
    cut.vanish() if lost == "host" else cut.hang()
    place.hosts.answer_s = 0.0
    advance_run(services, run.id)
    rows = [document.data for document in services.store.list(f"journal/{run.key}/")]
    assert ["worker 1" in row["reason"] for row in rows if row["action"] == "suspect"] == [True]
    began = services.clock.now()
    while attempt_of(services, run).cause is None:
        place.clock.advance(5.0)
        advance_run(services, run.id)
    assert services.clock.now() - began < limit_s + 30.0
    assert attempt_of(services, run).cause is Cause.HOST_LOST
    cut.recover()
    pass_for(place, services, 300)
    again = get_run(services, run.id).record
    assert (again.state, again.attempt.number) == (RunState.RUNNING, 2)
    assert len(worker_processes(place, run.id)) == 2


def test_variables_are_recorded_although_the_answer_to_the_start_was_lost(place, services):
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    run = submit(services, "big", "starts", variables={"XLA_FLAGS": "--mine"})
    place.hosts.answer_s = 4.0
    while get_run(services, run.id).record.attempt is None or not attempt_of(services, run).coordinator:
        advance_run(services, run.id)
    place.hosts.answer_s = 0.0
    hosts = attempt_hosts(services, get_run(services, run.id).record, get_slice(services, "big").record)
    assert hosts.start(), "as by a process that died before it wrote that down"
    advance_run(services, run.id)
    found = attempt_of(services, run)
    assert (found.state, len(worker_processes(place, run.id))) == (AttemptPhase.RUNNING, 2)
    assert {row["name"]: row["value"] for row in found.variables}["XLA_FLAGS"] == "--mine"


def test_status_says_that_steps_have_become_slow_or_that_the_run_stands_still(place, services):
    place.hosts.programs["main.py"] = scripted(HOUR)
    bring_up(services, "big")
    run = submit(services, "big", "goes on")
    start_run(services, run.id)

    def trouble(**changes):
        stored = get_run(services, run.id)
        save(services, stored, replace(stored.record, attempt=replace(stored.record.attempt, **changes)))
        return slice_status(services, "big")["run"]["trouble"]

    assert trouble() is None
    slow = TimelineEntry(1.0, "slow", "0.9 steps/s in the last 5 min, 2.1 before")
    assert trouble(usual_rate=2.1, timeline=(slow,)) == f"slow: {slow.detail}"
    assert trouble(stalled="worker 1: no output") == "stands still: worker 1: no output"
    assert trouble(stalled="", usual_rate=0.0) is None
