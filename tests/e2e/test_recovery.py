"""Preemptions, failures and stops: the run comes back, ends, or is charged to the right budget."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from tests.support.compute_slices import GROUP
from tests.support.hosts import shared_folder, wait_until
from tests.support.jobs import SPEC, attempt_row, bring_up, run_to_end, submit
from tests.support.services import SimServices, sim_services
from tests.support.sim import RunningSim
from tests.support.soak import soak
from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.cloud import Api
from tpuctl.model.records import RunState, SliceState
from tpuctl.provenance.parts import load_manifest
from tpuctl.runs.request import request_stop
from tpuctl.runs.take_down import take_down
from tpuctl.slices.desired import request_down, request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_run, get_slice, list_attempts
from tpuctl.views.decisions import decisions
from tpuctl.watch.reconciler import run_pass

FIRST_ATTEMPT_HANGS = """
import os, time, pathlib
attempt = os.environ["TPUCTL_ATTEMPT"]
pathlib.Path(os.environ["MARKS"], attempt + "-" + os.environ["TPUCTL_RANK"]).touch()
print("attempt", attempt, flush=True)
while attempt == "1":
    time.sleep(0.1)
"""


def preempt_when_running(
    sim: RunningSim, services: SimServices, run_id: str, cloud_name: str
) -> threading.Thread:
    """Preempts once output of both workers was seen."""

    def work() -> None:
        wait_until(lambda: all(services.logs.size(run_id, 1, worker, "stdout") for worker in (0, 1)))
        sim.preempt(cloud_name)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"queued": True}, id="queued"),
        soak({"queued": False}, id="direct"),
        pytest.param(GROUP, id="compute"),
    ],
)
def test_a_preempted_run_goes_on_as_the_next_attempt_on_a_new_incarnation(sim, services, tmp_path, spec):
    marks = shared_folder(tmp_path / "marks")
    bring_up(services, "big", **spec)
    preempter = preempt_when_running(sim, services, "run-0001", "big-1")
    run = run_to_end(services, "big", FIRST_ATTEMPT_HANGS, variables={"MARKS": str(marks)})
    preempter.join()
    assert run.state is RunState.SUCCEEDED
    assert (run.failures, run.preemptions) == (0, 1)
    assert sorted(mark.name for mark in marks.iterdir()) == ["1-0", "1-1", "2-0", "2-1"]
    first, second = list_attempts(services, run.id)
    assert (first.cause, first.incarnation) == (Cause.PREEMPTED, 1)
    assert (second.cause, second.incarnation) == (Cause.SUCCEEDED, 2)
    assert first.coordinator != second.coordinator
    assert attempt_row(services, run.id, 1)["cause"] == "preempted"
    assert [node.name for node in services.tpus(spec.get("api", Api.TPU)).list_nodes().items] == ["big-2"]
    assert [q.name for q in services.cloud.list_queued().items] == (["big-2"] if spec.get("queued") else [])
    # The output of the lost attempt outlived its hosts.
    assert Path(services.logs.path(run.id, 1, 0, "stdout")).read_text() == "attempt 1\n"


def test_code_variables_and_secrets_of_the_first_attempt_are_those_of_the_second(
    sim, services, tmp_path, monkeypatch
):
    marks = shared_folder(tmp_path / "marks")
    monkeypatch.setenv("MY_TOKEN", "s3cret-é\n")
    program = FIRST_ATTEMPT_HANGS + (
        "\nimport hashlib; print(hashlib.sha256(os.environ['TOKEN'].encode()).hexdigest())"
        "\nprint(repr(os.environ['TOKEN']), os.environ['NOTE'])\n"
    )
    bring_up(services, "big")
    preempter = preempt_when_running(sim, services, "run-0001", "big-1")
    variables = {"MARKS": str(marks), "NOTE": "a 'b' \"c\" $d ; é"}
    run = run_to_end(services, "big", program, variables=variables, secrets={"TOKEN": "env:MY_TOKEN"})
    preempter.join()
    assert run.state is RunState.SUCCEEDED
    said = services.output()
    assert hashlib.sha256("s3cret-é\n".encode()).hexdigest() in said
    assert "'***********' a 'b' \"c\" $d ; é" in said
    stored = "".join(str(dict(document.data)) for document in services.store.list(""))
    assert "s3cret" not in stored
    assert "'secrets': ['TOKEN']" in str(load_manifest(services, run.id))


def test_stockouts_are_waited_out_with_a_new_name_each_time(sim, services):
    sim.fault(preset="stockout", times=2)
    record = bring_up(services, "big", queued=False)
    assert record.incarnation.cloud_name == "big-3"
    assert record.failures == 0
    kinds = [entry["action"] for entry in decisions(services, "big")]
    assert kinds.count("create-failed") == 2


def test_two_fleets_in_one_project_leave_each_others_slices_alone(sim, services, tmp_path):
    theirs = bring_up(services, "big", queued=False)
    with sim_services(sim, tmp_path / "other-state", process=2) as others:
        ours = bring_up(others, "big", queued=False)
        assert (theirs.incarnation.cloud_name, ours.incarnation.cloud_name) == ("big-1", "big-2")
        take_down(others, "big")
    assert [node.name for node in services.cloud.list_nodes().items] == ["big-1"]
    assert bring_up(services, "big", queued=False) == theirs


def test_down_ends_the_run_keeps_its_logs_and_leaves_nothing(services):
    bring_up(services, "big")
    run = submit(services, "big", "import time\nprint('hello', flush=True)\ntime.sleep(600)")
    run_pass(services)
    assert get_run(services, run.id).record.attempt.state is AttemptPhase.RUNNING
    take_down(services, "big")
    assert get_run(services, run.id).record.state is RunState.STOPPED
    assert Path(services.logs.path(run.id, 1, 1, "stdout")).read_text() == "hello\n"
    assert services.cloud.list_nodes().items == ()
    assert services.cloud.list_queued().items == ()


CLEANS_UP = """
import signal, sys, time

def end(*_):
    print("ended in order", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
time.sleep(600)
"""


def test_down_asks_for_nothing_in_place_of_what_was_lost_while_its_run_ends(sim, services):
    bring_up(services, "big")
    run = submit(services, "big", "import time; time.sleep(600)")
    run_pass(services)
    sim.preempt("big-1")
    sim.fault(preset="rate-limit", times=1)
    run_pass(services)
    services.clock.skip(25.0)
    take_down(services, "big")
    record = get_slice(services, "big").record
    assert (record.state, record.last_incarnation) == (SliceState.GONE, 2)
    assert get_run(services, run.id).record.state is RunState.STOPPED
    assert services.cloud.list_nodes().items == ()
    assert services.cloud.list_queued().items == ()


def test_a_slice_that_is_to_go_keeps_its_hosts_until_its_run_has_ended_whoever_asked(services):
    bring_up(services, "big")
    run = submit(services, "big", CLEANS_UP)
    run_pass(services)
    # As `down` writes it; then its process is killed.
    request_stop(services, run.id)
    request_down(services, "big", run_first=True)
    assert get_slice(services, "big").record.state is SliceState.READY
    wait_until(lambda: run_pass(services) == [] or get_slice(services, "big").record.state is SliceState.GONE)
    assert get_run(services, run.id).record.state is RunState.STOPPED
    assert Path(services.logs.path(run.id, 1, 0, "stdout")).read_text() == "ended in order\n"
    assert services.cloud.list_nodes().items == ()


def test_a_slice_that_waited_for_a_run_goes_when_there_is_none(services):
    bring_up(services, "big")
    request_down(services, "big", run_first=True)
    wait_until(lambda: run_pass(services) == [] or get_slice(services, "big").record.state is SliceState.GONE)
    assert services.cloud.list_nodes().items == ()


def owned(services, name, run_id):
    record = request_slice(services, name, SPEC, pay=False, run_id=run_id, admit=lambda: None)
    return wait_for_slice(services, record.name)


def test_a_slice_made_for_a_run_that_was_never_written_down_goes_with_the_next_one(services):
    owned(services, "big", "lost-in-a-crash")
    assert owned(services, "big", "run-0001").run_id == "run-0001"
    run = run_to_end(services, "big", "print('hello')", owns_slice=True)
    assert (run.id, run.state) == ("run-0001", RunState.SUCCEEDED)
    assert get_slice(services, "big").record.state is SliceState.GONE
    assert services.cloud.list_nodes().items == ()


def test_a_slice_that_belongs_to_another_run_is_not_taken_over(services):
    owned(services, "big", "run-0001")
    submit(services, "big", "import time; time.sleep(600)", owns_slice=True)
    assert owned(services, "big", "someone-else").run_id == "run-0001"
    take_down(services, "big")
