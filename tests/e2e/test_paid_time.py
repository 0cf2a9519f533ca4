"""A client is away while the cloud takes a slice: what of that time a run is charged with."""

from __future__ import annotations

import pytest

from tests.support.jobs import attempt_row, bring_up, submit
from tests.support.memory.process import scripted
from tpuctl.model.records import RunState
from tpuctl.runs.follow import start_run
from tpuctl.runs.reconcile import advance_run
from tpuctl.state.repository import get_run
from tpuctl.views.runs import run_rows
from tpuctl.watch.cycle import save_heartbeat, watched_pass
from tpuctl.watch.heartbeat import Watcher

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("watched", [False, True])
def test_the_time_between_the_last_sign_of_a_slice_and_its_absence_is_told_apart(place, watched):
    """Followed for 300 s, taken 60 s later, seen gone 200 s after that. A watchdog's pass in between is a sign
    as well."""
    place.hosts.programs["main.py"] = scripted(3600.0)
    followed = place.machine()
    bring_up(followed, "big")
    run = submit(followed, "big", "main")
    start_run(followed, run.id)
    started = get_run(followed, run.id).record.attempt.started_at
    place.clock.advance(300.0)
    advance_run(followed, run.id)
    watcher = Watcher("laptop", "laptop", "ada", "1")
    if watched:
        place.clock.advance(50.0)
        services = place.machine(process=2)
        assert save_heartbeat(services, watched_pass(services, watcher)).previous is not None
    place.clock.advance(started + 360.0 - followed.store.now())
    place.world.preempt("big-1")
    place.clock.advance(200.0)
    # Only the first process remembers what it saw; one that begins now has what passes wrote down.
    services = place.machine(process=3) if watched else followed
    for _ in range(40):
        watched_pass(services, watcher)
        if attempt_ended(services, run.id):
            break
        place.clock.advance(1.0)
    phases = attempt_row(services, run.id, 1)["phases"]
    seen = 350.0 if watched else 300.0
    assert phases["running_s"] == pytest.approx(seen, abs=10.0)
    assert phases["unseen_s"] == pytest.approx(560.0 - seen, abs=10.0)
    assert phases["lost_s"] == phases["running_s"], "it has no checkpoints"
    (row,) = run_rows(services, None, ())
    assert row["state"] != RunState.SUCCEEDED
    rate = row["usd"] / (phases["provisioning_s"] + phases["preparing_s"] + phases["running_s"])
    assert row["unseen_usd"] == pytest.approx(rate * phases["unseen_s"], abs=0.02)


def attempt_ended(services, run_id: str) -> bool:
    attempt = get_run(services, run_id).record.attempt
    return attempt is not None and (attempt.number > 1 or attempt.ended_at is not None)
