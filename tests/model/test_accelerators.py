from __future__ import annotations

from math import prod

import pytest

from tpuctl.errors import UsageError
from tpuctl.model.hosts import Api
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


def test_every_row_agrees_with_itself():
    for name, found in CATALOG.types.items():
        product = prod(int(part) for part in found.topology.split("x"))
        assert product == found.chips == found.hosts * found.chips_per_host, name
        assert found.zones, name
        assert int(found.name.rpartition("-")[2]) in (found.chips, found.cores), name
        assert all(found.of_api(api).runtime_version for api in found.apis), name
        assert (Api.COMPUTE in found.apis) == (found.compute is not None), name
        # The discovery document of the TPU API has no type of shape for what it makes for single projects.
        assert (found.config_type is None) == (found.apis[0] is Api.COMPUTE), name


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


@pytest.mark.parametrize(
    ("name", "apis", "machine_type"),
    [
        ("tpu7x-8", (Api.COMPUTE, Api.TPU), "tpu7x-standard-4t"),
        ("7x-16", (Api.COMPUTE, Api.TPU), "tpu7x-standard-4t"),
        ("tpu7x-32", (Api.COMPUTE,), "tpu7x-standard-4t"),
        ("v6e-1", (Api.TPU, Api.COMPUTE), "ct6e-standard-1t"),
        ("v6e-8", (Api.TPU, Api.COMPUTE), "ct6e-standard-8t"),
        ("v6e-16", (Api.TPU, Api.COMPUTE), "ct6e-standard-4t"),
        ("v5p-16", (Api.TPU, Api.COMPUTE), "ct5p-hightpu-4t"),
    ],
)
def test_some_types_are_made_by_compute_engine(name, apis, machine_type):
    found = CATALOG.get(name)
    assert (found.apis, found.compute.machine_type) == (apis, machine_type)
    assert found.of_api(Api.COMPUTE).runtime_version.startswith("ubuntu-accel-")


@pytest.mark.parametrize(
    ("topology", "name"),
    [
        ("2x2x2", "tpu7x-16"),
        ("2x4x4", "tpu7x-64"),
        ("4x4x12", "tpu7x-384"),
        ("16x24x24", "tpu7x-18432"),
        ("2x2x8", None),
        ("8x4x4", None),
        ("16x24x28", None),
    ],
)
def test_tpu7x_has_parts_of_a_cube_and_up_to_144_cubes(topology, name):
    found = CATALOG.shaped(CATALOG.generations["tpu7x"], topology)
    assert (found.name if found else None) == name


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


def test_zones_are_those_of_all_types():
    assert {"us-central2-b", "us-central1-ai1a"} <= set(CATALOG.zones())
