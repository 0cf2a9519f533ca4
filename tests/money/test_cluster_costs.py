"""What runs on clusters cost by the list, where the region of the cluster is known."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, an_attempt
from tests.support.kube_objects import a_cluster_run
from tpuctl.kube.capacity import REGION, region_of_cluster
from tpuctl.model.clusters import ClusterPlace
from tpuctl.model.hosts import Tier
from tpuctl.model.records import AttemptPhase, RunState
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.money.cluster_costs import cluster_costs, cluster_price

CATALOG = load_accelerators()


@pytest.mark.parametrize(
    ("given", "price"),
    [
        ({"generation": "v6e", "region": "us-east5"}, 16 * 2.7),
        ({"generation": "v6e", "region": ""}, None),
        ({"generation": "v6e", "region": "mars-east1"}, None),
        ({"generation": "", "region": "us-east5"}, None),
        ({"generation": "v6e", "region": "us-east5", "tier": Tier.RESERVED}, None),
    ],
)
def test_the_price_is_that_of_its_chips_in_the_region_of_the_cluster(
    given: dict[str, Any], price: float | None
):
    assert cluster_price(CATALOG, a_cluster_run(**given)) == price


@pytest.mark.parametrize(
    ("context", "zones", "labels", "region"),
    [
        ("gke_p_us-east5-b_c", (), [], "us-east5"),
        ("gke_p_us-east5_c", (), [], "us-east5"),
        ("kind", ("us-east5-a", "us-east5-b"), [], "us-east5"),
        ("kind", (), [None, "us-east5"], "us-east5"),
        ("kind", (), [], ""),
    ],
)
def test_what_tells_the_region(context: str, zones: tuple[str, ...], labels: list[str | None], region: str):
    nodes = [{"metadata": {"labels": {REGION: each} if each else {}}} for each in labels]
    assert region_of_cluster(ClusterPlace(context), zones, nodes) == region


def test_a_run_is_in_the_bill_while_it_has_pods():
    here = a_cluster_run(generation="v6e", region="us-east5")
    run = a_run(id="r1", cluster=here, state=RunState.RUNNING)
    ended = replace(an_attempt(), state=AttemptPhase.ENDED)
    waits = [
        a_run(id="r2", attempt=None, cluster=here, state=RunState.WAITING),
        a_run(id="r3", attempt=ended, cluster=here, state=RunState.WAITING),
        a_run(id="r4", cluster=here, state=RunState.STOPPED),
        a_run(id="r5", state=RunState.RUNNING),
    ]
    [cost] = cluster_costs(CATALOG, [*waits, run])
    assert (cost.run, cost.detail, cost.usd_per_hour) == ("r1", "16 chips of v6e, on-demand", 16 * 2.7)
