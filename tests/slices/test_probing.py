"""What the answers of workers to the readiness probe amount to."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.hosts.agent import RawReply
from tpuctl.model.cloud import FailureKind, RemoteResult
from tpuctl.model.hosts import Endpoint
from tpuctl.model.records import Worker
from tpuctl.slices.probing import judge_answers, number_workers

WELL = RawReply(0, {}, None, "", RemoteResult(0, 0))
FULL = RawReply(1, None, "failed", "cannot install the agent: No space left on device", RemoteResult(1, 1))
SILENT = RawReply(1, None, "connect", "no route", RemoteResult(1, None, failure=FailureKind.CONNECT))


@pytest.mark.parametrize(
    ("replies", "answered", "unfit", "said"),
    [
        ([WELL], 1, False, ""),
        (
            [WELL, FULL],
            1,
            True,
            "no agent on 1 of 2 workers (worker 1: cannot install the agent: No space left",
        ),
        ([WELL, SILENT], 1, False, "no SSH to 1 of 2 workers (worker 1: no route)"),
        ([FULL, SILENT], 0, False, "no SSH to 2 of 2 workers"),
    ],
)
def test_a_host_whose_home_cannot_be_written_is_named_and_no_silent_one(
    replies: list[Any], answered: int, unfit: bool, said: str
) -> None:
    found = judge_answers(replies)
    assert (found.answered, found.unfit) == (answered, unfit)
    assert found.trouble.startswith(said)
    assert found.all_well == (said == "")


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        (["0", "1", "2"], ["w-a", "w-b", "w-c"]),
        (["2", "0", "1"], ["w-b", "w-c", "w-a"]),
        (["0", None, "2"], "w-b does not say its worker number"),
        (["0", "1", "3"], "w-c says that it is worker 3 of 3 hosts"),
        (["0", "1", "-1"], "w-c says that it is worker -1 of 3 hosts"),
        (["0", "1", ""], "w-c says that it is worker  of 3 hosts"),
        (["1", "0", "1"], "w-a and w-c both say that they are worker 1"),
        ([None], ["w-a"]),
        (["0"], ["w-a"]),
        (["1"], "w-a says that it is worker 1 of 1 host"),
    ],
)
def test_hosts_themselves_say_which_worker_they_are(numbers: list[str | None], found: object) -> None:
    workers = [Worker(Endpoint(f"10.0.0.{each}", None, f"w-{each}"), "") for each in "abc"[: len(numbers)]]
    ordered = number_workers(workers, numbers)
    assert (ordered if isinstance(ordered, str) else [each.endpoint.instance for each in ordered]) == found
