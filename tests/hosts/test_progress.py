"""Steps and numbers that the agent finds in the output of a program: its modules on real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.test_log_times import AGENT, ask_news
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.runs.metrics import MetricRow, Span, parse_rows

SAID = {"run": "r1", "attempt": "1", "state": "running", "stdout_bytes": 0, "stderr_bytes": 0, "boot_id": "b"}
STEP_LOSS = r"step (?P<step>\d+)/(?P<steps>\d+) loss (?P<loss>\S+)"
BEGIN = """
import json, os, sys, time, base, progress
attempt = base.Attempt({"run": "r1", "attempt": "1"})
base.make_dir(attempt.dir)
names, pattern, outputs = json.loads(sys.argv[1])
base.write_json(attempt.path("started"), {"streams": names})
found = progress.Progress(attempt, pattern)
def look():
    found.look(last=True)
for writes in outputs:
    for name, text in writes.items():
        with open(attempt.path(name + ".log"), "a") as log: log.write(text)
    look()
"""


def told(home: Path, pattern: str, *outputs: str | dict[str, str], more: str = "") -> Any:
    """What the agent says after each of `outputs` was written to the logs and looked at."""
    each = [{"stdout": out} if isinstance(out, str) else out for out in outputs]
    names = ["stdout", "stderr", *sorted({name for out in each for name in out} - {"stdout", "stderr"})]
    code = f"{BEGIN}\n{more}\nprint(json.dumps(base.read_json(attempt.path('progress.json'))))"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([names, pattern, each])],
        env={**os.environ, "HOME": str(home), "PYTHONPATH": str(AGENT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return WorkerStatus.parse({**SAID, "time": 1.0, "progress": json.loads(done.stdout)}, 0)


def kept(home: Path) -> list[MetricRow]:
    return parse_rows(ask_news(home, offsets={"metrics": 0}).times["metrics"])


def one(value: float) -> Span:
    return Span(value, value, value, value)


def test_names_count_alone_where_there_are_some(tmp_path: Path) -> None:
    found = told(tmp_path, r"(\w+): " + STEP_LOSS, "x: step 1/9 loss 3.5\n", "x: step 2/9 loss 1,002.5\n")
    assert (found.step, found.steps, found.values) == (2.0, 9.0, {"loss": 1002.5})
    assert [(row.step, row.count, row.values) for row in kept(tmp_path)] == [
        (1.0, 1, {"loss": one(3.5)}),
        (2.0, 1, {"loss": one(1002.5)}),
    ]


def test_without_names_the_first_group_is_the_step_and_the_second_all_of_them(tmp_path: Path) -> None:
    found = told(tmp_path, r"step (\d+) of (\d+)", "step 1 of 9\nstep 1 of 9\n", "step 2 of 9\n")
    assert (found.step, found.steps, found.values, found.not_finite) == (2.0, 9.0, {}, None)
    assert [(row.step, row.count) for row in kept(tmp_path)] == [(1.0, 1), (2.0, 1)]


def test_each_state_of_a_progress_bar_is_a_line(tmp_path: Path) -> None:
    bar = "\rstep 1/9 loss 3\rstep 2/9 loss 2\rstep 3/9 lo"
    found = told(tmp_path, STEP_LOSS, {"stderr": bar}, {"stderr": "ss 1\r"})
    assert (found.step, found.values) == (3.0, {"loss": 1.0})


def test_numbers_of_lines_of_their_own_belong_to_the_step_before(tmp_path: Path) -> None:
    pattern = r"step (?P<step>\d+)|lr=(?P<lr>\S+)|eval (?P<eval_loss>\S+)"
    found = told(tmp_path, pattern, "step 1\nlr=1e-3\nstep 2\neval 0.5\nlr=2e-3 \n")
    assert found.values == {"lr": 2e-3, "eval_loss": 0.5}
    assert [(row.step, row.values) for row in kept(tmp_path)] == [
        (1.0, {}),
        (1.0, {"lr": one(1e-3)}),
        (2.0, {}),
        (2.0, {"eval_loss": one(0.5)}),
        (2.0, {"lr": one(2e-3)}),
    ]


@pytest.mark.parametrize(
    ("written", "value"),
    [("nan", "nan"), ("NaN", "nan"), ("-inf", "-inf"), ("1e999", "inf"), ("Infinity", "inf")],
)
def test_the_first_number_that_is_infinite_or_none_is_told_with_its_step(
    tmp_path: Path, written: str, value: str
) -> None:
    lines = ["step 1/9 loss 2\n", f"step 2/9 loss {written}\n", "step 3/9 loss nan\n", "step 4/9 loss 1\n"]
    found = told(tmp_path, STEP_LOSS, *lines)
    assert found.not_finite is not None
    assert found.not_finite.said == f"loss is {value} at step 2"
    assert (found.step, found.values) == (4.0, {"loss": 1.0})
    assert [str(row.values["loss"].mean) for row in kept(tmp_path)] == ["2.0", value, "nan", "1.0"]


@pytest.mark.parametrize("step", ["1" * 30, "nan", "inf", "-" + "9" * 40, "x"])
def test_a_step_that_no_program_can_have_is_none(tmp_path: Path, step: str) -> None:
    found = told(tmp_path, r"step (\S+)", f"step 3\nstep {step}\n")
    assert found.step == 3.0


def test_of_several_processes_the_one_ahead_speaks_and_all_are_heard_for_what_is_no_number(
    tmp_path: Path,
) -> None:
    first, second = "0.stdout", "1.stdout"
    found = told(
        tmp_path,
        STEP_LOSS,
        {first: "step 1/9 loss 1\n", second: "step 1/9 loss 5\n"},
        {second: "step 2/9 loss 6\n"},
        {first: "step 2/9 loss nan\n"},
        {first: "step 3/9 loss 3\n", second: "step 3/9 loss 7\n"},
    )
    assert [(row.step, row.values["loss"].mean) for row in kept(tmp_path)] == [(1, 1), (2, 6), (3, 3)]
    assert (found.step, found.not_finite and found.not_finite.said) == (3.0, "loss is nan at step 2")


def test_a_million_steps_take_a_bounded_file_with_every_extreme_in_it(tmp_path: Path) -> None:
    more = """
for step in range(1_000_000):
    loss = 1e6 / (step + 1) if step != 654_321 else -5.0
    found.columns.take(step / 7.0, float(step), {"loss": loss})
found.columns.close(); found.columns.save()
"""
    told(tmp_path, STEP_LOSS, "step 0/9 loss 1\n", more=more)
    rows = kept(tmp_path)[1:]
    assert len(rows) < 3_100
    assert sum(row.count for row in rows) == 1_000_000
    assert (min(row.values["loss"].low for row in rows), max(row.values["loss"].high for row in rows)) == (
        -5,
        1e6,
    )
    assert len([row for row in rows if row.step is not None and row.step >= 500_000]) >= 128
    steps = [row.step for row in rows]
    assert steps == sorted(steps)
    assert rows[-1].values["loss"].last == 1.0


NASTY = r"(?:(?:[a-z]+)+)+: step (?P<step>\d+)"


def test_an_expression_that_takes_for_ever_is_given_up_and_does_not_hold_the_supervisor(tmp_path: Path) -> None:
    line = "a" * 60 + " no step\n"
    more = "used = os.times(); assert used.user + used.system < 5, used"
    found = told(tmp_path, NASTY, "abc: step 1\n", *[line] * 4, "abc: step 2\n", more=more)
    assert "of a processor" in found.progress_error
    assert found.step == 1.0


def test_one_line_that_takes_long_costs_the_rest_of_that_look_alone(tmp_path: Path) -> None:
    outputs = ["abc: step 1\n", "a" * 60 + " no step\nabc: step 2\n"] * 4 + ["abc: step 7\n"]
    found = told(tmp_path, NASTY, *outputs)
    assert (found.step, found.progress_error) == (7.0, "")


def test_a_full_disk_costs_no_row(tmp_path: Path) -> None:
    """The limit of the size of files stands for a disk that is full, which cuts a write short likewise."""
    more = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
for step in range(2, 40):
    found.columns.take(step, float(step), {"loss": 1.0})
    found.columns.save()
assert os.stat(found.columns.path).st_size == 200
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
found.columns.save()
"""
    told(tmp_path, STEP_LOSS, "step 1/9 loss 1\n", more=more)
    assert [row.step for row in kept(tmp_path)] == [float(step) for step in range(1, 40)]
