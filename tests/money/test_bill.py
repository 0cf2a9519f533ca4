"""The bill: who pays for what, and that nothing is left out for want of a price or an answer."""

from __future__ import annotations

import pytest

from tests.support.builders import ZONE, a_node, a_queued
from tpuctl.model.cloud import (
    Api,
    CloudResource,
    GroupHosts,
    Listing,
    NodeState,
    QueuedState,
    ResourceKind,
    Tier,
)
from tpuctl.model.shipped_files import load_accelerators, load_other_prices
from tpuctl.money.bill import Census, Payer, UnreadCost, make_bill
from tpuctl.money.grants import Grant

NOW = 1_800_000_000.0  # 2027-01-15


def the_bill(nodes=(), queued=(), assets=(), grants=(), unread=(), dark=frozenset()):
    census = Census(Listing(tuple(nodes), dark), Listing(tuple(queued)), tuple(assets), tuple(unread))
    return make_bill(census, grants, load_accelerators(), load_other_prices(), NOW)


def test_an_empty_project_is_zero():
    bill = the_bill()
    assert bill.zero
    assert bill.lines == ()


def test_a_grant_covers_the_oldest_nodes_up_to_its_chips():
    nodes = [
        a_node(name="young", create_time="2026-02-01"),
        a_node(name="old", create_time="2026-01-01"),
    ]
    bill = the_bill(nodes, grants=[Grant(ZONE, Tier.SPOT, "v4", 8)])
    assert {line.resource.name: line.payer for line in bill.lines} == {"old": Payer.GRANT, "young": Payer.YOU}
    assert bill.per_hour == pytest.approx(8 * 0.966)
    assert not bill.zero


def test_everything_covered_is_zero():
    bill = the_bill([a_node()], grants=[Grant(ZONE, Tier.SPOT, "v4", 8)])
    assert bill.zero
    assert [line.payer for line in bill.lines] == [Payer.GRANT]


@pytest.mark.parametrize(
    "grant",
    [
        Grant("us-east1-d", Tier.SPOT, "v4", 64),
        Grant(ZONE, Tier.ON_DEMAND, "v4", 64),
        Grant(ZONE, Tier.SPOT, "v6e", 64),
        Grant(ZONE, Tier.SPOT, "v4", 64, ends="2026-12-31"),
    ],
    ids=["another zone", "another tier", "another generation", "ended"],
)
def test_a_grant_for_something_else_covers_nothing(grant):
    assert [line.payer for line in the_bill([a_node()], grants=[grant]).lines] == [Payer.YOU]


@pytest.mark.parametrize("state", [NodeState.PREEMPTED, NodeState.TERMINATED])
def test_a_dead_node_costs_nothing(state):
    assert the_bill([a_node(state=state)]).zero


@pytest.mark.parametrize(
    "state", sorted(set(NodeState) - {NodeState.PREEMPTED, NodeState.TERMINATED, NodeState.HALF_MADE})
)
def test_every_other_state_may_cost_money(state):
    assert not the_bill([a_node(state=state)]).zero


def test_what_is_half_made_in_compute_engine_costs_nothing():
    left = a_node(state=NodeState.HALF_MADE, api=Api.COMPUTE, kind=ResourceKind.POLICY)
    assert the_bill([left]).zero


def a_group(state, wanted=2, running=0, **changes):
    there = tuple(f"big-1-w-00{number}" for number in range(1, wanted + 1))
    hosts = GroupHosts(wanted, there, there[:running])
    made = {"api": Api.COMPUTE, "kind": ResourceKind.GROUP, "state": state, "hosts": hosts}
    return a_node(**{**made, **changes})


@pytest.mark.parametrize("state", [NodeState.CREATING, NodeState.STOPPED])
def test_a_group_without_hosts_is_named_by_its_type_and_costs_what_its_hosts_will(state):
    waits = a_group(state, hosts=GroupHosts(2), accelerator_type="v6e-16", zone="us-east5-a")
    (line,) = the_bill([waits]).lines
    assert line.detail == f"v6e-16 spot {state}"
    assert line.per_hour
    assert line.note.endswith("; from the moment that it has hosts")


ENDED = [NodeState.PREEMPTED, NodeState.TERMINATED, NodeState.STOPPED]


@pytest.mark.parametrize("state", ENDED)
def test_hosts_that_run_on_when_others_of_their_group_ended_are_paid_for(state):
    (line,) = the_bill([a_group(state, wanted=4, running=3)]).lines
    assert (line.payer, line.per_hour) == (Payer.YOU, pytest.approx(8 * 0.966 * 3 / 4))
    assert line.note.startswith("3 of 4 hosts run")
    (line,) = the_bill([a_group(state, wanted=4)]).lines
    assert not line.per_hour


def test_hosts_of_a_group_that_is_not_whole_are_counted_with_it_and_no_grant_pays_for_them():
    group = a_group(NodeState.CREATING, wanted=3, running=3)
    hosts = group.hosts.there
    members = [CloudResource(ResourceKind.INSTANCE, each, ZONE, "ct6e-standard-4t") for each in hosts]
    other = CloudResource(ResourceKind.INSTANCE, "dev", ZONE, "n1-standard-4")
    bill = the_bill([group], assets=[*members, other], grants=[Grant(ZONE, Tier.SPOT, "v4", 64)])
    assert [(line.resource.name, line.payer) for line in bill.lines] == [
        ("big-1", Payer.YOU),
        ("dev", Payer.YOU),
    ]


def test_a_request_counts_once_with_its_node_and_alone_while_it_waits():
    both = the_bill([a_node()], [a_queued()])
    assert [line.resource.kind for line in both.lines] == ["node"]
    waiting = the_bill(queued=[a_queued(state=QueuedState.WAITING_FOR_RESOURCES)])
    assert [(line.resource.kind, line.payer) for line in waiting.lines] == [("queued", Payer.YOU)]
    dead = the_bill(queued=[a_queued(state=QueuedState.SUSPENDED)])
    assert dead.zero


def test_a_node_of_the_same_name_in_another_zone_does_not_hide_a_request():
    bill = the_bill([a_node(zone="us-east1-d")], [a_queued(state=QueuedState.ACCEPTED)])
    assert sorted(line.resource.kind for line in bill.lines) == ["node", "queued"]


def test_a_type_that_no_table_has_is_billed_without_a_price():
    bill = the_bill([a_node(accelerator_type="v99-8")], grants=[Grant(ZONE, Tier.SPOT, "v4", 999)])
    assert [(line.payer, line.per_hour) for line in bill.lines] == [(Payer.YOU, None)]
    assert bill.unpriced == 1


ASSETS = [
    (CloudResource(ResourceKind.DISK, "d", ZONE, "pd-balanced", size_gib=730.0), 0.1),
    (CloudResource(ResourceKind.DISK, "d", ZONE, "pd-new", size_gib=730.0), None),
    (CloudResource(ResourceKind.DISK, "d", ZONE, "hyperdisk-ml", size_gib=730.0, throughput_mib_s=730), 0.2),
    (CloudResource(ResourceKind.SNAPSHOT, "s", "us", size_gib=73.0), 0.005),
    (CloudResource(ResourceKind.SNAPSHOT, "s", "us"), None),
    (CloudResource(ResourceKind.ADDRESS, "a", "us-central2", "EXTERNAL", "RESERVED"), 0.01),
    (CloudResource(ResourceKind.INSTANCE, "vm", ZONE, "e2-micro", "RUNNING"), None),
    (CloudResource(ResourceKind.BUCKET, "b", "us", "STANDARD", size_gib=365.0), 0.01),
    (CloudResource(ResourceKind.BUCKET, "b", "us", "STANDARD", size_gib=365.0, at_least=True), None),
    (CloudResource(ResourceKind.BUCKET, "b", "us", "STANDARD", "not readable"), None),
]


@pytest.mark.parametrize(("asset", "per_hour"), ASSETS, ids=lambda each: str(getattr(each, "kind", each)))
def test_no_grant_covers_what_is_not_a_tpu(asset, per_hour):
    bill = the_bill(assets=[asset], grants=[Grant(ZONE, Tier.SPOT, "v4", 999)])
    (line,) = bill.lines
    assert line.payer is Payer.YOU
    assert line.per_hour == (None if per_hour is None else pytest.approx(per_hour))


@pytest.mark.parametrize(
    "asset",
    [
        CloudResource(ResourceKind.BUCKET, "b", "us", "STANDARD", "empty", size_gib=0.0),
        CloudResource(ResourceKind.BUCKET, "store", "us", "STANDARD", size_gib=0.3),
        CloudResource(ResourceKind.ADDRESS, "a", "us-central2", "INTERNAL", "RESERVED"),
    ],
    ids=lambda asset: asset.kind,
)
def test_what_is_free_is_listed_and_zero(asset):
    bill = the_bill(assets=[asset])
    assert [line.payer for line in bill.lines] == [Payer.NOBODY]
    assert bill.zero


def test_what_could_not_be_read_is_not_zero():
    assert not the_bill(unread=[UnreadCost("disks", "denied")]).zero
    bill = the_bill(dark=frozenset({ZONE}))
    assert not bill.zero
    assert [each.what for each in bill.unread] == [f"TPUs in {ZONE}"]
