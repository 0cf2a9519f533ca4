"""What the reports of a run's processes about their devices come to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import JoinReport, WorkerStatus
from tpuctl.model import timeouts
from tpuctl.runs.join import judge_join

NOW = 5000.0
CHIPS: dict[str, Any] = {"backend": "tpu", "devices": 8}
CPU: dict[str, Any] = {"backend": "cpu", "devices": 1}
WAITS: dict[str, Any] = {"waits": True, "since": NOW - timeouts.JOIN_MAX_S}
PREPARES: dict[str, Any] = {"waits": False}
"""Has met the others in `jax.distributed.initialize`, and prepares something before it takes its devices."""
ON_CPU = "worker 1 came up on cpu, not on the chips (--allow-cpu if that is wanted, else tpuctl smoke big)"
TOO_FEW = "worker 1 sees 4 of 8 devices (--allow-cpu if that is wanted, else tpuctl smoke big)"
LATE = "worker 1 did not come to take the chips: the others wait since 300 s (--join-limit allows more)"


def worker(number: int, *reports: dict[str, Any]) -> WorkerStatus:
    join = tuple(JoinReport(pid, **report) for pid, report in enumerate(reports))
    return WorkerStatus(number, WorkerState.RUNNING, time=NOW, join=join)


@pytest.mark.parametrize(
    ("first", "second", "trouble", "joined"),
    [
        ([CHIPS], [CHIPS], "", "8 chips, 2 workers"),
        ([CHIPS], [CPU], ON_CPU, ""),
        ([CHIPS], [{**CHIPS, "devices": 4}], TOO_FEW, ""),
        ([CHIPS], [{**CHIPS, "devices": 1, "bounded": True}], "", "8 chips, 2 workers"),
        ([CHIPS], [{**CPU, "chosen": True}, CHIPS], "", "8 chips, 2 workers"),
        ([CHIPS], [{**CPU, "chosen": True}], "", ""),
        ([CHIPS], [], "", ""),
        ([], [], "", ""),
        ([WAITS], [], LATE, ""),
        ([{**WAITS, "since": NOW - 299}], [], "", ""),
        ([WAITS], [WAITS], "", ""),
        ([WAITS], [PREPARES], "", ""),
        ([PREPARES], [WAITS], "", ""),
    ],
)
def test_who_stands_out_is_named_with_what_to_type(first: Any, second: Any, trouble: str, joined: str) -> None:
    found = judge_join(a_run(), a_slice(), [worker(0, *first), worker(1, *second)])
    assert (found.trouble, found.joined) == (trouble, joined)


def test_some_of_the_workers_have_their_share_of_the_chips() -> None:
    run = a_run(attempt=an_attempt(workers=(1,)))
    assert judge_join(run, a_slice(), [worker(1, {**CHIPS, "devices": 4})]).joined == "4 chips, 1 worker"


def test_how_long_workers_wait_is_the_users_to_say() -> None:
    run = a_run(join_limit=600.0)
    assert judge_join(run, a_slice(), [worker(0, WAITS), worker(1)]).trouble == ""


def test_what_is_no_report_is_left_out() -> None:
    said = {"run": "r", "attempt": "1", "state": "running", "stdout_bytes": 0, "stderr_bytes": 0}
    said |= {"boot_id": "b", "time": 1.0, "join": [{"pid": 1, **CHIPS}, {"pid": "x"}, "y", {}]}
    assert WorkerStatus.parse(said, 0).join == (JoinReport(1, **CHIPS),)
    assert WorkerStatus.parse({**said, "join": 7}, 0).join == ()
