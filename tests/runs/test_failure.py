"""What the end of an attempt means, by the table of signatures."""

from __future__ import annotations

import string
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, an_attempt
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.attempts import Cause, Failure, Fault
from tpuctl.model.records import RunState
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.model.shipped_files import load_failure_table
from tpuctl.runs.charge import charge
from tpuctl.runs.failure import (
    PatternSource,
    Signature,
    WorkerLog,
    describe_failure,
    ending_line,
    failed_workers,
    name_failure,
    parse_signatures,
)

TABLE = parse_signatures(load_failure_table())
ROWS = [pytest.param(row, id=row.id) for row in TABLE]
NOW = 5000.0


def exited(number: int, *, at: float = 100.0, **changes: Any) -> WorkerStatus:
    values: dict[str, Any] = {"exit_status": 1, "ended_at": at, **changes}
    return WorkerStatus(number, WorkerState.EXITED, **values)


def named(*workers: WorkerStatus, cause: Cause = Cause.FAILED, why: str = "it broke", **logs: str) -> Failure:
    """`logs` are what workers wrote, as `w0`."""
    wrote = {int(name[1:]): WorkerLog(stderr=text) for name, text in logs.items()}
    attempt = an_attempt(cause=cause, suspect_why=why)
    found = name_failure(TABLE, a_run(attempt=attempt), attempt, workers, wrote)
    assert found is not None
    return found


def of_sample(row: Signature) -> Failure:
    """The failure of a worker that ends as the sample of a row says."""
    if row.of is PatternSource.CAUSE:
        return named(cause=Cause(row.sample))
    if row.of is not PatternSource.END:
        return named(exited(0), w0=f"step 1\n{row.sample}\n")
    words, _, detail = row.sample.partition(": ")
    kind, number, *oom = words.split(" ")
    ends = {"signal": int(number), "exit_status": None} if kind == "signal" else {"exit_status": int(number)}
    return named(exited(0, **ends, detail=detail, oom_kills=len(oom)))


@pytest.mark.parametrize("row", ROWS)
def test_a_sample_is_known_by_its_own_row(row: Signature) -> None:
    found = of_sample(row)
    assert (found.signature, found.whose, found.retry) == (row.id, row.whose, row.retry)
    assert not string.Formatter().parse(found.remedy) or "{" not in found.remedy + found.meaning


@pytest.mark.timeout(20)
@pytest.mark.parametrize("end", ["\n", "\r", " "])
def test_a_line_without_end_is_searched_in_time_and_hides_nothing(end: str) -> None:
    row = next(row for row in TABLE if row.of is PatternSource.LOG and not row.sample.startswith("["))
    found = named(exited(0), w0=f"{'x' * 4_000_000}{end}{row.sample}\n")
    assert found.signature == row.id
    assert named(exited(0), w0="x" * 4_000_000 + end).signature == named(exited(0)).signature


def test_every_row_names_its_source_and_has_an_id_of_its_own() -> None:
    rows = load_failure_table()["signatures"]
    assert all(row["source"] for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)


def test_every_cause_that_is_a_failure_has_a_name_where_no_worker_says_it() -> None:
    for cause in set(Cause) - {Cause.SUCCEEDED, Cause.STOPPED, Cause.RESTART_ASKED}:
        assert named(cause=cause, why="worker 0 refused").signature


RAISED = "Traceback (most recent call last):\n  File 'a.py'\n"
MISSING = f"{RAISED}ModuleNotFoundError: No module named 'flax'\n"
RESET = f"{RAISED}ConnectionResetError: [Errno 104] Connection reset by peer\n"


def test_the_worker_that_ended_first_by_the_time_of_hosts_has_the_cause() -> None:
    found = named(exited(0, at=12.0), exited(1, at=11.0), w0="ValueError: x", w1=MISSING)
    assert (found.worker, found.signature) == (1, "module-not-found")
    assert found.evidence == "ModuleNotFoundError: No module named 'flax'"
    assert describe_failure(found) == "worker 1: Python does not find flax (module-not-found, environment)"


def test_who_lost_a_peer_is_a_consequence_even_if_it_ended_first() -> None:
    found = named(exited(0, at=11.0), exited(1, at=12.0, exit_status=None, signal=9), w0=RESET)
    assert (found.worker, found.signature) == (1, "killed")


def test_where_all_lost_a_peer_the_first_is_named() -> None:
    found = named(exited(0, at=12.0), exited(1, at=11.0), w0=RESET, w1=RESET)
    assert (found.worker, found.signature) == (1, "peer-closed")


def test_workers_that_were_stopped_have_no_failure_of_their_own() -> None:
    told = exited(0, exit_status=None, signal=15, stopped=True, stop_asked=True)
    going_down = exited(1, exit_status=143, stopped=True)
    assert failed_workers([told, going_down, exited(2, exit_status=0), exited(3)]) == [exited(3)]


def test_a_bug_is_no_preemption_though_another_host_is_silent() -> None:
    silent = WorkerStatus(0, WorkerState.UNREACHABLE)
    found = named(silent, exited(1), cause=Cause.HOST_LOST, w1=MISSING)
    assert (found.worker, found.signature) == (1, "module-not-found")
    found = named(silent, exited(1), cause=Cause.HOST_LOST, w1=RESET)
    assert (found.worker, found.signature, found.whose) == (0, "host-lost", Fault.CLOUD)


def test_what_a_preempted_host_wrote_last_is_not_asked() -> None:
    found = named(exited(0), cause=Cause.PREEMPTED, w0=MISSING)
    assert (found.signature, found.worker) == ("preempted", None)


@pytest.mark.parametrize("cause", [Cause.SUCCEEDED, Cause.STOPPED, Cause.RESTART_ASKED])
def test_what_did_not_fail_has_no_failure(cause: Cause) -> None:
    attempt = an_attempt(cause=cause)
    assert name_failure(TABLE, a_run(), attempt, [exited(0)], {0: WorkerLog(stderr=MISSING)}) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        (MISSING, "ModuleNotFoundError: No module named 'flax'"),
        (MISSING + "wandb: run history\nwandb: done\n", "ModuleNotFoundError: No module named 'flax'"),
        (MISSING + "the optional flax is not there\n" * 60, "the optional flax is not there"),
        ("[rank0]: " + "\n[rank0]: ".join(MISSING.splitlines()), "ModuleNotFoundError: No module named 'flax'"),
        (MISSING + "\nDuring handling of the above exception:\n\n" + RESET, RESET.splitlines()[-1]),
        (
            '  File "a.py", line 1\n    def (\n        ^\nSyntaxError: invalid syntax\n',
            "SyntaxError: invalid syntax",
        ),
    ],
)
def test_the_exception_that_ended_it_is_found(text: str, line: str) -> None:
    assert ending_line(text) == line


def test_what_a_shell_says_of_a_killed_child_is_a_signal() -> None:
    assert named(exited(0, exit_status=137)).signature == "killed"
    assert named(exited(0, exit_status=137, oom_kills=1)).signature == "oom-killed"
    assert named(exited(0, exit_status=139)).signature == "crashed"


def test_what_kept_workers_from_starting_is_searched_where_none_ran() -> None:
    assert named(why="worker 0: OSError: No space left on device").signature == "disk-full"


def test_a_disk_that_is_full_is_not_filled_again() -> None:
    failure = named(exited(1), w1="OSError: [Errno 28] No space left on device")
    run = charge(a_run(policy=RestartPolicy(max_failures=9)), ended(failure), NOW)
    assert (run.state, run.failures) == (RunState.FAILED, 1)


def ended(failure: Failure, cause: Cause = Cause.FAILED) -> Any:
    return an_attempt(cause=cause, suspect_why="worker 1 exited with 1", failure=failure)


def test_what_would_come_again_is_not_tried_again() -> None:
    failure = named(exited(1), w1=MISSING)
    run = charge(a_run(policy=RestartPolicy(max_failures=9)), ended(failure), NOW)
    assert (run.state, run.failures) == (RunState.FAILED, 1)
    assert run.reason == (
        "worker 1 exited with 1; worker 1: Python does not find flax (module-not-found, environment); "
        "it would come again"
    )


def test_a_fault_of_the_cloud_is_charged_to_preemptions_however_often_it_comes_at_once() -> None:
    failure = named(exited(1), w1="Core halted: the observed errors are: [Hardware].")
    run = a_run(policy=RestartPolicy(max_failures=0, max_preemptions=2))
    for _ in range(2):
        run = charge(run, ended(failure), NOW)
        assert run.state is RunState.WAITING
    assert (run.failures, run.preemptions) == (0, 2)
    assert charge(run, ended(failure), NOW).state is RunState.GAVE_UP


def test_a_failure_that_may_go_well_is_tried_again_and_says_so() -> None:
    failure = replace(named(exited(1), w1="ValueError: x"), worker=1)
    run = charge(a_run(policy=RestartPolicy()), ended(failure), NOW)
    assert run.state is RunState.WAITING
    assert run.reason.endswith("worker 1: it ended with ValueError (exception, code); it is tried again")
