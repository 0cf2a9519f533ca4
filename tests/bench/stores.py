"""Stores that are years old, for what is measured over them: thousands of runs whose attempts tell much."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.builders import a_run, an_attempt
from tpuctl.lib.codec import to_data
from tpuctl.model.attempts import AttemptPhase, RunTotals, TimelineEntry, WorkerEnd
from tpuctl.model.records import RunRecord, RunState

RUNS = 10_000
ATTEMPT = 2
"""The last one of each run."""
FIRST = 1_000_000
"""The generation of the first run, beyond those of the slices."""


def write_runs(file: Path, count: int, slices: int, *, under_way: int = 0, workers: int = 1) -> None:
    """All at once: a commit for each takes a busy disk minutes. One in `under_way` goes on, 0 for none."""
    going_on = range(0, count, under_way) if under_way else ()
    records = (a_record(number, slices, workers, on=number in going_on) for number in range(count))
    rows = ((each.key, number, json.dumps(to_data(each))) for number, each in enumerate(records, start=FIRST))
    with closing(sqlite3.connect(file)) as db, db:
        db.executemany("INSERT INTO documents (key, generation, data) VALUES (?, ?, ?)", rows)
        db.execute("UPDATE meta SET value = ? WHERE key = 'sequence'", (str(FIRST + count),))


def name_of(number: int) -> str:
    """The id of a run that `write_runs` wrote."""
    return f"r{number:05d}"


def a_record(number: int, slices: int, workers: int, *, on: bool) -> RunRecord:
    """As one of some attempts, with what its hosts said and what it was given."""
    begun = 1_700_000_000.0 + 600 * number
    events = ("created", "prepared", "started", "joined", "first step", "checkpoint")
    attempt = an_attempt(
        number=ATTEMPT,
        created_at=begun,
        started_at=begun + 60,
        ended_at=None if on else begun + 7000,
        state=AttemptPhase.RUNNING if on else AttemptPhase.ENDED,
        workers=tuple(range(workers)),
        ends=() if on else tuple(WorkerEnd(i, 0, ran_s=6900.0) for i in range(workers)),
        timeline=tuple(TimelineEntry(begun + 10 * i, each, f"about {each}") for i, each in enumerate(events)),
        hosts=(
            {
                "worker": "0",
                "hostname": f"t1v-{number:08x}-w-0",
                "kernel": "6.5.0-1013-gcp",
                "python": "3.10.12",
            },
        ),
        variables=tuple({"name": f"VARIABLE_{i}", "value": f"{number}", "workers": "0"} for i in range(12)),
        step=float(number),
        steps=20_000.0,
        steps_per_s=2.5,
    )
    return a_run(
        id=name_of(number),
        slice_name=f"s{number % slices:04d}",
        argv=("python3", "train.py", f"lr={0.01 + number % 10 / 100:.2f}"),
        created_at=begun,
        state=RunState.RUNNING if on else RunState.SUCCEEDED,
        owner=("ada", "grace", "linus")[number % 3],
        group=f"sweep-{number // 50}",
        tags=("model=t5", f"seed={number % 7}"),
        attempt=attempt,
        ended_at=None if on else begun + 7000,
        reason="" if on else "every worker exited with 0",
        totals=None if on else RunTotals(0.93, 31.2, 25.5),
    )
