"""Hosts that do not answer and their heartbeats: who is cut off, this machine or they?"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up, pass_until, submit
from tests.support.memory.host import BEAT
from tests.support.memory.process import Process, Steps, Wait, scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.services import sim_services
from tests.support.sim import running_sim
from tpuctl.errors import DeniedError, PendingError, TransientError
from tpuctl.model import timeouts
from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.records import Doubt, RunState, SliceState
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.runs.reconcile import advance_run
from tpuctl.runs.request import request_stop
from tpuctl.runs.take_down import take_down
from tpuctl.slices.heartbeats import HOST_BEATS
from tpuctl.slices.liveness import Liveness
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_run, get_slice, list_runs, save
from tpuctl.views.decisions import decisions
from tpuctl.views.slices import describe_condition, fleet_rows, slice_status
from tpuctl.watch.heartbeat import PassLine
from tpuctl.watch.reconciler import run_pass

MINUTE, HOUR = 60.0, 3600.0


def endless(_process: Process) -> Steps:
    yield Wait()
    return 0


@pytest.fixture
def place(place: MemoryPlace) -> MemoryPlace:
    place.hosts.programs["main.py"] = endless
    return place


def passes(place: MemoryPlace, services: MemoryServices, seconds: float) -> list[PassLine]:
    """Passes a minute apart; the lines of the last one."""
    lines: list[PassLine] = []
    for _ in range(int(seconds / MINUTE)):
        place.clock.advance(MINUTE)
        lines = run_pass(services)
    return lines


def running(place: MemoryPlace, services: MemoryServices, name: str = "big") -> str:
    """A slice with a run on it; the run's id."""
    bring_up(services, name)
    run = submit(services, name, "for ever")
    passes(place, services, 5 * MINUTE)
    assert get_run(services, run.id).record.state is RunState.RUNNING
    return run.id


def mutations(place: MemoryPlace) -> list[str]:
    verbs = ("create", "delete", "patch", "start", "stop", "reset")
    return [entry.method for entry in place.world.journal.entries() if entry.method.endswith(verbs)]


def beat_reads(place: MemoryPlace) -> int:
    """How often guest attributes were asked for."""
    found = [entry for entry in place.world.journal.entries() if entry.method.endswith("getGuestAttributes")]
    return len(found)


def expect_old_heartbeats_to_condemn_nobody(place, hosts):
    """A machine that reaches no host sees heartbeats that stand still, and changes nothing for that."""
    for host in hosts:
        host.publish(BEAT, "of a supervisor that a reboot ended")
    cut_off = place.machine(process=2, reaches=lambda _host: False)
    before = mutations(place)
    with pytest.raises(PendingError):
        bring_up(cut_off, "big")
    (line,) = passes(place, cut_off, 2 * HOUR)
    assert line.result == "blind"
    assert mutations(place) == before


def test_hosts_of_the_only_slice_that_fall_silent_for_good_are_replaced(place):
    services = place.machine()
    run_id = running(place, services)
    place.world.fail_hosts("big-1")
    passes(place, services, 10 * MINUTE)
    assert get_slice(services, "big").record.incarnation.number == 1
    passes(place, services, 50 * MINUTE)
    slice_, run = get_slice(services, "big").record, get_run(services, run_id).record
    assert (slice_.state, slice_.incarnation.number) == (SliceState.READY, 2)
    assert (run.state, run.attempt.number, run.preemptions) == (RunState.RUNNING, 2, 1)
    recorded = {row["action"]: row["reason"] for row in decisions(services, "big")}
    assert "heartbeats have stood still" in recorded["heartbeat"]
    assert "heartbeats have stood still" in recorded["unreachable"]


def test_hosts_that_died_under_a_run_which_is_over_for_that_are_replaced(place):
    services = place.machine()
    bring_up(services, "big")
    run = submit(services, "big", "for ever", policy=RestartPolicy(max_preemptions=0))
    passes(place, services, 5 * MINUTE)
    place.world.fail_hosts("big-1")
    passes(place, services, 30 * MINUTE)
    assert get_run(services, run.id).record.state is RunState.GAVE_UP
    passes(place, services, 40 * MINUTE)
    slice_ = get_slice(services, "big").record
    assert (slice_.state, slice_.incarnation.number) == (SliceState.READY, 2)
    recorded = {row["action"]: row["reason"] for row in decisions(services, "big")}
    assert "heartbeats have stood still" in recorded["unreachable"]


def test_a_heartbeat_of_a_lost_run_says_nothing_once_its_hosts_have_answered_again(place):
    services = place.machine()
    bring_up(services, "big")
    submit(services, "big", "for ever", policy=RestartPolicy(max_preemptions=0))
    passes(place, services, 5 * MINUTE)
    run_id = list_runs(services)[0].id
    hosts = place.hosts.all()
    for host in hosts:
        host.reboot()
    passes(place, services, 30 * MINUTE)
    assert get_run(services, run_id).record.state is RunState.GAVE_UP
    assert get_slice(services, "big").record.state is SliceState.READY
    expect_old_heartbeats_to_condemn_nobody(place, hosts)


def test_a_lost_run_that_was_stopped_after_its_hosts_had_answered_again_condemns_nobody(place):
    services = place.machine()
    run_id = running(place, services)
    hosts = place.hosts.all()
    for host in hosts:
        host.reboot()

    def back() -> bool:
        run = get_run(services, run_id).record
        ended = run.attempt.state is AttemptPhase.ENDED and run.attempt.cause is Cause.HOST_LOST
        return ended and get_slice(services, "big").record.state is SliceState.READY

    for _ in range(60):
        place.clock.advance(MINUTE)
        advance_run(services, run_id)
        if get_run(services, run_id).record.attempt.state is AttemptPhase.ENDED:
            break
    wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    assert back()
    place.clock.advance(10 * MINUTE)
    request_stop(services, run_id)
    advance_run(services, run_id)
    assert get_run(services, run_id).record.state is RunState.STOPPED
    expect_old_heartbeats_to_condemn_nobody(place, hosts)


def test_a_person_is_told_what_to_type_about_silent_hosts_of_which_nothing_else_is_known(place):
    services = place.machine()
    bring_up(services, "big")
    place.world.fail_hosts("big-1")
    services = place.machine(process=2)
    with pytest.raises(PendingError):
        wait_for_slice(services, "big", deadline=services.clock.now() + MINUTE)
    before = mutations(place)
    (line,) = passes(place, services, 2 * HOUR)
    assert line.result == "blind"
    assert "`tpuctl down big`, then up again" in line.why
    assert mutations(place) == before
    rows, _ = fleet_rows(services)
    recorded = [rows[0]["remark"], slice_status(services, "big")["remark"], describe_condition(services, "big")]
    assert all("`tpuctl down big`, then up again" in each for each in recorded)
    take_down(services, "big")
    bring_up(services, "big")
    assert get_slice(services, "big").record.incarnation.number == 2
    assert describe_condition(services, "big") == ""


def test_hosts_that_only_do_not_answer_this_machine_are_left_alone_for_a_day(place):
    services = place.machine()
    run_id = running(place, services)
    cut_off = place.machine(process=2, reaches=lambda _host: False)
    before, stored = mutations(place), get_run(services, run_id).generation
    for _ in range(24):
        (line,) = passes(place, cut_off, HOUR)
        assert (line.subject, line.result) == (run_id, "blind")
    assert "their heartbeats move" in line.why
    assert mutations(place) == before
    assert get_run(services, run_id).generation == stored
    assert [row["action"] for row in decisions(services, "big")].count("heartbeat") == 1
    (line,) = passes(place, services, MINUTE)
    assert line.result == "waiting"


def test_silence_counts_from_when_hosts_answered_last_whichever_machine_asked(place):
    services = place.machine()
    run_id = running(place, services)
    theirs = place.hosts.all()
    bring_up(services, "other")
    partly = place.machine(process=2, reaches=lambda host: host not in theirs)
    for host in theirs:
        host.crash()
        host.refuse()
    passes(place, partly, 6 * MINUTE)  # it sees the run as silent, and waits
    for host in theirs:
        host.reboot()
        host.recover()
    stored = get_slice(services, "big")  # another machine's doubt, which ends
    doubted = replace(stored.record.incarnation, doubt=Doubt(services.store.now(), "it does not answer"))
    save(services, stored, replace(stored.record, state=SliceState.BOOTING, incarnation=doubted))
    wait_for_slice(services, "big")
    answered_at = get_slice(services, "big").record.incarnation.ready_at
    passes(place, partly, 8 * MINUTE)
    record = get_slice(services, "big").record
    assert record.incarnation.number == 1
    assert get_run(services, run_id).record.attempt.cause is Cause.HOST_LOST
    assert record.incarnation.doubt.since >= answered_at
    passes(place, services, 5 * MINUTE)
    assert get_slice(services, "big").record.incarnation.number == 1
    assert get_run(services, run_id).record.state is RunState.RUNNING


def test_a_run_whose_sshd_is_dead_is_left_to_train_although_others_answer(place):
    services = place.machine()
    run_id = running(place, services)
    bring_up(services, "other")
    before = mutations(place)
    for host in place.hosts.all()[:2]:
        host.refuse()
    (line, _) = sorted(
        passes(place, place.machine(process=2), 2 * HOUR), key=lambda line: line.subject != run_id
    )
    assert (line.result, "their heartbeats move" in line.why) == ("blind", True)
    run = get_run(services, run_id).record
    assert (run.state, run.attempt.number) == (RunState.RUNNING, 1)
    assert mutations(place) == before


def test_a_run_that_failed_on_another_worker_does_not_wait_for_one_that_beats(place):
    services = place.machine()

    def train(process: Process) -> Steps:
        if process.env["TPUCTL_RANK"] == "1":
            yield HOUR
            return 3
        yield Wait()
        return 0

    place.hosts.programs["main.py"] = train
    run_id = running(place, services)
    place.hosts.all()[0].refuse()
    passes(place, place.machine(process=2), 30 * MINUTE)
    assert get_run(services, run_id).record.attempt.cause is None
    passes(place, place.machine(process=3), HOUR)
    run = get_run(services, run_id).record
    assert (run.preemptions, run.attempt.number) == (1, 2)


def test_a_heartbeat_ends_with_the_run_and_then_silence_is_no_evidence(place):
    services = place.machine()
    place.hosts.programs["main.py"] = scripted(10 * MINUTE)
    bring_up(services, "big")
    run = submit(services, "big", "ten minutes")
    passes(place, services, 15 * MINUTE)
    assert get_run(services, run.id).record.state is RunState.SUCCEEDED
    assert services.cloud.list_host_heartbeats("us-central2-b", "big-1") == {}


def test_without_guest_attributes_a_machine_that_reaches_nobody_waits_for_a_person(place):
    services = place.machine()
    bring_up(services, "big", metadata={"enable-guest-attributes": "FALSE"})
    run_id = submit(services, "big", "for ever").id
    passes(place, services, 5 * MINUTE)
    place.world.fail_hosts("big-1")
    (line,) = passes(place, services, 3 * HOUR)
    assert (line.subject, line.result) == (run_id, "blind")
    assert "no other host does either" in line.why
    assert get_slice(services, "big").record.incarnation.number == 1


class Refusing:
    """A cloud that does not tell heartbeats."""

    def __init__(self, inner, error):
        self._inner, self._error = inner, error

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def list_host_heartbeats(self, zone, name):
        raise self._error


@pytest.mark.parametrize("error", [TransientError("try again"), DeniedError("not for you")])
def test_heartbeats_that_cannot_be_read_prove_nothing(place, error):
    services = place.machine()
    run_id = running(place, services)
    place.world.fail_hosts("big-1")
    services.cloud = Refusing(services.cloud, error)
    (line,) = passes(place, services, 2 * HOUR)
    assert (line.subject, line.result) == (run_id, "blind")


def test_a_heartbeat_that_a_killed_supervisor_left_behind_does_not_condemn_a_live_slice(place):
    bring_up(place.machine(), "big")
    for host in place.hosts.all():
        host.publish(BEAT, "of a run that was killed with all that belonged to it")
    before = mutations(place)
    cut_off = place.machine(process=2, reaches=lambda _host: False)
    with pytest.raises(PendingError):
        bring_up(cut_off, "big")
    (line,) = passes(place, cut_off, 2 * HOUR)
    assert line.result == "blind"
    assert mutations(place) == before
    assert get_slice(cut_off, "big").record.incarnation.number == 1


def test_two_silent_slices_are_both_replaced(place):
    services = place.machine()
    runs = [running(place, services, name) for name in ("one", "two")]
    for name in ("one-1", "two-1"):
        place.world.fail_hosts(name)
    passes(place, services, 90 * MINUTE)
    for name, run_id in zip(("one", "two"), runs, strict=True):
        assert get_slice(services, name).record.incarnation.number == 2
        assert get_run(services, run_id).record.state is RunState.RUNNING


@pytest.mark.slow
def test_a_blocked_port_is_told_from_dead_hosts_by_real_heartbeats(tmp_path, monkeypatch):
    monkeypatch.setattr(timeouts, "HOST_HEARTBEAT_S", 0.03)
    with running_sim(tmp_path) as sim, sim_services(sim, tmp_path / "state") as services:
        bring_up(services, "big")
        run = submit(services, "big", "import time\ntime.sleep(600)\n")
        pass_until(services, lambda: get_run(services, run.id).record.state is RunState.RUNNING)
        with sim_services(sim, tmp_path / "state", process=2) as blocked:
            blocked.ssh_port, blocked.clock = 1, services.clock
            for _ in range(20):
                (line,) = run_pass(blocked)
                assert line.result == "blind"
                services.clock.sleep(MINUTE)
        assert "their heartbeats move" in line.why
        assert get_slice(services, "big").record.incarnation.number == 1
        sim.fail_hosts("big-1")
        pass_until(services, lambda: get_slice(services, "big").record.incarnation.number == 2, passes=90)
        pass_until(services, lambda: get_run(services, run.id).record.state is RunState.RUNNING)
        recorded = [row["reason"] for row in decisions(services, "big") if row["action"] == "unreachable"]
        assert "heartbeats have stood still" in recorded[0]


def test_ordinary_passes_read_no_heartbeats_and_the_slice_takes_its_notes_along(place):
    services = place.machine()
    running(place, services)
    before = beat_reads(place)
    passes(place, services, HOUR)
    assert beat_reads(place) == before
    cut_off = place.machine("office", reaches=lambda _host: False)
    passes(place, cut_off, 10 * MINUTE)
    assert beat_reads(place) - before <= 10 * MINUTE / timeouts.BEAT_READ_GAP_S
    assert HOST_BEATS.record(services, "big").recorded is Liveness.MOVING
    take_down(services, "big")
    assert HOST_BEATS.record(services, "big") is None
