"""Hosts that a command waits for and that are not the slice's any more."""

from __future__ import annotations

import pytest

from tests.mounts.test_time_of_hosts import Ran
from tests.support.jobs import bring_up
from tests.support.memory.services import MemoryPlace
from tpuctl.errors import ConflictError
from tpuctl.runs.take_down import take_down
from tpuctl.things.driver import bring_hosts


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
