"""What runs on clusters cost by the list, where the region of the cluster is known."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, an_attempt
from tests.support.kube_objects import a_cluster_run
from tpuctl.kube.capacity import REGION, region_of_cluster
from tpuctl.model.attempts import AttemptPhase, TimelineEntry
from tpuctl.model.clusters import ClusterPlace
from tpuctl.model.hosts import Tier
from tpuctl.model.records import RunState
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


def test_a_run_is_in_the_bill_while_it_holds_chips_with_when_that_was_seen():
    here = a_cluster_run(generation="v6e", region="us-east5")
    begun = an_attempt(provisioned_at=1900.0, timeline=(TimelineEntry(1960.0, "running"),))
    run = a_run(id="r1", attempt=begun, cluster=here, state=RunState.RUNNING)
    ended = replace(begun, state=AttemptPhase.ENDED)
    waits = [
        a_run(id="r2", attempt=None, cluster=here, state=RunState.WAITING),
        a_run(id="r3", attempt=ended, cluster=here, state=RunState.WAITING),
        a_run(id="r4", attempt=begun, cluster=here, state=RunState.STOPPED),
        a_run(id="r5", attempt=begun, state=RunState.RUNNING),
        a_run(id="r6", attempt=replace(begun, provisioned_at=None), cluster=here, state=RunState.PREPARING),
    ]
    [cost] = cluster_costs(CATALOG, [*waits, run])
    assert (cost.run, cost.detail, cost.usd_per_hour) == ("r1", "16 chips of v6e, on-demand", 16 * 2.7)
    assert cost.changed == "1970-01-01T00:32:40Z"
    [unknown] = cluster_costs(CATALOG, [replace(run, cluster=replace(here, generation=""))])
    assert (unknown.detail, unknown.usd_per_hour) == ("16 chips of -, on-demand", None)
