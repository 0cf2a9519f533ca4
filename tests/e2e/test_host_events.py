"""Hosts that go down in order under a run: rebooted one at a time and all at once, under maintenance,
preempted with notice. The run goes on, is charged to the right budget, and the manifest says what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.hosts import require_tier
from tests.support.jobs import attempt_row, bring_up, meanwhile, submit
from tests.support.services import SimServices
from tests.support.sim import RunningSim, running_sim
from tests.support.soak import soak
from tpuctl.model.attempts import Cause
from tpuctl.model.records import RunRecord, RunState
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.state.repository import list_attempts

PROGRAM = """
import os, signal, sys, time
attempt, rank, ending = os.environ["TPUCTL_ATTEMPT"], os.environ["TPUCTL_RANK"], os.environ["ENDING"]
def save(number, frame):
    print("saving", flush=True)
    time.sleep(0.2)
    raise SystemExit(int(ending))
if ending != "dies":
    signal.signal(signal.SIGTERM, save)
print("attempt", attempt, flush=True)
while attempt == "1":
    time.sleep(0.05)
"""
ENDINGS = ("dies", "75", "0", "1")
"""What a program does when its host goes down: nothing, or it saves its work and ends with one of these."""


@pytest.fixture(params=["process", "isolated"])
def sim(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningSim]:
    require_tier(request.param)
    with running_sim(tmp_path, hosts=request.param) as running:
        yield running


def followed(services: SimServices, happen: Callable[[], object], ending: str = "dies") -> RunRecord:
    """A run under which something happens once all its workers have said a word, followed to its end."""
    policy = RestartPolicy(max_failures=0, max_restarts=0, grace_s=1.0)
    run = submit(services, "big", PROGRAM, variables={"ENDING": ending}, policy=policy)
    return meanwhile(services, run, happen)


def went_on(services: SimServices, run: RunRecord, cause: Cause, incarnations: tuple[int, int]) -> str:
    """Checks a run that was interrupted once by the cloud's doing; why, as the manifest of the first attempt
    has it."""
    assert (run.state, run.failures, run.restarts, run.preemptions) == (RunState.SUCCEEDED, 0, 0, 1), run.reason
    first, second = list_attempts(services, run.id)
    assert (first.cause, second.cause) == (cause, Cause.SUCCEEDED)
    assert (first.incarnation, second.incarnation) == incarnations
    manifest = attempt_row(services, run.id, 1)
    assert manifest["cause"] == cause
    assert [entry["event"] for entry in manifest["timeline"]][-2:] == [cause, "ended"]
    return str(manifest["why"])


@pytest.mark.parametrize(
    ("sim", "ending"),
    [
        ("process", ENDINGS[0]),
        soak("process", ENDINGS[1]),
        *(soak("process", ending) for ending in ENDINGS[2:]),
        soak("isolated", "0"),
    ],
    indirect=["sim"],
)
def test_a_run_goes_on_after_all_of_its_hosts_rebooted_in_order(sim, services, ending):
    bring_up(services, "big")
    run = followed(services, lambda: sim.world.reboot("big-1"), ending)
    assert went_on(services, run, Cause.HOST_LOST, (1, 1)) == "workers 0-1 lost their host to a reboot"
    exits = attempt_row(services, run.id, 1)["exits"]
    assert [each["note"] for each in exits] == ["host rebooted", "host rebooted"]
    ended = {(each["exit_status"], each["signal"]) for each in exits}
    assert ended == {(None, 15) if ending == "dies" else (int(ending), None)}
    before, after = (attempt_row(services, run.id, attempt)["hosts"] for attempt in (1, 2))
    assert all(old["boot_id"] != new["boot_id"] for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(("sim", "worker"), [("isolated", 1), soak("process", 0)], indirect=["sim"])
def test_a_run_goes_on_after_one_of_its_hosts_rebooted_in_order(sim, services, worker):
    bring_up(services, "big")
    run = followed(services, lambda: sim.world.reboot("big-1", workers=[worker]), "1")
    why = went_on(services, run, Cause.HOST_LOST, (1, 1))
    assert why.startswith(f"worker {worker} lost its host to a reboot")
    assert attempt_row(services, run.id, 1)["exits"][worker]["note"] == "host rebooted"


@pytest.mark.parametrize(
    ("sim", "ending", "queued"),
    [
        ("process", "dies", True),
        soak("process", "0", False),
        soak("process", "1", True),
        soak("isolated", "0", True),
    ],
    indirect=["sim"],
)
def test_a_run_goes_on_elsewhere_after_a_preemption_with_notice(sim, services, ending, queued):
    bring_up(services, "big", queued=queued)
    run = followed(services, lambda: sim.preempt("big-1"), ending)
    assert "big-1 is " in went_on(services, run, Cause.PREEMPTED, (1, 2))


@pytest.mark.parametrize("sim", ["process", soak("isolated")], indirect=True)
def test_a_run_goes_on_after_maintenance(sim, services):
    bring_up(services, "big")
    node = f"projects/{services.project}/locations/us-central2-b/nodes/big-1"
    maintain = {"name": node, "workerIds": ["1"]}
    run = followed(services, lambda: sim.world.call("SimulateMaintenanceEvent", maintain, "v2alpha1"), "1")
    went_on(services, run, Cause.HOST_LOST, (1, 1))
