"""What options of slices come to on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kube.jobs import a_job
from tests.support.memory.services import MemoryPlace
from tpuctl.errors import UsageError
from tpuctl.kube.jobset import RUN_LABEL, jobset
from tpuctl.kube.render import head_of
from tpuctl.kube.target import check_capacity, resolve_target
from tpuctl.model.hosts import Tier
from tpuctl.model.requests import ClusterRequest
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.provenance.manifest import SliceSection


@pytest.fixture
def services() -> Iterator[Any]:
    place = MemoryPlace()
    yield place.machine()
    place.close()


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"label": {"tpuctl/run": "other"}}, "label", "lower-case letters, digits, - and _"),
        ({"label": {"tpuctl-owner": "me"}}, "label", "are set by tpuctl"),
        ({"label": {"token": "ghp_" + "a1B2" * 9}}, "label", "--label"),
        ({"reservation": "ours"}, "reservation", "--reservation needs --reserved"),
        ({"reservation": "ours", "tier": Tier.SPOT}, "reservation", "--reservation needs --reserved"),
        ({"run_duration": "4h"}, "run_duration", "--run-duration needs --flex-start"),
    ],
)
def test_what_slices_refuse_clusters_refuse_too(
    services: Any, given: dict[str, Any], field: str, message: str
) -> None:
    wanted = SliceRequest(accelerator="v6e-16", **given)
    with pytest.raises(UsageError, match=message) as refused:
        resolve_target(services, wanted, ClusterRequest(), "train", "default")
    assert (refused.value.details or {}).get("key") == field


ON_CLUSTERS = {
    "accelerator", "zone", "tier", "run_duration", "topology", "slices", "label", "disk", "mount", "env",
    "reservation",
    "pay",  # agrees to what may cost: nothing is made that does
}  # fmt: skip


@pytest.mark.parametrize("name", SliceRequest.__struct_fields__)
def test_every_option_of_slices_has_a_meaning_on_clusters_or_is_refused(name: str) -> None:
    wanted = replace(SliceRequest(), **{name: object()})
    if name in ON_CLUSTERS:
        check_capacity(wanted)
    else:
        with pytest.raises(UsageError, match="node pools of a cluster"):
            check_capacity(wanted)


def test_a_topology_alone_is_of_the_generation_that_the_slice_had(services: Any) -> None:
    was = SliceSection("big", accelerator_type="v6e-16", topology="4x4")
    found = resolve_target(services, SliceRequest(topology="8x8"), ClusterRequest(), "train", "default", was)
    assert (found.shape.name, found.shape.topology) == ("v6e-8x8", "8x8")
    found = resolve_target(services, SliceRequest(), ClusterRequest(), "train", "default", was)
    assert found.shape.topology == "4x4"


def test_labels_of_tpuctl_are_its_own() -> None:
    labels = jobset(a_job(labels={RUN_LABEL: "other", "team": "vision"}))["metadata"]["labels"]
    assert (labels[RUN_LABEL], labels["team"]) == ("train", "vision")


def test_a_file_with_spaces_is_quoted_where_it_is_to_be_typed() -> None:
    assert "kubectl apply -f 'my runs/a.yaml'" in head_of(a_job(), "my runs/a.yaml")
