"""What the answers of hosts come to before a disk leaves them."""

from __future__ import annotations

from typing import Any

from tests.support.builders import a_slice
from tpuctl.disks.vacate import Vacancy, judge
from tpuctl.hosts.agent import RawReply
from tpuctl.model.hosts import FailureKind, RemoteResult

NAMES = {0: ("data",), 1: ("more",)}
BOX = a_slice(name="box")


def said(worker: int, *disks: dict[str, Any], state: str = "done") -> RawReply:
    return RawReply(worker, {"state": state, "disks": list(disks)}, None, "", RemoteResult(worker, 0))


def unproved(why: str = "", *holders: dict[str, Any]) -> dict[str, Any]:
    return {"proved": False, "why": why, "holders": list(holders), "path": "/dev/sdb"}


def test_all_is_proved_where_every_host_says_so() -> None:
    found = judge(BOX, NAMES, [said(0, {"proved": True}), said(1)])
    assert found == Vacancy(proved=("data", "more"))


def test_a_silent_host_proves_nothing_and_what_may_be_lost_is_said() -> None:
    silence = RemoteResult(1, None, failure=FailureKind.CONNECT, detail="no route")
    silent = RawReply(1, None, "connect", "no route", silence)
    found = judge(BOX, NAMES, [said(0, {"proved": True}), silent])
    assert (found.proved, found.silent) == (("data",), (1,))
    assert found.lost == "worker 1 of box does not answer: what was written and is not on more yet may be lost"


def test_a_host_at_work_has_lost_nothing_yet() -> None:
    found = judge(BOX, NAMES, [said(0, {"proved": True}), said(1, state="working")])
    assert found == Vacancy(proved=("data",), working=True)


def test_a_host_that_refuses_or_answers_nonsense_is_not_silent() -> None:
    refused = RawReply(0, None, "failed", "this needs root", RemoteResult(0, 1))
    nonsense = RawReply(1, {"disks": 7}, None, "", RemoteResult(1, 0))
    found = judge(BOX, NAMES, [refused, nonsense])
    assert (found.proved, found.silent) == ((), ())
    assert found.lost.startswith("worker 0: this needs root; worker 1 answers what cannot be read")


def test_holders_are_named_with_what_ends_them() -> None:
    program = {"what": "file", "path": "/mnt/data/f", "pid": 123, "user": "ada", "program": "python"}
    swap = {"what": "swap", "path": "/mnt/data/my swap", "pid": 0, "user": "", "program": ""}
    found = judge(BOX, NAMES, [said(0, unproved("the kernel holds /dev/sdb", program, swap)), said(1)])
    assert found.proved == ("more",)
    first, second = found.holders
    assert first.said == "worker 0: 123 python of ada has /mnt/data/f open"
    assert first.ends("box") == "tpuctl exec --worker 0 box -- sudo kill 123"
    assert second.said == "worker 0: /mnt/data/my swap is swap"
    assert second.ends("box") == "tpuctl exec --worker 0 box -- sudo swapoff '/mnt/data/my swap'"
    assert found.lost == "worker 0: the kernel holds /dev/sdb"
