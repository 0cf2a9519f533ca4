"""What a person asks of a store that is years old: 10,000 runs, one of them with 200 MB of logs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.bench.harness import Budget, Contender, Plan, Report, compare, lines, scratch
from tests.bench.passes import PROJECT, open_cloud, profile_environment, write_profile
from tests.bench.startup import TPUCTL
from tests.bench.stores import ATTEMPT, RUNS, name_of, write_runs
from tpuctl.model.processes import times_of
from tpuctl.state.run_logs import LogFiles
from tpuctl.state.sqlite import SqliteStore

SLICES = 50
WORKERS = 4
LOG_BYTES = 200_000_000
LEAST = """
import sqlite3, sys, msgspec, typer
for (data,) in sqlite3.connect(sys.argv[1]).execute("SELECT data FROM documents"):
    msgspec.json.decode(data, type=dict[str, msgspec.Raw])
"""
"""What any list of all runs does at least: starts, reads each document, and finds its fields."""
LOOKS = 0.2
"""Seconds between two looks of a host at its log, in each of which fifty lines came."""


def measure(plan: Plan) -> list[Report]:
    """The daily reads, each as it is typed."""
    runs = RUNS // 20 if plan.quick else RUNS
    with _old_store(runs, 0) as state:
        return [_measure_lists(plan, state, runs)]


def measure_logs(plan: Plan) -> list[Report]:
    """Long logs of one run, read in three ways."""
    size = LOG_BYTES // 100 if plan.quick else LOG_BYTES
    with _old_store(1, size) as state:
        return [_measure_logs(plan, state, name_of(0), size)]


@contextmanager
def _old_store(runs: int, size: int) -> Iterator[Path]:
    """A state directory with so many runs, and so many bytes of logs of the newest."""
    with scratch() as folder, open_cloud(folder) as cloud:
        state = folder / "state"
        write_profile(state, cloud)
        store_folder = state / "sim" / PROJECT
        with closing(SqliteStore(store_folder / "store.sqlite")) as store:
            began_at = store.now() - 86_400.0
        write_runs(store_folder / "store.sqlite", runs, SLICES, workers=WORKERS)
        logs = LogFiles(store_folder / "runs")
        for worker in range(WORKERS):
            _write_log(logs, name_of(runs - 1), worker, size // WORKERS, began_at)
        yield state


def _write_log(logs: LogFiles, run_id: str, worker: int, size: int, at: float) -> None:
    text, times = bytearray(), bytearray()
    while len(text) < size:
        at += LOOKS
        for line in range(50):
            text += b"worker %d at %d.%d: loss 0.1234 and words to fill a line\n" % (worker, len(text), line)
        times += b"%015d %013d\n" % (len(text), int(at * 1000))
    logs.append(run_id, ATTEMPT, worker, "stdout", bytes(text))
    logs.append(run_id, ATTEMPT, worker, times_of("stdout"), bytes(times))


def _measure_lists(plan: Plan, state: Path, runs: int) -> Report:
    asked = (["runs"], ["status", "last"], ["report", "-o", str(state / "report.html")])
    contenders = [
        Contender(f"tpuctl {words[0]}", [TPUCTL, *words], profile_environment(state)) for words in asked
    ]
    budgeted = [each.name for each in contenders]
    store = str(state / "sim" / PROJECT / "store.sqlite")
    contenders += [
        Contender("python: typer, SELECT and msgspec", [sys.executable, "-c", LEAST, store]),
        Contender('python -c "import typer"', [sys.executable, "-c", "import typer"]),
    ]
    medians = compare(contenders, plan.rounds)
    budgets = tuple(Budget(f"CPU of {name}", medians[name].cpu_s, 0.5, unit="s") for name in budgeted)
    setting = f"{runs:,} runs in SQLite; status and report are of the newest"
    return Report("Many runs", setting, contenders[0].name, lines(contenders, medians), budgets)


def _measure_logs(plan: Plan, state: Path, run_id: str, size: int) -> Report:
    asked = (["--grep", "nothing"], ["--since", "1000d"], ["-t"])
    logs = [TPUCTL, "logs", run_id]
    contenders = [
        Contender(f"tpuctl logs {words[0]}", [*logs, *words], profile_environment(state)) for words in asked
    ]
    medians = compare(contenders, plan.rounds)
    (_, grep), *others = medians.items()
    budgets = tuple(Budget(f"CPU of {name}, of --grep", each.cpu_s / grep.cpu_s, 2.0) for name, each in others)
    setting = f"{size // 1_000_000} MB of {WORKERS} workers, all of it printed but by --grep"
    return Report("Long logs", setting, contenders[0].name, lines(contenders, medians), budgets)
