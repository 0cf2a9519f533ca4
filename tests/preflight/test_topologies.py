from __future__ import annotations

import pytest

from tpuctl.errors import UsageError
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.preflight.topologies import HOST_BOUNDS, find_topology, mesh_for, parse_mesh

CATALOG = load_accelerators()


@pytest.mark.parametrize(
    ("name", "topology", "bounds", "devices", "config"),
    [
        ("v4-8", "v4:2x2x1", [2, 2, 1], 4, "megacore"),
        ("v4-32", "v4:2x2x4", [2, 2, 1], 16, "megacore"),
        ("v5e-8", "v5e:2x4", [2, 4, 1], 8, None),
        ("v5p-8", "v5p:2x2x1", [2, 2, 1], 4, None),
        ("v6e-1", "v6e:1x1", [1, 1, 1], 1, None),
        ("v6e-16", "v6e:4x4", [2, 2, 1], 16, None),
        ("tpu7x-8", "tpu7x:2x2x1", [2, 2, 1], 8, None),
    ],
)
def test_what_the_compiler_is_told(name, topology, bounds, devices, config):
    found = find_topology(CATALOG, name)
    assert found.arguments["topology_name"] == topology
    assert found.arguments["chips_per_host_bounds"] == bounds
    assert found.arguments.get("chip_config_name") == config
    assert found.devices == devices


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("v6e-256", [True, True, False]),
        ("v6e-128", [False, True, False]),
        ("v6e-16", [False] * 3),
        ("v4-128", [True] * 3),
        ("v4-32", [False] * 3),
    ],
)
def test_axes_close_to_rings_where_the_pod_does(name, wrap):
    assert find_topology(CATALOG, name).arguments["wrap"] == wrap


def test_every_type_that_can_be_compiled_for_has_host_bounds():
    for found in CATALOG.types.values():
        if CATALOG.generations[found.generation].aot is not None:
            x, y, z = HOST_BOUNDS[found.chips_per_host]
            assert x * y * z == found.chips_per_host


def test_a_generation_without_a_compiler_is_refused():
    with pytest.raises(UsageError, match="nothing can be compiled for v2"):
        find_topology(CATALOG, "v2-8")


@pytest.mark.parametrize(
    ("words", "mesh"),
    [
        ("data=4,model=2", {"data": 4, "model": 2}),
        ("data=*,model=2", {"data": 4, "model": 2}),
        ("", {"data": 8}),
    ],
)
def test_a_mesh_takes_all_devices(words, mesh):
    axes = parse_mesh(words) if words else {}
    assert mesh_for(axes, find_topology(CATALOG, "v6e-8")) == mesh


@pytest.mark.parametrize(
    "words", ["data", "data=0", "data=*,model=*", "data=2,data=2", "=4", "DATA=4", "", "data=4,"]
)
def test_a_mesh_that_is_none_is_refused(words):
    with pytest.raises(UsageError, match="is no axis"):
        parse_mesh(words)


@pytest.mark.parametrize("words", ["data=3", "data=*,model=3", "data=16"])
def test_a_mesh_of_another_size_is_refused(words):
    with pytest.raises(UsageError, match="does not divide the 8 devices of v6e-8"):
        mesh_for(parse_mesh(words), find_topology(CATALOG, "v6e-8"))
