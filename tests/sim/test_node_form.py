"""What the simulated TPU API fills into nodes and leaves out of them, beyond what the recordings show."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.sim.hosts.backend import HostAddress
from tpuctl.sim.world.iam import PROJECT_NUMBER
from tpuctl.sim.world.node_form import change_node, fill_addresses, fill_node, show_spec
from tpuctl.sim.world.paths import ResourcePath

PATH = ResourcePath("p", "us-central2-b", "nodes", "n")
ADDRESSES = [HostAddress("10.130.0.7", "34.1.2.3", 22, "ssh-ed25519 AAAA")]


def ready(**spec: Any) -> dict[str, Any]:
    node = fill_node({"acceleratorType": "v4-8", "runtimeVersion": "r", **spec}, PATH)
    fill_addresses(node, ADDRESSES)
    return node


def test_a_short_network_name_becomes_a_full_one_and_names_its_subnetwork() -> None:
    shown = ready(networkConfig={"network": "mine"})["networkConfig"]
    assert shown == {
        "network": "projects/p/global/networks/mine",
        "subnetwork": "projects/p/regions/us-central2/subnetworks/mine",
    }
    full = {"network": "projects/host/global/networks/x", "subnetwork": "projects/host/regions/r/subnetworks/y"}
    assert ready(networkConfig=full)["networkConfig"] == full


def test_the_account_that_was_asked_for_keeps_the_usual_scopes() -> None:
    account = ready(serviceAccount={"email": "mine@p.iam.gserviceaccount.com"})["serviceAccount"]
    assert account["email"] == "mine@p.iam.gserviceaccount.com"
    assert len(account["scope"]) == 6
    assert ready(serviceAccount={"scope": ["one"]})["serviceAccount"]["scope"] == ["one"]


def test_external_addresses_come_and_go_with_a_patch_that_touches_nothing_else_of_the_network() -> None:
    node = ready(networkConfig={"enableExternalIps": True})
    assert node["networkEndpoints"][0]["accessConfig"] == {"externalIp": "34.1.2.3"}
    change_node(node, ["networkConfig"], {"networkConfig": {"network": "other"}}, ADDRESSES)
    assert node["networkEndpoints"][0]["accessConfig"] == {}
    assert node["networkConfig"] == ready()["networkConfig"]
    change_node(node, ["networkConfig"], {"networkConfig": {"enableExternalIps": True}}, ADDRESSES)
    assert node["networkEndpoints"][0]["accessConfig"] == {"externalIp": "34.1.2.3"}


@pytest.mark.parametrize("field", ["labels", "metadata", "tags", "description"])
def test_what_a_patch_empties_is_not_shown(field: str) -> None:
    node = ready(**{field: {"k": "v"}})
    change_node(node, [field], {}, ADDRESSES)
    assert field not in node


def test_a_queued_spec_is_shown_as_it_was_sent_with_the_projects_number() -> None:
    queued = ResourcePath("p", "us-central2-b", "queuedResources", "q")
    sent = {
        "acceleratorConfig": {"type": "V4", "topology": "2x2x1"},
        "runtimeVersion": "r",
        "metadata": {"k": "v"},
    }
    shown = show_spec({"nodeId": "n", "parent": PATH.location, "node": sent}, sent, queued)
    assert shown["parent"] == f"projects/{PROJECT_NUMBER}/locations/us-central2-b"
    assert shown["node"]["queuedResource"] == f"{shown['parent']}/queuedResources/q"
    assert "acceleratorType" not in shown["node"]
    assert sent.items() <= shown["node"].items()
    assert shown["node"]["serviceAccount"] == {}
