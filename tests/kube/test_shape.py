"""Which node pool a slice is, and how many chips each pod asks for."""

from __future__ import annotations

import pytest

from tpuctl.errors import UsageError
from tpuctl.kube.shape import Shape, resolve_shape
from tpuctl.model.shipped_files import load_accelerators, load_gke_table


def shape_of(accelerator: str, topology: str | None = None, machine_type: str | None = None) -> Shape:
    return resolve_shape(load_gke_table(), load_accelerators(), accelerator, topology, machine_type)


@pytest.mark.parametrize(
    ("asked", "label", "topology", "machine", "pods", "chips", "containers"),
    [
        (("v4-8",), "tpu-v4-podslice", "2x2x1", "ct4p-hightpu-4t", 1, 4, 1),
        (("v4-32",), "tpu-v4-podslice", "2x2x4", "ct4p-hightpu-4t", 4, 4, 1),
        (("v4", "12x4x4"), "tpu-v4-podslice", "12x4x4", "ct4p-hightpu-4t", 48, 4, 1),
        (("v5e-1",), "tpu-v5-lite-podslice", "1x1", "ct5lp-hightpu-1t", 1, 1, 1),
        (("v5e-8",), "tpu-v5-lite-podslice", "2x4", "ct5lp-hightpu-8t", 1, 8, 1),
        (("v5e", "2x4", "ct5lp-hightpu-4t"), "tpu-v5-lite-podslice", "2x4", "ct5lp-hightpu-4t", 2, 4, 1),
        (("v5p-128",), "tpu-v5p-slice", "4x4x4", "ct5p-hightpu-4t", 16, 4, 1),
        (("v6e-8",), "tpu-v6e-slice", "2x4", "ct6e-standard-8t", 1, 8, 1),
        (("v6e-16",), "tpu-v6e-slice", "4x4", "ct6e-standard-4t", 4, 4, 1),
        (("tpu7x-32",), "tpu7x", "2x2x4", "tpu7x-standard-4t", 4, 4, 2),
        (("7x", "2x2x4", "tpu7x-ultranet-4t"), "tpu7x", "2x2x4", "tpu7x-ultranet-4t", 4, 4, 2),
        (("7x", "1x1x1"), "tpu7x", "1x1x1", "tpu7x-standard-1t", 1, 1, 1),
    ],
)
def test_the_node_pool_of_a_slice(asked, label, topology, machine, pods, chips, containers):
    found = shape_of(*asked)
    assert (found.accelerator, found.topology, found.machine_type) == (label, topology, machine)
    assert (found.hosts, found.chips_per_host, found.containers) == (pods, chips, containers)


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        (("v6e-17",), "did you mean v6e-16 or v6e-32?", "tpuctl types"),
        (("v9",), "there is no accelerator type 'v9'", "tpuctl types"),
        (("v3-8",), "GKE has no node pools of v3", "v4, v5e, v5p, v6e, tpu7x"),
        (("v6e", "3x3"), "no node pool of v6e has the topology 3x3", "1x1, 2x2, 2x4"),
        (("v6e", "4x4x4"), "no node pool of v6e has the topology 4x4x4", "16x16"),
        (("v5p", "8x4x4"), "no node pool of v5p has the topology 8x4x4", "up to 140 cubes"),
        (("v4", "16x16x20"), "no node pool of v4 has the topology 16x16x20", "up to 64 cubes"),
        (("v4", "4x4x0"), "no node pool of v4 has the topology 4x4x0", "cubes"),
        (("v4", "4x4x-4"), "no node pool of v4 has the topology 4x4x-4", "cubes"),
        (("v6e", "4x4", "ct6e-standard-8t"), "machines of type 'ct6e-standard-8t'", "one of ct6e-standard-4t"),
        (
            ("v5p-128", None, "ct6e-standard-4t"),
            "no node pool of v5p with the topology 4x4x4",
            "ct5p-hightpu-4t",
        ),
    ],
)
def test_a_slice_that_no_node_pool_has_is_refused(asked, message, hint):
    with pytest.raises(UsageError) as refused:
        shape_of(*asked)
    assert message in refused.value.message
    assert hint in str(refused.value.hint)


def test_every_type_of_a_generation_on_gke_has_as_many_chips_there():
    """But shapes of which one host would have other machines: the two tables come from different sources."""
    catalog, table = load_accelerators(), load_gke_table()
    of_gke = [each for each in catalog.types.values() if each.generation in table["generations"]]
    assert len(of_gke) > 100
    for each in of_gke:
        found = shape_of(each.name)
        assert (found.chips, found.hosts, found.topology) == (each.chips, each.hosts, each.topology)
