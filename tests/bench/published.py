"""What one `tpuctl ui --publish` costs over a large fleet and the runs of years, in calls and bytes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.bench.harness import Budget, Contender, Line, Report, execute
from tests.bench.passes import Cloud, profile_environment
from tests.bench.startup import TPUCTL
from tpuctl.ui.static import RUNS_MAX

PLACE = "gs://sim-bucket/pages"
WORDS = [TPUCTL, "ui", "--publish", PLACE]
MB = 1e6
LIMITS = {
    f"{RUNS_MAX} runs go on": (RUNS_MAX + 4.0, 3.0),
    "nothing new": (3.0, 0.8),
    "one run changed": (5.0, 1.0),
}
"""Calls and megabytes. The picture of capacity is another one each hour."""


def measure_published(cloud: Cloud, state: Path, file: Path, setting: str) -> Report:
    """The first pass, one with all that goes on, two in which that is over and its pages go, and then two over
    runs that are over: of one, and of none, something is new."""
    steps: dict[str, Callable[[], None]] = {
        "the first": lambda: None,
        f"{RUNS_MAX} runs go on": lambda: None,
        "all are over": lambda: _end_runs(file),
        "pages of runs that are no longer shown are deleted": lambda: None,
        "nothing new": lambda: None,
        "one run changed": lambda: _change_run(file),
    }
    lines, budgets = [], []
    for name, prepare in steps.items():
        prepare()
        cloud.calls.clear()
        cloud.sent.clear()
        spent = execute(Contender(name, WORDS, profile_environment(state)))
        lines.append(Line(name, spent.wall_s, spent.cpu_s, spent.peak_mb))
        calls = sum(cloud.calls.values()) - cloud.calls["GET nodes"] - cloud.calls["GET queuedResources"]
        written, sent = cloud.calls["POST o"], sum(cloud.sent.values()) / MB
        if name in LIMITS:
            most = LIMITS[name]
            budgets += [
                Budget(
                    f"{name}: calls of the storage API, of which {written} write a page",
                    calls,
                    most[0],
                    unit="",
                ),
                Budget(f"{name}: sent to the bucket", sent, most[1], unit="MB"),
            ]
    return Report(
        "Pages in a bucket", f"`tpuctl ui --publish` {setting}", lines[0].name, tuple(lines), tuple(budgets)
    )


def _end_runs(file: Path) -> None:
    """All that goes on, long ago."""
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(
            "UPDATE documents SET data = json_set(data, '$.state', 'succeeded', '$.ended_at', 1.7e9),"
            " generation = generation + 1000000"
            " WHERE key LIKE 'runs/%' AND json_extract(data, '$.state') = 'running'"
        )


def _change_run(file: Path) -> None:
    """The newest, which has a page."""
    with closing(sqlite3.connect(file)) as db, db:
        key, text = db.execute(
            "SELECT key, data FROM documents WHERE key LIKE 'runs/%' ORDER BY key DESC"
        ).fetchone()
        data = json.dumps({**json.loads(text), "reason": "somebody looked"})
        db.execute("UPDATE documents SET data = ?, generation = generation + 1 WHERE key = ?", (data, key))
