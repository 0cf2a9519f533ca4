"""A run of real programs goes on after a preemption, with what its first attempt had."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from tests.support.compute_slices import GROUP
from tests.support.hosts import shared_folder, wait_until
from tests.support.jobs import attempt_row, bring_up, run_to_end
from tests.support.services import SimServices
from tests.support.sim import RunningSim
from tests.support.soak import soak
from tpuctl.model.attempts import Cause
from tpuctl.model.cloud import Api
from tpuctl.model.records import RunState
from tpuctl.provenance.parts import load_manifest
from tpuctl.state.repository import list_attempts

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
        soak(GROUP, id="compute"),
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
