from __future__ import annotations

import pytest

from tpuctl.model.cloud import CloudResource, ResourceKind, Tier
from tpuctl.model.prices import HOURS_PER_MONTH, price_per_hour
from tpuctl.model.shipped_files import load_accelerators, load_other_prices

CATALOG = load_accelerators()


@pytest.mark.parametrize(
    ("name", "zone", "tier", "price"),
    [
        ("v4-8", "us-central2-b", Tier.ON_DEMAND, 12.88),
        ("v4-8", "us-central2-b", Tier.SPOT, 3.864),
        ("v4-8", "us-central2-b", Tier.PREEMPTIBLE, 3.864),
        ("v6e-16", "us-east1-d", Tier.SPOT, 8.704),
        ("v6e-16", "us-south1-ai1b", Tier.SPOT, 21.6),
    ],
)
def test_a_slice_costs_its_chips(name, zone, tier, price):
    assert price_per_hour(CATALOG, CATALOG.get(name), zone, tier) == pytest.approx(price)


@pytest.mark.parametrize(
    ("name", "zone", "tier"),
    [
        ("v4-8", "us-central2-b", Tier.RESERVED),
        ("v2-8", "us-central1-b", Tier.SPOT),
        ("v6e-8", "southamerica-west1-a", Tier.SPOT),
        ("v4-8", "mars-north1-a", Tier.SPOT),
    ],
)
def test_an_unknown_price_is_none(name, zone, tier):
    assert price_per_hour(CATALOG, CATALOG.get(name), zone, tier) is None


@pytest.mark.parametrize(
    ("throughput", "iops", "month"),
    [(None, None, 6.0), (140, 3000, 6.0), (290, 3000, 15.0), (140, 4000, 12.0), (100, 2000, 6.0)],
)
def test_a_disk_has_one_price_and_what_its_type_includes_is_free(throughput, iops, month):
    prices = load_other_prices()
    asset = CloudResource(
        ResourceKind.DISK,
        "d",
        "us-east5-b",
        "hyperdisk-balanced",
        size_gib=100.0,
        throughput_mib_s=throughput,
        iops=iops,
    )
    assert prices.disk_month("hyperdisk-balanced", 100, throughput, iops) == pytest.approx(month)
    assert prices.per_hour(asset) == pytest.approx(month / HOURS_PER_MONTH)
