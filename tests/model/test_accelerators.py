from __future__ import annotations

import pytest

from tpuctl.errors import UsageError
from tpuctl.model.shipped_files import load_accelerators

CATALOG = load_accelerators()


@pytest.mark.parametrize(
    ("name", "chips", "hosts"),
    [
        ("v6e-16", 16, 4),
        ("v5litepod-16", 16, 4),
        ("v5p-16", 8, 2),
        ("v6e-8", 8, 1),
        ("v5litepod-8", 8, 1),
        ("v4-8", 4, 1),
        ("v4-256", 128, 32),
        ("v3-32", 16, 4),
    ],
)
def test_chips_and_hosts_come_from_the_table(name, chips, hosts):
    found = CATALOG.get(name)
    assert (found.chips, found.hosts) == (chips, hosts)


@pytest.mark.parametrize("found", CATALOG.types.values(), ids=lambda found: found.name)
def test_every_row_agrees_with_itself(found):
    dimensions = [int(part) for part in found.topology.split("x")]
    product = 1
    for dimension in dimensions:
        product *= dimension
    assert product == found.chips == found.hosts * found.chips_per_host
    assert found.zones
    number = int(found.name.rpartition("-")[2])
    assert number in (found.chips, found.cores)
    if found.in_tpu_api:
        assert found.runtime_version
        assert found.config_type


def test_v5p_has_its_94_sizes():
    assert sum(found.generation == "v5p" for found in CATALOG.types.values()) == 94


@pytest.mark.parametrize("alias", ["v5e-16", "v5lite-16", "V5LITEPOD-16", " v5litepod-16 "])
def test_aliases_mean_the_api_name(alias):
    assert CATALOG.get(alias).name == "v5litepod-16"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("v4-48", "v4-32 or v4-64"),
        ("v5e-7", "v5litepod-4 or v5litepod-8"),
        ("v6e-2", "v6e-1 or v6e-4"),
        ("v4-1", "v4-8"),
        ("v4-99999", "v4-4096"),
        ("v44-32", "v4-32"),
        ("v4_32", "v4-32"),
    ],
)
def test_an_unknown_type_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(UsageError) as caught:
        CATALOG.get(name)
    assert repr(name) in caught.value.message
    assert f"did you mean {nearest}" in caught.value.message
    assert caught.value.hint == "tpuctl types"


@pytest.mark.parametrize("name", ["", "-", "-8", "nothing at all", "v4-", "v4-٣٢"])
def test_nonsense_is_refused(name):
    with pytest.raises(UsageError):
        CATALOG.get(name)


def test_tpu7x_is_refused_with_the_reason():
    with pytest.raises(UsageError, match="Compute Engine"):
        CATALOG.get("tpu7x-32")


def test_a_zone_without_the_type_is_refused_with_those_that_have_it():
    with pytest.raises(UsageError) as caught:
        CATALOG.check_zone(CATALOG.get("v4-32"), "us-east1-d")
    assert "us-central2-b" in caught.value.message
    assert caught.value.hint == "--zone us-central2-b"


@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("v4-32", "us-central2-b"),
        ("v3-32", "us-east1-d"),
        ("v6e-8", "us-south1-ai1b"),
        ("v5litepod-4", "us-east5-b"),
    ],
)
def test_documented_hidden_and_listed_zones_are_accepted(name, zone):
    CATALOG.check_zone(CATALOG.get(name), zone)


def test_a_size_may_be_missing_where_its_generation_is_not():
    with pytest.raises(UsageError):
        CATALOG.check_zone(CATALOG.get("v3-32"), "us-central1-a")


def test_zones_hold_no_zone_of_compute_engine_only_types():
    assert "us-central2-b" in CATALOG.zones()
    assert "us-central1-ai1a" not in CATALOG.zones()
