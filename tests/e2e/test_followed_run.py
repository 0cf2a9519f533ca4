"""Whoever follows a run restores it: no watchdog is needed while a terminal is open."""

from __future__ import annotations

import pytest

from tests.support.jobs import attempt_row, bring_up, submit
from tests.support.memory.process import scripted
from tpuctl.model.records import RunState
from tpuctl.runs.follow import follow_run
from tpuctl.state.repository import get_run, get_slice

pytestmark = pytest.mark.slow


def test_a_followed_run_whose_slice_is_taken_while_its_code_is_sent_goes_on_with_who_follows_it(place):
    """60 s of code on the way; after 20 of them the slice is gone, and with it the connection. No watchdog."""
    services = place.machine(bytes_per_s=500_000.0)
    place.hosts.programs["main.py"] = scripted(60.0)
    bring_up(services, "big")
    run = submit(services, "big", "x" * 30_000_000)
    at, taken = place.clock.now() + 20.0, []

    def take(now: float) -> None:
        if now >= at and not taken:
            taken.append(get_run(services, run.id).record.state)
            place.world.preempt("big-1")

    place.clock.follow(take)
    ended = follow_run(services, run.id, deadline=services.clock.now() + 3600.0)
    assert taken == [RunState.PREPARING]
    assert ended.state is RunState.SUCCEEDED, ended.reason
    assert (ended.preemptions, ended.failures) == (1, 0)
    assert get_slice(services, "big").record.incarnation.cloud_name == "big-2"
    first = attempt_row(services, run.id, 1)
    assert (first["cause"], first["started"]) == ("preempted", None)
