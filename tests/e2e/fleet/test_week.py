"""Fleets that live for days in minutes: whatever the cloud, its errors and kills do, every promise is kept.

Nothing billable without an intent written before, never two of one slice, no deletion of a slice that lives,
dead requests collected, and no slice that waits longer than its back-off while there is room for it; judged by
somebody who watches the simulated cloud itself (`observer.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from msgspec import structs

from tests.e2e.fleet.life import SMALL, Life, Plan, half_a_day, live, week
from tests.e2e.fleet.observer import Broken
from tests.e2e.fleet.weather import DAY, HOUR, MINUTE
from tests.support.soak import soak
from tpuctl.lib.codec import from_data
from tpuctl.model import timeouts
from tpuctl.model.cloud import INCARNATION_LABEL, OWNER_LABEL
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.sim.world.world import Resident
from tpuctl.slices.desired import request_slice
from tpuctl.watch.pause import pause_fleet


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_week_of_forty_slices_with_two_watchdogs():
    life = live(week(seed=1))
    assert life.passes > 18_000
    assert life.kills > 50
    assert life.observer.creates > 5_000
    assert life.results["blind"] > 0, "nothing happened while port 22 was blocked"
    assert life.observer.longest_wait_s > timeouts.BACKOFF_MAX_S / 2, "nobody ever waited beside room"


@pytest.mark.slow
@pytest.mark.soak
def test_two_days_of_twelve_slices_with_a_blocked_day_between():
    life = live(Plan(1, 2 * DAY, DAY / 2, DAY, SMALL))
    assert life.passes > 5_000
    assert life.kills > 0
    assert life.results["blind"] > 0, "nothing happened while port 22 was blocked"
    assert life.observer.longest_wait_s > timeouts.BACKOFF_MAX_S / 2, "nobody ever waited beside room"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("share", "hours", "creates"), [(SMALL, 3, 30), soak(SMALL, 6, 60), soak(1.0, 12, 400)]
)
def test_hours_with_clocks_ten_minutes_apart(share, hours, creates):
    third = hours * HOUR / 3
    plan = Plan(51, 3 * third, blocked_from_s=third, blocked_s=third, share=share, skew_s=10 * MINUTE)
    assert live(plan).observer.creates > creates


def test_the_same_seed_is_the_same_story():
    plan = replace(half_a_day(3, SMALL), length_s=HOUR)
    first, second = live(plan), live(plan)
    assert first.results == second.results
    assert [(e.time, e.method, e.resource, e.status) for e in first.place.world.journal.entries()] == [
        (e.time, e.method, e.resource, e.status) for e in second.place.world.journal.entries()
    ]


# The observer notices what it is there for.


@pytest.fixture
def fleet() -> Iterator[Life]:
    """A small fleet after the first hour of its life."""
    life = Life(replace(half_a_day(1, SMALL), length_s=HOUR))
    life.live_for(HOUR)
    yield life
    life.close()


def living(life: Life) -> Resident:
    """A node that its user wants, with hosts that answer."""
    wanted = {each.data["name"] for each in life.place.server.list("slices/") if each.data["desired"] == "up"}
    node = next(
        each
        for each in life.place.world.census()
        if each.kind == "node" and each.state == "READY" and each.labels.get(OWNER_LABEL) in wanted
    )
    for host in life.place.hosts.hosts_of(node.key):
        host.recover()
    life.observer.see_who_is_well()
    return node


def test_slices_that_wait_beside_room_are_noticed(fleet):
    services = fleet.place.machine("c")
    spec = from_data(SliceSpec, next(iter(fleet.place.server.list("slices/"))).data["spec"])
    fleet.calm_down()
    request_slice(services, "late", spec, pay=True, zones=(), admit=lambda: None)
    pause_fleet(services, until=None)
    with pytest.raises(Broken, match=r"late waits for 1\d min"):
        fleet.live_for(HOUR)


def test_dead_requests_that_stay_are_noticed(fleet):
    pause_fleet(fleet.place.machine("c"), until=None)
    node = living(fleet)
    fleet.place.world.preempt(node.path.name)
    fleet.place.world.set_capacity(node.path.zone, 0)
    with pytest.raises(Broken, match=r"(PREEMPTED|SUSPENDED|FAILED) for [23]\d min"):
        fleet.live_for(2 * HOUR)


def test_a_live_slice_that_is_deleted_is_noticed(fleet):
    node = living(fleet)
    fleet.place.world.faults.clear()
    with pytest.raises(Broken, match="after 0 s of silence"):
        fleet.place.machine("c").cloud.delete_node(node.path.zone, node.path.id)


def test_what_nobody_meant_to_create_is_noticed(fleet):
    [record] = [each.data for each in fleet.place.server.list("slices/")][:1]
    spec = from_data(SliceSpec, record["spec"])
    labels = {OWNER_LABEL: record["name"], INCARNATION_LABEL: "99"}
    with pytest.raises(Broken, match="the intent says"):
        fleet.place.machine("c").cloud.create_node(f"{record['name']}-99", structs.replace(spec, labels=labels))


def test_two_of_one_slice_are_noticed(fleet):
    node = living(fleet)
    create = fleet.place.world.handlers["nodes.create"]
    data = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e", "labels": dict(node.labels)}
    create({"parent": "projects/sim-project/locations/us-east5-b", "nodeId": "twin", "node": data}, "v2")
    with pytest.raises(Broken, match="more than once"):
        fleet.observer.look()
