"""Groups of instances in the simulated Compute Engine, and what they are made from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.test_compute import Lab

ZONE, REGION = "us-east5-a", "us-east5"
POLICIES, TEMPLATES = f"/regions/{REGION}/resourcePolicies", f"/regions/{REGION}/instanceTemplates"
RESERVATIONS = f"/zones/{ZONE}/reservations"
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"


def properties(**fields: Any) -> dict[str, Any]:
    """Of a machine with four chips of v6e."""
    boot = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "100"}}
    found = {
        "machineType": "ct6e-standard-4t",
        "disks": [boot],
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{}]}],
        "scheduling": {"onHostMaintenance": "TERMINATE"},
        **fields,
    }
    return {key: value for key, value in found.items() if value is not None}


def policy(**fields: Any) -> dict[str, Any]:
    return {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4", **fields}


@pytest.fixture
def lab() -> Lab:
    return Lab(compute_operation=0.0)


def test_a_policy_a_template_and_a_reservation_are_made_shown_and_deleted(lab: Lab) -> None:
    specific = {"count": "2", "instanceProperties": {"machineType": "ct6e-standard-4t"}}
    made = {
        POLICIES: {"workloadPolicy": policy(acceleratorTopologyMode="AUTO_CONNECT")},
        TEMPLATES: {"properties": properties()},
        "/global/instanceTemplates": {"properties": properties()},
        RESERVATIONS: {"specificReservation": specific, "specificReservationRequired": True},
    }
    for place, body in made.items():
        status, begun = lab.call("POST", place, {"name": "a", "description": "mine", **body})
        assert status == 200, begun
        assert lab.names(place) == ["a"]
        assert lab.get(f"{place}/a")["description"] == "mine"
    assert lab.get(f"{POLICIES}/a")["workloadPolicy"]["acceleratorTopology"] == "4x4"
    assert lab.world.steering.reservations()[0]["chips"] == 8
    assert lab.get("/aggregated/instanceTemplates")["items"].keys() >= {"global", f"regions/{REGION}"}
    for place in made:
        assert lab.call("DELETE", f"{place}/a")[0] == 200
        assert lab.names(place) == []
    assert lab.world.steering.reservations() == []


def test_a_template_shows_what_its_instances_get(lab: Lab) -> None:
    spot = {"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}
    metadata = {"items": [{"key": "a", "value": "b"}]}
    body = {"name": "t", "properties": properties(scheduling=spot, metadata=metadata)}
    assert lab.call("POST", TEMPLATES, body)[1]["operationType"] == "compute.instanceTemplates.insert"
    shown = lab.get(f"{TEMPLATES}/t")["properties"]
    assert shown["scheduling"] == {
        **spot,
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        "preemptible": True,
    }
    assert (shown["disks"][0]["deviceName"], shown["networkInterfaces"][0]["name"]) == (
        "persistent-disk-0",
        "nic0",
    )
    assert shown["metadata"]["items"] == metadata["items"]


def test_the_newest_image_of_a_family_is_found(lab: Lab) -> None:
    newest = lab.api._state.find_image(IMAGE)
    assert newest is not None
    assert newest["name"].endswith("-v20260716")
    assert lab.api._state.find_image(f"https://www.googleapis.com/compute/v1/{IMAGE[:-1]}x") is None
    lab.disk("d")
    for name in ("i1", "i2"):
        source = "zones/us-central2-b/disks/d"
        lab.call("POST", "/global/images", {"name": name, "family": "f", "sourceDisk": source})
        lab.clock.advance(100)
    assert lab.get("/global/images/family/f")["name"] == "i2"
    assert lab.call("GET", "/global/images/family/none")[0] == 404


def test_machine_types_say_their_chips(lab: Lab) -> None:
    found = lab.get("/zones/us-central1-c/machineTypes/tpu7x-standard-4t")
    assert found["accelerators"] == [{"guestAcceleratorType": "tpu7x", "guestAcceleratorCount": 4}]


BAD = [
    (POLICIES, {"workloadPolicy": {}}, "workloadPolicy.type"),
    (
        POLICIES,
        {"workloadPolicy": {"type": "HIGH_AVAILABILITY", "acceleratorTopology": "4x4"}},
        "HIGH_THROUGHPUT",
    ),
    (POLICIES, {"workloadPolicy": policy(acceleratorTopology="4by4")}, "acceleratorTopology'"),
    (POLICIES, {"workloadPolicy": policy(maxTopologyDistance="BLOCK")}, "maxTopologyDistance"),
    (POLICIES, {"workloadPolicy": policy(), "region": "us-east1"}, "The region must be"),
    (POLICIES, {"groupPlacementPolicy": {}}, "does not implement"),
    (TEMPLATES, {}, "properties of a template"),
    (TEMPLATES, {"properties": properties(machineType="zones/z/machineTypes/m")}, "name of a machine type"),
    (TEMPLATES, {"properties": properties(disks=None)}, "boot disk"),
    (TEMPLATES, {"properties": properties(networkInterfaces=None)}, "network interface"),
    (TEMPLATES, {"properties": properties(networkInterfaces=[{}])}, "network or a subnetwork"),
    (TEMPLATES, {"properties": properties(guestAccelerators=[{}])}, "does not implement"),
    (
        TEMPLATES,
        {
            "properties": properties(
                disks=[{"boot": True, "initializeParams": {"sourceImage": "global/images/x"}}]
            )
        },
        "image resource cannot be found",
    ),
    (RESERVATIONS, {}, "Either a specific or an aggregate"),
    (RESERVATIONS, {"aggregateReservation": {"vmFamily": "VM_FAMILY_CLOUD_TPU_DEVICE_CT3"}}, "not a family"),
    (RESERVATIONS, {"specificReservation": {"count": "2", "instanceProperties": {}}}, "does not implement"),
]


@pytest.mark.parametrize(("place", "body", "said"), BAD)
def test_what_cannot_be_is_refused_and_nothing_is_made(lab: Lab, place: str, body: Any, said: str) -> None:
    status, answer = lab.call("POST", place, {"name": "a", **body})
    assert status in (400, 412)
    assert said in answer["error"]["message"]
    assert lab.names(place) == []
