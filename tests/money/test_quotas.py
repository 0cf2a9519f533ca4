"""Quotas: what an id means, what is taken, what is short, and how to ask for more."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import LABELS, a_node, a_queued
from tpuctl.model.cloud import (
    USER_LABEL,
    Api,
    Endpoint,
    GroupHosts,
    NodeState,
    QueuedState,
    ResourceKind,
    Tier,
)
from tpuctl.model.quota import ComputeQuota, parse_family_quota, parse_tpu_quota
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.money.quotas import (
    ADDRESSES,
    HEALTH_CHECKS,
    INSTANCES,
    ask_for_tpus,
    collect_command,
    find_holdings,
    find_shortages,
    find_tpu_quotas,
    quota_units,
    units_used,
)

REGION = "us-central2"
V4_SPOT = "TPUV4sPreemptiblePodPerProjectPerZoneForTPUAPI"
CATALOG = load_accelerators()


@pytest.mark.parametrize(
    ("quota_id", "generation", "preemptible", "serving"),
    [
        ("TPUV6EPerProjectPerZoneForTPUAPI", "v6e", False, False),
        ("TPUV6EPreemptiblePerProjectPerRegionForTPUAPI", "v6e", True, False),
        ("TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI", "v5e", True, False),
        ("TPUV5sLitepodServingPerProjectPerZoneForTPUAPI", "v5e", False, True),
        ("TPUV5PPerProjectPerZoneForTPUAPI", "v5p", False, False),
        (V4_SPOT, "v4", True, False),
        ("TPUV3sPerProjectPerZoneForTPUAPI", "v3", False, False),
        ("TPUV2sPodPerProjectPerRegionForTPUAPI", "v2", False, False),
    ],
)
def test_ids_say_what_they_limit(quota_id, generation, preemptible, serving):
    found = parse_tpu_quota(quota_id, "us-east1-d", 64)
    assert found is not None
    assert (found.generation, found.preemptible, found.serving) == (generation, preemptible, serving)


def test_request_rates_are_no_capacity():
    assert parse_tpu_quota("CreateRequestsPerMinutePerProject", "global", 60) is None


@pytest.mark.parametrize(
    ("name", "units"), [("v4-8", 8), ("v5p-8", 8), ("v3-8", 8), ("v6e-8", 8), ("v5litepod-16", 16)]
)
def test_a_slice_takes_units_of_its_generation(name, units):
    assert quota_units(CATALOG.get(name)) == units


def test_a_queued_resource_and_its_node_count_once():
    held = find_holdings(
        CATALOG, [a_node(queued_resource="big-1", endpoints=(Endpoint("1.1.1.1"),) * 2)], [a_queued()]
    )
    assert [(each.resource.name, str(each.resource.kind), each.chips, each.hosts) for each in held] == [
        ("big-1", "queued", 8, 2)
    ]


def test_multislice_requests_count_all_their_nodes():
    held = find_holdings(CATALOG, [], [a_queued(node_ids=("a-0", "a-1", "a-2"))])
    assert held[0].chips == 24


def test_dead_requests_hold_quota_and_preempted_direct_nodes_do_not():
    spot = parse_tpu_quota(V4_SPOT, "us-central2-b", 64)
    dead = find_holdings(CATALOG, [], [a_queued(state=QueuedState.SUSPENDED)])
    assert units_used(dead, spot) == 16
    direct = find_holdings(CATALOG, [a_node(state=NodeState.PREEMPTED)], [])
    assert direct[0].dead
    assert units_used(direct, spot) == 0
    in_part = a_node(state=NodeState.PREEMPTED, api=Api.COMPUTE, hosts=GroupHosts(2, ("a", "b"), ("a",)))
    assert not find_holdings(CATALOG, [in_part], [])[0].dead


def test_use_counts_tier_and_place():
    spot = parse_tpu_quota(V4_SPOT, "us-central2-b", 64)
    regional = parse_tpu_quota("TPUV4sPodPerProjectPerRegionForTPUAPI", REGION, 64)
    held = find_holdings(
        CATALOG, [a_node(), a_node(name="b", tier=Tier.ON_DEMAND), a_node(name="c", zone="us-east1-d")], []
    )
    assert units_used(held, spot) == 16
    assert units_used(held, regional) == 16


def test_single_devices_of_v3_do_not_draw_on_the_quota_of_pods():
    zone = "europe-west4-a"
    pods = parse_tpu_quota("TPUV3sPodPerProjectPerZoneForTPUAPI", zone, 64)
    devices = parse_tpu_quota("TPUV3sPerProjectPerZoneForTPUAPI", zone, 16)
    nodes = [
        a_node(name=name, zone=zone, accelerator_type=name, tier=Tier.ON_DEMAND) for name in ("v3-8", "v3-32")
    ]
    held = find_holdings(CATALOG, nodes, [])
    assert (units_used(held, devices), units_used(held, pods)) == (8, 32)


def test_small_slices_of_v5e_draw_on_the_quota_for_serving_and_no_others_do():
    zone = "us-west4-a"
    training = parse_tpu_quota("TPUV5sLitepodPerProjectPerZoneForTPUAPI", zone, 16)
    serving = parse_tpu_quota("TPUV5sLitepodServingPerProjectPerZoneForTPUAPI", zone, 4)
    nodes = [
        a_node(name=name, zone=zone, accelerator_type=name, tier=Tier.ON_DEMAND)
        for name in ("v5litepod-4", "v5litepod-8", "v5litepod-16")
    ]
    held = find_holdings(CATALOG, nodes, [])
    assert (units_used(held, serving), units_used(held, training)) == (12, 16)
    drawn = {
        units: find_tpu_quotas((training, serving), zone, "v5e", Tier.ON_DEMAND, units) for units in (1, 8, 16)
    }
    assert drawn == {1: (serving,), 8: (serving,), 16: (training,)}


def test_something_of_unknown_size_makes_use_unknown():
    spot = parse_tpu_quota(V4_SPOT, "us-central2-b", 64)
    held = find_holdings(CATALOG, [a_node(accelerator_type="v99-8")], [])
    assert units_used(held, spot) is None


@pytest.mark.parametrize(
    ("tier", "preemptible"),
    [
        (Tier.SPOT, True),
        (Tier.PREEMPTIBLE, True),
        (Tier.FLEX_START, True),
        (Tier.ON_DEMAND, False),
        (Tier.RESERVED, False),
    ],
)
def test_each_tier_draws_on_one_kind_of_quota(tier, preemptible):
    quotas = [
        parse_tpu_quota(V4_SPOT, "us-central2-b", 8),
        parse_tpu_quota("TPUV4sPodPerProjectPerZoneForTPUAPI", "us-central2-b", 8),
    ]
    assert [quota.preemptible for quota in quotas if quota.covers("v4", tier)] == [preemptible]


def test_a_slice_draws_on_zone_and_region_of_its_tier():
    quotas = [
        parse_tpu_quota(V4_SPOT, "us-central2-b", 1),
        parse_tpu_quota(V4_SPOT, "us-east1-d", 2),
        parse_tpu_quota("TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI", REGION, 3),
        parse_tpu_quota("TPUV4sPodPerProjectPerZoneForTPUAPI", "us-central2-b", 4),
    ]
    found = find_tpu_quotas(quotas, "us-central2-b", "v4", Tier.PREEMPTIBLE, 16)
    assert [quota.limit for quota in found] == [1, 3]


FAMILY = parse_family_quota(
    "TPUS-PER-TPU-FAMILY-per-project-region", "us-east5", 16, "CT6E", CATALOG.of_machines("CT6E")
)
SPOT_V6E = parse_tpu_quota("PREEMPTIBLE-TPU-V6E-per-project-zone", "us-east5-a", 8)
SPOT_V6E_REGION = parse_tpu_quota("PREEMPTIBLE-TPU-V6E-per-project-region", "us-east5", 8)
V5P = parse_tpu_quota("TPU-V5P-per-project-region", "us-east5", 32)
TPU7X = parse_family_quota(
    "TPUS-PER-TPU-FAMILY-per-project-region", "us-central1", 8, "tpu7x", CATALOG.of_machines("tpu7x")
)
OF_TPU_API = parse_tpu_quota("TPUV6EPerProjectPerRegionForTPUAPI", "us-east5", 64)
POOLS = (FAMILY, SPOT_V6E, SPOT_V6E_REGION, V5P, TPU7X, OF_TPU_API)
NONE_SPOT = replace(SPOT_V6E, limit=0)


@pytest.mark.parametrize(
    ("generation", "tier", "api", "quotas", "drawn"),
    [
        ("v6e", Tier.ON_DEMAND, Api.COMPUTE, POOLS, (FAMILY,)),
        ("v6e", Tier.RESERVED, Api.COMPUTE, POOLS, (FAMILY,)),
        ("v6e", Tier.ON_DEMAND, Api.TPU, POOLS, (OF_TPU_API,)),
        ("v6e", Tier.SPOT, Api.COMPUTE, POOLS, (SPOT_V6E, SPOT_V6E_REGION)),
        ("v6e", Tier.SPOT, Api.TPU, POOLS, ()),
        ("v6e", Tier.FLEX_START, Api.COMPUTE, POOLS, (SPOT_V6E, SPOT_V6E_REGION)),
        ("v6e", Tier.FLEX_START, Api.COMPUTE, (FAMILY, NONE_SPOT), (FAMILY,)),
        ("v6e", Tier.SPOT, Api.COMPUTE, (FAMILY, NONE_SPOT), (NONE_SPOT,)),
        ("v5p", Tier.ON_DEMAND, Api.COMPUTE, POOLS, (V5P,)),
    ],
)
def test_each_api_draws_on_pools_of_its_own(generation, tier, api, quotas, drawn):
    assert find_tpu_quotas(quotas, "us-east5-a", generation, tier, 8, api) == drawn


def test_compute_engine_counts_chips_of_instances_and_of_nothing_else():
    machines = {"zone": "us-east5-a", "tier": Tier.ON_DEMAND, "api": Api.COMPUTE, "kind": ResourceKind.GROUP}
    nodes = [
        a_node(name="a", accelerator_type="v6e-8", **machines),
        a_node(name="b", accelerator_type="v5p-16", **machines),
        a_node(name="c", accelerator_type="v6e-8", state=NodeState.STOPPED, **machines),
        a_node(name="d", accelerator_type="v6e-8", state=NodeState.HALF_MADE, **machines),
        a_node(name="e", accelerator_type="v6e-16", zone="us-east5-a", tier=Tier.ON_DEMAND),
    ]
    held = find_holdings(CATALOG, nodes, [])
    assert [units_used(held, quota) for quota in (FAMILY, V5P, OF_TPU_API, SPOT_V6E)] == [8, 8, 16, 0]
    strange = a_node(accelerator_type="ct9x-standard-4t", **machines)
    assert units_used(find_holdings(CATALOG, [*nodes, strange], []), FAMILY) is None
    assert units_used(find_holdings(CATALOG, [*nodes, strange], []), OF_TPU_API) == 16


@pytest.mark.parametrize(
    ("quota", "said"),
    [
        (FAMILY, "--service=compute.googleapis.com --quota-id=TPUS-PER-TPU-FAMILY-per-project-region "),
        (FAMILY, "--preferred-value=24 --dimensions=region=us-east5,tpu_family=CT6E "),
        (
            SPOT_V6E,
            "--quota-id=PREEMPTIBLE-TPU-V6E-per-project-zone --preferred-value=24 --dimensions=zone=us-",
        ),
        (OF_TPU_API, "--service=tpu.googleapis.com --quota-id=TPUV6EPerProjectPerRegionForTPUAPI "),
    ],
)
def test_more_of_a_pool_is_asked_for_at_its_own_service(quota, said):
    assert said in ask_for_tpus("p-roject", quota, 24)


@pytest.mark.parametrize(
    ("labels", "ours", "said"),
    [
        (LABELS, {"big"}, "tpuctl watch once"),
        (
            LABELS,
            set(),
            "queued-resources delete --force big-1 --zone us-central2-b --project p-roject --quiet",
        ),
        ({USER_LABEL: "bob"}, {"big"}, "queued-resources delete --force big-1"),
    ],
)
def test_dead_requests_name_the_command_that_collects_them(labels, ours, said):
    held = find_holdings(CATALOG, [], [a_queued(state=QueuedState.FAILED, labels=labels)])
    assert said in (collect_command(held[0], frozenset(ours), "p-roject") or "")


def test_nothing_collects_what_lives():
    held = find_holdings(CATALOG, [a_node()], [a_queued(name="w", state=QueuedState.WAITING_FOR_RESOURCES)])
    assert [collect_command(each, frozenset({"big"}), "p-roject") for each in held] == [None, None]


def shortages(quotas, **need):
    values = {"hosts": 4, "external_ips": True, **need}
    return [(each.quota.metric, each.certain) for each in find_shortages(quotas, "p-roject", **values)]


@pytest.mark.parametrize(
    ("quota", "need", "found"),
    [
        (ComputeQuota(ADDRESSES, 8, 4, REGION), {}, []),
        (ComputeQuota(ADDRESSES, 8, 5, REGION), {}, [(ADDRESSES, True)]),
        (ComputeQuota(ADDRESSES, 8, 9, REGION), {"hosts": 1}, [(ADDRESSES, True)]),
        (ComputeQuota(ADDRESSES, 0, 0, REGION), {"external_ips": False}, []),
        (ComputeQuota(INSTANCES, 3, 0, REGION), {}, [(INSTANCES, False)]),
        (ComputeQuota(HEALTH_CHECKS, 75, 75), {}, [(HEALTH_CHECKS, True)]),
        (ComputeQuota(HEALTH_CHECKS, 75, 74), {}, [(HEALTH_CHECKS, False)]),
        (ComputeQuota(HEALTH_CHECKS, 75, 70), {"nodes": 2}, []),
        (ComputeQuota(HEALTH_CHECKS, 75, 72), {"nodes": 2}, [(HEALTH_CHECKS, False)]),
        (ComputeQuota("CPUS", 0, 0, REGION), {}, []),
    ],
)
def test_only_what_the_api_surely_refuses_is_certain(quota, need, found):
    assert shortages([quota], **need) == found


def test_both_ways_out_of_an_address_shortage_are_said():
    found = find_shortages([ComputeQuota(ADDRESSES, 8, 6, REGION)], "p-roject", hosts=4, external_ips=True)
    ask, internal = found[0].ways_out
    assert "--quota-id=IN-USE-ADDRESSES-per-project-region --preferred-value=10" in ask
    assert "--dimensions=region=us-central2 --project=p-roject" in ask
    assert "--internal-ips" in internal
    assert "Cloud NAT" in internal
