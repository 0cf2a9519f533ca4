"""What a person asks of a store that is years old: 10,000 runs, one of them with 200 MB of logs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.bench.harness import Budget, Contender, Plan, Report, compare, lines, scratch
from tests.bench.passes import PROJECT, open_cloud, profile_environment, write_profile
from tests.bench.startup import TPUCTL
from tests.support.builders import a_run, an_attempt
from tpuctl.lib.codec import to_data
from tpuctl.model.attempts import AttemptPhase, RunTotals
from tpuctl.model.processes import times_of
from tpuctl.model.records import RunState
from tpuctl.state.run_logs import LogFiles
from tpuctl.state.sqlite import SqliteStore

RUNS = 10_000
WORKERS = 4
LOG_BYTES = 200_000_000
LOOKS = 0.2
"""Seconds between two looks of a host at its log, in each of which fifty lines came."""
NEWEST = f"run-{RUNS - 1:05d}"


def measure(plan: Plan) -> list[Report]:
    """The daily reads, each as it is typed."""
    runs, size = (RUNS // 20, LOG_BYTES // 100) if plan.quick else (RUNS, LOG_BYTES)
    with scratch() as folder, open_cloud(folder) as cloud:
        state = folder / "state"
        write_profile(state, cloud)
        _fill(state / "sim" / PROJECT, runs, size)
        return [_measure_lists(plan, state, runs), _measure_logs(plan, state, size)]


def _fill(folder: Path, runs: int, size: int) -> None:
    with closing(SqliteStore(folder / "store.sqlite")) as store:
        now = store.now()
        for number in range(RUNS - runs, RUNS):
            at = now - (RUNS - number) * 600
            attempt = an_attempt(
                workers=tuple(range(WORKERS)),
                created_at=at,
                started_at=at,
                ended_at=at + 500,
                state=AttemptPhase.ENDED,
            )
            run = a_run(
                id=f"run-{number:05d}",
                slice_name=f"s{number % 50}",
                argv=("python3", "train.py", "--seed", str(number)),
                created_at=at,
                ended_at=at + 550,
                state=RunState.SUCCEEDED,
                totals=RunTotals(),
                attempt=attempt,
            )
            store.put(run.key, to_data(run), if_generation=0)
    logs = LogFiles(folder / "runs")
    for worker in range(WORKERS):
        _write_log(logs, worker, size // WORKERS, at)


def _write_log(logs: LogFiles, worker: int, size: int, at: float) -> None:
    text, times = bytearray(), bytearray()
    while len(text) < size:
        at += LOOKS
        for line in range(50):
            text += b"worker %d at %d.%d: loss 0.1234 and words to fill a line\n" % (worker, len(text), line)
        times += b"%015d %013d\n" % (len(text), int(at * 1000))
    logs.append(NEWEST, 1, worker, "stdout", bytes(text))
    logs.append(NEWEST, 1, worker, times_of("stdout"), bytes(times))


def _measure_lists(plan: Plan, state: Path, runs: int) -> Report:
    asked = (["runs"], ["status", "last"], ["report", "-o", str(state / "report.html")])
    contenders = [
        Contender(f"tpuctl {words[0]}", [TPUCTL, *words], profile_environment(state)) for words in asked
    ]
    medians = compare(contenders, plan.rounds)
    budgets = tuple(Budget(f"CPU of {name}", each.cpu_s, 0.5, unit="s") for name, each in medians.items())
    setting = f"{runs} runs in SQLite; status and report are of the newest"
    return Report("Many runs", setting, contenders[0].name, lines(contenders, medians), budgets)


def _measure_logs(plan: Plan, state: Path, size: int) -> Report:
    asked = (["--grep", "nothing"], ["--since", "1000d"], ["-t"])
    logs = [TPUCTL, "logs", NEWEST]
    contenders = [
        Contender(f"tpuctl logs {words[0]}", [*logs, *words], profile_environment(state)) for words in asked
    ]
    medians = compare(contenders, plan.rounds)
    (_, grep), *others = medians.items()
    budgets = tuple(Budget(f"CPU of {name}, of --grep", each.cpu_s / grep.cpu_s, 2.0) for name, each in others)
    setting = f"{size // 1_000_000} MB of {WORKERS} workers, all of it printed but by --grep"
    return Report("Long logs", setting, contenders[0].name, lines(contenders, medians), budgets)
