"""How fast a program's steps are, as its supervisor notes it; by the agent's own module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"


def in_agent(home: Path, code: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", f"import json, base, progress, status\n{code}\nprint(json.dumps(found))"],
        env={**os.environ, "HOME": str(home), "PYTHONPATH": str(AGENT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


RATES = [
    ([], 900.0, 0.0, [None, None]),
    ([[60.0 * n, 6.0 * n] for n in range(11)], 600.0, 60.0, [None, None]),
    ([[60.0 * n, 6.0 * n] for n in range(21)], 1200.0, 120.0, [0.1, 0.1]),
    ([[60.0 * n, 6.0 * n] for n in range(16)], 1200.0, 102.0, [0.04, 0.1]),
    ([[60.0 * n, 0.0 if n < 6 else 6.0 * (n - 5)] for n in range(21)], 1200.0, 90.0, [0.1, 0.1]),
    ([[60.0 * n, 6.0 * n] for n in range(11)], 3600.0, 60.0, [0.0, 0.1]),
]


@pytest.mark.parametrize(("marks", "now", "step", "found"), RATES)
def test_the_recent_rate_stands_beside_the_median_of_the_minutes_before(
    tmp_path: Path, marks: Any, now: float, step: float, found: Any
) -> None:
    assert in_agent(tmp_path, f"found = status.rates({marks}, {now}, {step})") == pytest.approx(found)


def test_a_mark_a_minute_is_kept_and_not_without_end(tmp_path: Path) -> None:
    code = """
steps = progress.Progress(base.Attempt({"run": "r1", "attempt": "1"}), r"step (\\d+)")
steps.mark(0.0)
steps.known["step"] = 7.0
for second in range(0, 60 * 200, 20):
    steps.mark(float(second))
marks = steps.known["marks"]
found = [len(marks), marks[0], marks[-1]]
"""
    assert in_agent(tmp_path, code) == [120, [4800.0, 7.0], [11940.0, 7.0]]


def test_lines_read_together_make_no_rate_and_the_last_look_leaves_none_out(tmp_path: Path) -> None:
    code = """
import os
attempt = base.Attempt({"run": "r1", "attempt": "1"})
os.makedirs(os.path.dirname(attempt.path("stdout.log")))
steps = progress.Progress(attempt, r"step (\\d+)")
with open(attempt.path("stdout.log"), "a", buffering=1) as log:
    print("step 1\\nstep 2", file=log)
    steps.look()
    first = dict(steps.known)
    print("step 3\\nstep 4", file=log)
    steps.look()
    steps.look(last=True)
kept = json.load(open(steps.path))
found = [first["first_step"], first["at"] == first["first_at"], kept["first_step"], kept["step"]]
"""
    assert in_agent(tmp_path, code) == [2.0, True, 2.0, 4.0]
