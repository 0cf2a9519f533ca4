"""What the answers of workers to the readiness probe amount to."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.hosts.agent import RawReply
from tpuctl.model.cloud import FailureKind, RemoteResult
from tpuctl.slices.probing import judge_answers

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
