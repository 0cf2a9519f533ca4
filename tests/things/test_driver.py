"""What a step of provisioning comes to, and hosts that are not the slice's any more while a command waits."""

from __future__ import annotations

import math

import pytest

from tests.mounts.test_time_of_hosts import Ran
from tests.support.jobs import bring_up
from tests.support.memory.services import MemoryPlace
from tpuctl.errors import ConflictError
from tpuctl.hosts.provision import Failures, Provisioned, ProvisionFailure, Verdict
from tpuctl.model.verdict import Blocked, Done, Failed, Wait
from tpuctl.runs.take_down import take_down
from tpuctl.things.driver import TRIES, bring_hosts, explain


@pytest.mark.parametrize(("again", "why"), [(False, "big was taken down"), (True, "big has new hosts")])
def test_a_command_does_not_wait_for_hosts_that_are_gone(place: MemoryPlace, again: bool, why: str) -> None:
    mine, other = place.machine(), place.machine("other")
    record = bring_up(mine, "big")
    take_down(other, "big")
    if again:
        bring_up(other, "big")
    began = place.clock.now()
    with pytest.raises(ConflictError, match=f"{why} meanwhile"):
        bring_hosts(mine, record, [Ran()])
    assert place.clock.now() - began < 60.0


def failures(*, tries: int, permanent: bool = False, hint: str = "", on_host: str = "") -> Failures:
    return Failures(
        (ProvisionFailure(1, "mounting b", "no room", tries, permanent, ".tpuctl/log", hint, on_host),)
    )


@pytest.mark.parametrize(
    ("found", "tries", "expected"),
    [
        (Provisioned(({},)), TRIES, Done()),
        (Wait("1 worker: mounting b"), TRIES, Wait("1 worker: mounting b")),
        (Blocked("no root", "sudo"), TRIES, Blocked("no root", "sudo")),
        (failures(tries=2), TRIES, Wait("mounting b failed on worker 1: no room; it is tried again")),
        (failures(tries=9), math.inf, Wait("mounting b failed on worker 1: no room; it is tried again")),
    ],
)
def test_what_is_done_or_comes_yet_is_told_as_it_is(found: Verdict, tries: float, expected: object) -> None:
    assert explain(found, "big", tries=tries) == expected


@pytest.mark.parametrize(
    ("found", "tries", "message", "hint"),
    [
        (failures(tries=1), 0, "(1 try)", "tpuctl exec --worker 1 big -- tail -n 50 .tpuctl/log"),
        (failures(tries=3), TRIES, "(3 tries)", "tpuctl exec --worker 1 big -- tail -n 50 .tpuctl/log"),
        (
            failures(tries=1, permanent=True, hint="make room", on_host="df -h"),
            math.inf,
            "(1 try)",
            "make room: tpuctl exec --worker 1 big -- df -h",
        ),
        (failures(tries=1, permanent=True, hint="tpuctl disk ls"), TRIES, "(1 try)", "tpuctl disk ls"),
    ],
)
def test_a_failure_counts_after_its_tries_with_what_to_type_next(
    found: Failures, tries: float, message: str, hint: str
) -> None:
    verdict = explain(found, "big", tries=tries)
    assert isinstance(verdict, Failed)
    assert verdict.error.message == f"mounting b failed on worker 1: no room {message}"
    assert (verdict.error.hint, verdict.error.details["workers"]) == (hint, [1])
