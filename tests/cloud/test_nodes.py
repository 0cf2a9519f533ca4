"""What a node shows of what it was asked for: the other way round of a create."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from tests.support.builders import a_spec
from tpuctl.cloud.nodes import parse_node
from tpuctl.cloud.requests import create_node
from tpuctl.model.cloud import NodeInfo
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceOptions, SliceSpec
from tpuctl.sim.world.node_form import fill_node
from tpuctl.sim.world.paths import ResourcePath
from tpuctl.slices.adopt import AdoptCandidate

SAID = SliceOptions(
    network="training",
    subnetwork="inner",
    service_account="trainer@my-project.iam.gserviceaccount.com",
    metadata={"team": "vision"},
    description="Ablation",
)
NOT_SHOWN = {"race", "reservation"}
"""By a node: its queued resource shows the one, and the other is of no single place."""
PATH = ResourcePath("my-project", "us-central2-b", "nodes", "big-1")


def shown(spec: SliceSpec, **more: Any) -> NodeInfo:
    """The node that Google's service makes of it, as far as the simulator knows."""
    _, body = create_node(PATH.location, "big-1", spec)
    return parse_node({"name": PATH.name, **fill_node({**body, **more}, PATH)})


def test_every_option_comes_back_from_the_node_as_it_was_said():
    assert {name for name, value in asdict(SAID).items() if not value} == NOT_SHOWN, "say the new option, too"
    spec = replace(a_spec(), **asdict(SAID), tags=("a", "b"), labels={"team": "a"})
    node = shown(spec)
    assert node.options == SAID
    assert (node.tags, node.labels, node.unsaid) == (spec.tags, spec.labels, ())


def test_what_nobody_said_comes_back_as_nothing():
    assert shown(a_spec()).options == SliceOptions()


def test_names_of_another_project_stay_whole():
    full = "projects/host-project/global/networks/default"
    assert shown(replace(a_spec(), network=full)).options.network == full


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"shieldedInstanceConfig": {"enableSecureBoot": True}}, "shieldedInstanceConfig.enableSecureBoot"),
        ({"networkConfig": {"canIpForward": True}}, "networkConfig.canIpForward"),
        ({"networkConfigs": [{"network": "a"}, {"network": "b"}]}, "networkConfigs"),
        ({"serviceAccount": {"scope": ["https://www.googleapis.com/auth/compute"]}}, "serviceAccount.scope"),
    ],
)
def test_what_no_slice_can_ask_for_is_named(more: dict[str, Any], field: str):
    assert shown(a_spec(), **more).unsaid == (field,)


def test_an_adopted_slice_is_asked_for_as_its_node_was_without_what_is_ours_or_secret():
    metadata = {"team": "vision", "ssh-keys": "ada:k", "enable-oslogin": "FALSE", "startup-script": "#!/bin/sh"}
    metadata["hf_token"] = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
    labels = {"team": "a", "tpuctl-slice": "big"}
    node = shown(replace(a_spec(), **asdict(replace(SAID, metadata=metadata)), tags=("a",), labels=labels))
    found = AdoptCandidate("big", node, None, 1)
    spec = found.spec(load_accelerators(), "ada")
    kept = {name: getattr(spec, name) for name in SliceOptions.__struct_fields__}
    assert (SliceOptions(**kept), spec.tags, spec.labels) == (SAID, ("a",), {"team": "a"})
    assert spec.startup_script is not None
    assert found.not_kept == ("metadata: hf_token",)
