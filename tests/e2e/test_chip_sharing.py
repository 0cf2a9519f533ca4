"""Several runs on the chips of one host: nobody takes or ends what a neighbour has, and all come back."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.support.hosts import alive
from tests.support.jobs import bring_up, submit
from tests.support.services import SimServices
from tests.support.sim import RunningSim
from tpuctl.errors import ConflictError
from tpuctl.model.records import RunRecord, RunState
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.runs.follow import start_run, stop_run
from tpuctl.state.repository import get_run
from tpuctl.views.slices import slice_status
from tpuctl.watch.reconciler import run_pass

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TAKES = """\
import fcntl, json, os, sys, time
own = {name: value for name, value in os.environ.items() if name.startswith(("TPU", "CLOUD_TPU", "JAX_C"))}
held = []
for chip in range(8):
    open(own["TPUCTL_CHIP_DEVICES"] + str(chip), "a").close()
for chip in own["TPU_VISIBLE_CHIPS"].split(","):
    held.append(open(own["TPUCTL_CHIP_DEVICES"] + chip, "r+"))
    fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
print(json.dumps({**own, "pid": os.getpid()}), flush=True)
time.sleep(600)
"""
V6E = {"accelerator_type": "v6e-8", "zone": "us-east5-b", "runtime_version": "v2-alpha-tpuv6e"}
V4 = {"accelerator_type": "v4-8"}


def begin(services: SimServices, tag: str, **options: Any) -> RunRecord:
    policy = RestartPolicy(grace_s=1.0)
    run = submit(services, "big", TAKES, tags=(tag,), policy=policy, variables={"TPU_NAME": "mine"}, **options)
    return start_run(services, run.id)


def told(services: SimServices, run_id: str) -> dict[str, Any]:
    """What the program of a run that goes on says of itself, in its newest attempt; nothing before that."""
    run = get_run(services, run_id).record
    number = run.attempt.number if run.attempt is not None else 0
    said = services.logs.read(run_id, number, 0, "stdout", 0, 10_000).decode()
    return dict(json.loads(said)) if run.state is RunState.RUNNING and said.endswith("\n") else {}


def pass_until_they_run(services: SimServices, *runs: RunRecord, attempt: int) -> list[dict[str, Any]]:
    """Passes of the watchdog until each of these runs has its program, in this attempt or a later one."""
    for _ in range(60):
        numbers = [
            run.attempt.number for run in (get_run(services, each.id).record for each in runs) if run.attempt
        ]
        found = [told(services, run.id) for run in runs]
        if all(found) and min(numbers) >= attempt and all(alive(each["pid"]) for each in found):
            return found
        services.clock.sleep(60.0)
        run_pass(services)
    raise AssertionError([(run.id, get_run(services, run.id).record.reason) for run in runs])


def test_four_runs_on_one_host_end_and_come_back_each_by_itself(sim: RunningSim, services: SimServices) -> None:
    bring_up(services, "big", hosts=1, chips=8, queued=False, **V6E)
    runs = [begin(services, str(number), chips="1") for number in range(3)]
    runs.append(begin(services, "named", chip="5"))
    assert [run.chips for run in runs] == [(0,), (1,), (2,), (5,)]
    before = pass_until_they_run(services, *runs, attempt=1)
    assert [row["TPU_VISIBLE_CHIPS"] for row in before] == ["0", "1", "2", "5"]
    assert [row["TPU_PROCESS_ADDRESSES"] for row in before] == [f"localhost:{8476 + n}" for n in (0, 1, 2, 5)]
    assert [row["TPU_RUNTIME_METRICS_PORTS"] for row in before] == ["8431", "8432", "8433", "8436"]
    assert {row["TPU_NAME"] for row in before} == {"mine"}
    for name in ("TPU_LOG_DIR", "TPUCTL_COORDINATOR", "JAX_COORDINATOR_ADDRESS", "pid"):
        assert len({row[name] for row in before}) == 4, name
    shown = slice_status(services, "big")["runs"]
    assert [(run["id"], run["chips"]) for run in shown] == [(run.id, list(run.chips)) for run in runs]
    with pytest.raises(ConflictError, match=f"run {runs[3].id} is still running on chip 5 of slice big"):
        begin(services, "other", chip="5")
    with pytest.raises(ConflictError, match="on chip 0, run"):
        begin(services, "all")

    os.kill(before[1]["pid"], signal.SIGKILL)
    [again] = pass_until_they_run(services, runs[1], attempt=2)
    assert (again["TPU_VISIBLE_CHIPS"], again["pid"] != before[1]["pid"]) == ("1", True)
    assert stop_run(services, runs[2].id).state is RunState.STOPPED
    assert [alive(row["pid"]) for row in before] == [True, False, False, True]

    sim.preempt("big-1")
    back = [runs[0], runs[1], runs[3]]
    after = pass_until_they_run(services, *back, attempt=2)
    assert [row["TPU_VISIBLE_CHIPS"] for row in after] == ["0", "1", "5"]
    ends = [get_run(services, run.id).record for run in back]
    assert [(run.preemptions, run.failures) for run in ends] == [(1, 0), (1, 1), (1, 0)]


def test_a_chip_is_free_for_the_next_run_once_its_run_is_over(services: SimServices) -> None:
    bring_up(services, "big", hosts=1, chips=4, queued=False, **V4)
    first, second = (begin(services, tag, chips="1") for tag in ("first", "second"))
    stop_run(services, first.id)
    third = begin(services, "third", chips="1")
    assert third.chips == (0,)
    _, kept = pass_until_they_run(services, third, second, attempt=1)
    assert kept["TPU_VISIBLE_CHIPS"] == "1"
