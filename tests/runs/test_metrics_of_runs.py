"""Numbers of runs over hosts in memory: over preemptions, for other machines, and when they are none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.jobs import bring_up, run_to_end, submit
from tests.support.memory.process import Process, Steps
from tpuctl.engine.events import Warn
from tpuctl.lib.codec import to_data
from tpuctl.model.records import RunState
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.notify.events import run_events
from tpuctl.runs.fetch import fetch_metrics
from tpuctl.runs.follow import start_run
from tpuctl.runs.submit import check_request
from tpuctl.state.journal import read_events
from tpuctl.state.repository import get_run
from tpuctl.views.metrics import columns, run_metrics
from tpuctl.watch.reconciler import run_pass

pytestmark = pytest.mark.slow

PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"


def trainer(*, bad_at: int = -1, steps: int = 1000) -> Any:
    """A program that takes a step each second, and has no loss at one of them."""

    def train(process: Process) -> Steps:
        for step in range(steps):
            process.print(f"step {step} loss {'nan' if step == bad_at else 9 / (step + 1)}")
            yield 1.0
        return 0

    return train


def test_curves_go_on_over_a_preemption_and_are_there_for_another_machine_when_all_is_gone(place, services):
    place.server.shared = True
    place.hosts.programs["main.py"] = trainer(steps=600)
    bring_up(services, "big")
    run = submit(services, "big", "trains", progress=PATTERN, policy=RestartPolicy())
    start_run(services, run.id)
    watchdog = place.machine("watchdog")

    def passes(count: int) -> None:
        for _ in range(count):
            place.clock.advance(60.0)
            run_pass(watchdog)

    passes(4)
    place.world.preempt("big-1")
    while not get_run(services, run.id).record.state.final:
        passes(1)
    other = place.machine("other")
    record = get_run(other, run.id).record
    fetch_metrics(other, record)
    first, second = run_metrics(other, record)
    assert (first.cause, second.cause, record.state) == ("preempted", "succeeded", RunState.SUCCEEDED)
    assert 100 < first.rows[-1].step < 300
    assert second.rows[-1].step == 599.0
    assert [each.name for each in columns([first, second])] == ["loss", "steps/s"]


@pytest.mark.parametrize(
    ("progress", "said"),
    [(r"it (?P<it>\d+) loss (?P<loss>\S+)", "it, loss"), (PATTERN, ""), (r"step (\d+)", "")],
)
def test_who_names_numbers_and_no_step_is_told_so(services, progress, said):
    run = RunSpec("big", ("true",), ".", RestartPolicy(), {}, {}, no_checkpoint=True, progress=progress)
    check_request(services, run)
    told = [event.text for event in services.events if isinstance(event, Warn)]
    lacks = f"--progress names {said} and no group is called step, so no step is known"
    assert [text.partition(":")[0] for text in told] == ([lacks] if said else [])


def test_a_running_program_is_asked_for_what_is_new(place, services):
    place.hosts.programs["main.py"] = trainer()
    bring_up(services, "big")
    run = submit(services, "big", "trains", progress=PATTERN)
    start_run(services, run.id)
    for _ in range(2):
        place.clock.advance(30.0)
        fetch_metrics(services, get_run(services, run.id).record)
    (found,) = run_metrics(services, get_run(services, run.id).record)
    assert found.rows[-1].step >= 45
    assert [row.step for row in found.rows] == list(range(len(found.rows)))


@pytest.mark.parametrize("steps", [1000, 8])
def test_a_loss_that_is_none_ends_a_run_that_wants_that_for_good(place, services, steps):
    """Also one that has come to its end before anybody saw it."""
    place.hosts.programs["main.py"] = trainer(bad_at=7, steps=steps)
    bring_up(services, "big")
    run = run_to_end(
        services, "big", "goes bad", progress=PATTERN, on_nan="stop", policy=RestartPolicy(max_failures=5)
    )
    assert (run.state, run.attempt.number, run.failures) == (RunState.FAILED, 1, 1)
    assert run.reason.startswith("loss is nan at step 7 (worker 0); ")
    assert (run.attempt.failure.signature, str(run.attempt.cause)) == ("not-finite", "not-finite")
    if steps == 1000:
        assert all(end.note == "stopped" for end in run.attempt.ends)


def test_a_loss_that_is_none_is_told_once_and_the_run_goes_on(place, services):
    place.hosts.programs["main.py"] = trainer(bad_at=7, steps=60)
    bring_up(services, "big")
    run = run_to_end(services, "big", "goes bad", progress=PATTERN)
    assert (run.state, run.attempt.not_finite) == (RunState.SUCCEEDED, "loss is nan at step 7 (worker 0)")
    told = [event.text for event in services.events if isinstance(event, Warn)]
    assert [f"`tpuctl metrics {run.id}`" in text for text in told if "loss is nan" in text] == [True]
    rows = [document.data for document in services.store.list(f"journal/{run.key}/")]
    assert [row["reason"] for row in rows if row["action"] == "not-finite"] == [run.attempt.not_finite]
    events = run_events(run.key, read_events(services, run.key, run.created_at), to_data(run))
    assert [event.detail for event in events] == [run.attempt.not_finite]
