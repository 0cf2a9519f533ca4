"""Several processes on a host: what is refused, who is named, and when all of them have their devices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.spec import EnvironmentSpec
from tpuctl.errors import UsageError
from tpuctl.hosts.log_news import parse_log_news
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import JoinReport, WorkerStatus
from tpuctl.lib.text import fold_label, fold_workers
from tpuctl.model.attempts import Cause
from tpuctl.model.processes import log_streams, parse_places, split_stream
from tpuctl.model.run_spec import RunRequest
from tpuctl.model.shipped_files import load_failure_table
from tpuctl.runs.charge import worker_ends
from tpuctl.runs.failure import WorkerLog, describe_failure, name_failure, parse_signatures
from tpuctl.runs.join import judge_join
from tpuctl.runs.rules import check_run, topology_notes
from tpuctl.runs.submit import check_launcher
from tpuctl.runs.trouble import describe_trouble

STARTED = {"state": "exited", "run": "r", "attempt": "1", "boot_id": "b", "time": 9.0}
SIZES = {"stdout_bytes": 0, "stderr_bytes": 0}


def ended(worker: int, process: int | None, *ends: tuple[int | None, int | None, float | None]) -> WorkerStatus:
    """A worker whose processes have these exit statuses, signals and times."""
    names = ("exit_status", "signal", "ended_at")
    rows = [{"process": n, "pid": n, **dict(zip(names, end, strict=True))} for n, end in enumerate(ends)]
    whole = {"exit_status": 0} if process is None else rows[process]
    own = {name: whole.get(name) for name in ("exit_status", "signal")}
    said = {**STARTED, **SIZES, **own, "ended_at": 50.0, "process": process, "processes": rows}
    return WorkerStatus.parse(said, worker)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"per": "4"}, "--per '4' is unknown"),
        ({"per": "chips"}, "--per 'chips' is unknown"),
        ({"per": "chip", "worker": "0", "alone": True}, "--per chip and --worker exclude each other"),
        ({"per": "torchrun", "var": {"XLA_USE_SPMD": "1"}}, "XLA_USE_SPMD=1 wants one process for each host"),
        ({"per": "chip", "script": None, "command": ("torchrun", "x.py")}, "more processes than chips"),
        ({"per": "torchrun", "script": None, "module": "torch.distributed.run"}, "more processes than chips"),
        (
            {"per": "chip", "script": None, "command": ("python3", "-m", "torch.distributed.run", "x.py")},
            "more processes than chips",
        ),
    ],
)
def test_processes_that_would_not_come_together_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        check_run(RunRequest(**{"script": "x.py", **more}))
    assert words in error.value.message
    assert error.value.details["key"] == "per"
    assert error.value.hint


@pytest.mark.parametrize(
    "more", [{}, {"var": {"XLA_USE_SPMD": "1"}}, {"per": "chip", "var": {"XLA_USE_SPMD": "0"}}]
)
def test_one_process_each_may_use_spmd(more: dict[str, Any]) -> None:
    assert check_run(RunRequest(script="x.py", **more)) == ("python3", "x.py")


def test_torchrun_wants_an_environment_with_torch() -> None:
    pinned = PinnedEnvironment(EnvironmentSpec("bare", ("3.11",)))
    with pytest.raises(UsageError, match="needs torch, and the environment bare has none"):
        check_launcher(RunRequest(script="x.py", per="torchrun"), pinned)
    spmd = PinnedEnvironment(EnvironmentSpec("spmd", ("3.11",), variables={"XLA_USE_SPMD": "1"}))
    with pytest.raises(UsageError, match="XLA_USE_SPMD=1"):
        check_launcher(RunRequest(script="x.py", per="chip"), spmd)
    check_launcher(RunRequest(script="x.py", per="chip", var={"XLA_USE_SPMD": "0"}), spmd)


@pytest.mark.parametrize(
    ("per", "given", "pinned", "notes"),
    [
        ("chip", ("TPU_PROCESS_PORT",), (), ["--var TPU_PROCESS_PORT stays as it is"]),
        ("chip", (), ("TPU_PROCESS_PORT", "LANG"), ["TPU_PROCESS_PORT of the environment does not count"]),
        ("chip", ("TPU_PROCESS_PORT",), ("TPU_PROCESS_PORT",), ["--var TPU_PROCESS_PORT stays"]),
        ("chip", ("LANG",), ("LANG",), []),
        ("torchrun", (), ("TPU_VISIBLE_CHIPS",), []),
        ("host", ("TPU_PROCESS_PORT",), ("TPU_PROCESS_PORT",), []),
    ],
)
def test_who_wins_for_a_variable_of_the_topology_is_told(
    per: str, given: tuple[str, ...], pinned: tuple[str, ...], notes: list[str]
) -> None:
    told = topology_notes(per, dict.fromkeys(given, "9"), dict.fromkeys(pinned, "8"))
    assert len(told) == len(notes)
    assert all(note.startswith(words) for note, words in zip(told, notes, strict=True))


def test_the_process_that_ended_first_is_named_on_whatever_host() -> None:
    workers = [
        ended(0, 2, (None, 15, 41.0), (0, None, 20.0), (1, None, 40.0)),
        ended(1, 1, (1, None, 39.0), (1, None, 30.0), (None, 15, None)),
    ]
    assert describe_trouble(workers) == "workers 0.2,1.1 exited with 1"
    table, run = parse_signatures(load_failure_table()), a_run()
    failure = name_failure(
        table, run, an_attempt(cause=Cause.FAILED), workers, {1: WorkerLog(stderr="NameError: name 'x'")}
    )
    assert failure is not None
    assert (failure.worker, failure.process) == (1, 1)
    assert describe_failure(failure).startswith("worker 1.1: ")
    [_, row] = worker_ends(workers)
    assert (row.process, row.exit_status, [each.signal for each in row.processes]) == (1, 1, [None, None, 15])


def test_a_worker_with_one_process_has_none_to_name() -> None:
    row = {"process": None, "pid": 7, "exit_status": 1, "ended_at": 3.0}
    found = WorkerStatus.parse({**STARTED, **SIZES, "exit_status": 1, "processes": [row]}, 3)
    assert (found.place, found.processes, found.process) == (3, (), None)


def a_worker(number: int, *reports: dict[str, Any]) -> WorkerStatus:
    join = tuple(JoinReport(pid, **report) for pid, report in enumerate(reports))
    return WorkerStatus(number, WorkerState.RUNNING, time=5000.0, join=join)


HAS = {"backend": "tpu", "devices": 8}
WAITS = {"waits": True, "since": 0.0}


@pytest.mark.parametrize(
    ("second", "trouble", "joined"),
    [
        ([{**HAS, "process": 0}, {**HAS, "process": 1}], "", "8 chips, 2 workers, 4 processes"),
        ([{**HAS, "process": 0}], "", ""),
        ([{**WAITS, "process": 0}], "worker 1.1 did not come to take the chips", ""),
        (
            [{**HAS, "process": 0}, {**HAS, "process": 1, "backend": "cpu"}],
            "worker 1.1 came up on cpu, not on the chips",
            "",
        ),
        ([{**HAS, "process": 0}, {**HAS, "process": 1, "devices": 1}], "worker 1.1 sees 1 of 8 devices", ""),
    ],
)
def test_each_process_has_to_take_its_devices(second: Any, trouble: str, joined: str) -> None:
    run = a_run(attempt=an_attempt(processes=2))
    first = a_worker(0, {**HAS, "process": 0}, {**HAS, "process": 1})
    found = judge_join(run, a_slice(), [first, a_worker(1, *second)])
    assert (found.trouble.partition(" (")[0].partition(":")[0], found.joined) == (trouble, joined)


def test_places_in_few_words() -> None:
    assert fold_workers([(1, 0), (1, 1), 3, (0, 2), 4]) == "0.2,1.0-1,3-4"
    assert fold_workers([(0, 3), (1, 0), (1, 1), (1, 3)]) == "0.3,1.0-1,1.3"
    assert (fold_label("big", [(3, 2)]), fold_label("big", [(0, 1), (1, 1)])) == ("big-3.2", "big[0.1,1.1]")
    assert parse_places("0-3, 7.2") == ("0-3", frozenset({(7, 2)}))
    assert parse_places("3.x") == ("3.x", frozenset())


def test_logs_of_processes_come_by_their_names() -> None:
    assert log_streams(1) == ("stdout", "stderr")
    assert [split_stream(3, name) for name in log_streams(2)] == [
        (3, "stdout"),
        (3, "stderr"),
        ((3, 0), "stdout"),
        ((3, 0), "stderr"),
        ((3, 1), "stdout"),
        ((3, 1), "stderr"),
    ]
    head = b'{"news": {"stdout": 1, "stderr": 0, "0.stdout": 2, "1.stderr": 1}, "more": false, "times": {}}\n'
    news = parse_log_news(head + b"abbc")
    assert news.output == {"stdout": b"a", "stderr": b"", "0.stdout": b"bb", "1.stderr": b"c"}
