"""What `status RUN` makes of a run."""

from __future__ import annotations

import pytest

from tests.support.builders import a_run, an_attempt
from tpuctl.cli.run_status import run_lines
from tpuctl.lib.time import render_time
from tpuctl.model.records import RunState
from tpuctl.views.run_status import next_commands

NOW = 1_790_000_000.0
FACTS = {
    "id": "sweep-3",
    "slice": "big",
    "slice_state": "lost",
    "chips": [],
    "state": "waiting",
    "reason": "",
    "question": None,
    "failure": None,
    "step": 120.0,
    "steps": 500.0,
    "steps_per_s": 2.0,
    "usd": 1.5,
    "unseen_usd": 0.25,
    "goodput": 0.5,
    "chip_hours": 3.25,
    "preemptions": 1,
    "failures": 0,
    "environment": None,
    "image": None,
    "checkpoints": "gs://b/sweep-3/",
    "debug": [],
    "synthetic": False,
    "command": ["python3", "train.py", "--name", "a b"],
    "created": render_time(NOW - 7200),
    "ended": None,
    "user": "ada",
    "attempt": {
        "number": 2,
        "created": render_time(NOW - 120),
        "started": render_time(NOW - 60),
        "ended": None,
        "joined": None,
        "numbers": "loss is nan at step 9",
    },
    "metrics": [
        {"name": "loss", "last": 0.5, "low": 0.25, "high": 9.0, "line": "█▄▁"},
        {"name": "steps/s", "last": 2.0, "low": 1.5, "high": 2.0, "line": "▁▄█"},
    ],
    "earlier": [{"number": 1, "cause": "preempted", "why": "SUSPENDED by the service", "step": 80.0}],
    "next": ["tpuctl attach sweep-3"],
}


def test_a_run_is_told_on_a_screen() -> None:
    lines = run_lines(FACTS, NOW)
    assert lines["slice"] == "big (lost)"
    assert lines["attempt"] == f"2, runs since {render_time(NOW - 60)}, 1 min ago"
    assert lines["before"] == (
        "attempt 1 preempted: SUSPENDED by the service, at step 80 (preemptions 1, failures 0)"
    )
    assert lines["progress"] == "step 120 of 500, 2 per second"
    assert lines["numbers"] == "loss is nan at step 9"
    assert (lines["metric loss"], lines["metric steps/s"]) == ("0.5  █▄▁", "2  ▁▄█")
    assert lines["cost"] == "$1.50–1.75 by list prices, 3.25 chip hours, goodput 50%"
    assert lines["command"] == "python3 train.py --name 'a b'"
    assert lines["type next"] == "`tpuctl attach sweep-3`"
    assert not lines.keys() & {"because", "what helps", "ended", "data", "environment"}


def test_a_failed_run_says_its_reason_and_what_helps() -> None:
    failure = {"signature": "disk-full", "remedy": "delete something"}
    lines = run_lines({**FACTS, "state": "failed", "reason": "worker 3 exited with 1", "failure": failure}, NOW)
    assert (lines["because"], lines["what helps"]) == ("worker 3 exited with 1; disk-full", "delete something")


@pytest.mark.parametrize("state", RunState)
def test_every_state_has_something_to_type_next(state: RunState) -> None:
    commands = next_commands(a_run(id="r1", state=state))
    assert commands
    assert all(command.startswith("tpuctl ") and command.endswith(" r1") for command in commands)


def test_a_run_that_waits_for_an_answer_says_how_to_give_it() -> None:
    run = a_run(id="r1", state=RunState.WAITING, question="go on?", attempt=an_attempt())
    assert next_commands(run)[0] == "tpuctl attach r1 --go-on"
