"""What the adapter of Compute Engine's TPUs makes of groups and instances as Google's servers showed them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.recorded.stories import exchange
from tpuctl.cloud.compute_errors import parse_operation
from tpuctl.cloud.group_nodes import GroupParts, parse_parts
from tpuctl.cloud.instances import parse_instance
from tpuctl.model.cloud import NodeState, ResourceKind, Tier
from tpuctl.model.shipped_files import load_accelerators

ZONE = "us-central1-a"


def body(name: str) -> Any:
    found = exchange(name).body
    assert found is not None
    return found


def test_a_group_that_is_being_made_is_a_node_on_its_way():
    found = parse_parts(GroupParts("group-x1y2z3", ZONE, body("compute/group:get")), load_accelerators())
    assert (found.state, found.kind, found.uid) == (
        NodeState.CREATING,
        ResourceKind.GROUP,
        "7654321098765432109",
    )
    assert (found.labels, found.endpoints, found.error) == ({}, (), None)


def test_an_instance_that_was_stopped_is_read_whole():
    listed = body("compute/aggregated_instances:list")["items"][f"zones/{ZONE}"]["instances"]
    found = parse_instance(listed[0])
    assert (found.name, found.zone, found.uid) == ("test-ingwar", ZONE, "3532009896116593480")
    assert (found.status, found.machine_type, found.tier) == ("TERMINATED", "n1-standard-1", Tier.ON_DEMAND)
    assert (found.endpoint.internal_ip, found.endpoint.external_ip, found.disks) == ("10.128.0.4", None, ())
    assert (found.labels["os"], found.label_fingerprint) == ("linux", "Vo5Kpyl1teY=")
    assert (found.metadata, found.metadata_fingerprint, found.group) == ({}, "lcaWhYN0zLw=", "")
    assert found.unsaid == ("serviceAccounts.scopes",)
    assert found.options.network is found.options.service_account is None


@pytest.mark.parametrize("label", ["insert", "inserted", "delete", "deleted"])
def test_operations_on_a_group_are_called_by_their_path(label):
    found = parse_operation(body(f"compute/group:{label}"))
    assert found.name.startswith(f"projects/example-project/zones/{ZONE}/operations/operation-")
    assert (found.done, found.error) == (label.endswith("ed"), None)
