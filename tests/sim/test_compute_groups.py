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
    boot = {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {"sourceImage": IMAGE, "diskType": "hyperdisk-balanced"},
    }
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
    assert lab.call("DELETE", f"{TEMPLATES}/t")[1]["operationType"] == "delete"


def test_the_newest_image_of_a_family_is_found(lab: Lab) -> None:
    newest = lab.api._state.find_image(IMAGE)
    assert newest is not None
    assert newest["name"].endswith("-v20260716")
    view = IMAGE.replace("global/images/family", "zones/-/imageFamilyViews")
    assert lab.api._state.find_image(view) == newest
    assert lab.api._state.find_image(f"https://www.googleapis.com/compute/v1/{IMAGE[:-1]}x") is None
    lab.disk("d")
    for name in ("i1", "i2"):
        source = "zones/us-central2-b/disks/d"
        lab.call("POST", "/global/images", {"name": name, "family": "f", "sourceDisk": source})
        lab.clock.advance(100)
    assert lab.get("/global/images/family/f")["name"] == "i2"
    assert lab.call("GET", "/global/images/family/none")[0] == 404


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
        {"properties": properties(metadata={"items": [{"key": "a", "value": "b"}, {"key": "a"}]})},
        "properties.metadata.items': ''. Keys of metadata must be unique",
    ),
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


GROUPS, INSTANCES = f"/zones/{ZONE}/instanceGroupManagers", f"/zones/{ZONE}/instances"
BASE = "https://www.googleapis.com/compute/v1/projects/sim-project"


def prepare(lab: Lab, topology: str = "4x4", **fields: Any) -> None:
    """A policy and a template `a`."""
    lab.call("POST", POLICIES, {"name": "a", "workloadPolicy": policy(acceleratorTopology=topology)})
    status, answer = lab.call("POST", TEMPLATES, {"name": "a", "properties": properties(**fields)})
    assert status == 200, answer


def group(size: int = 4, **fields: Any) -> dict[str, Any]:
    """The body of a slice's group `a`."""
    return {
        "name": "a",
        "baseInstanceName": "a-w-###",
        "instanceTemplate": f"regions/{REGION}/instanceTemplates/a",
        "targetSize": size,
        "targetSizePolicy": {"mode": "BULK"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        "resourcePolicies": {"workloadPolicy": f"regions/{REGION}/resourcePolicies/a"},
        **fields,
    }


def make(lab: Lab, body: dict[str, Any]) -> Any:
    """The operation, ended."""
    status, begun = lab.call("POST", GROUPS, body)
    assert status == 200, begun
    lab.clock.advance(0)
    return lab.get(f"/zones/{ZONE}/operations/{begun['name']}")


def members(lab: Lab, name: str = "a") -> list[dict[str, Any]]:
    status, found = lab.call("POST", f"{GROUPS}/{name}/listManagedInstances")
    assert status == 200
    return found.get("managedInstances", [])


def state(lab: Lab) -> tuple[bool, str]:
    """Whether the group is stable, and the state of its topology."""
    status = lab.get(f"{GROUPS}/a")["status"]
    return status["isStable"], status["appliedAcceleratorTopologies"][0]["state"]


@pytest.fixture
def quick() -> Lab:
    """A cloud in which nothing takes time."""
    lab = Lab(**dict.fromkeys(("compute_operation", "instance_create", "host_accounts", "node_delete"), 0.0))
    prepare(lab)
    return lab


def test_a_group_makes_all_its_members_and_takes_them_with_it() -> None:
    lab = Lab(compute_operation=0.0)
    prepare(lab, labels={"team": "x"}, metadata={"items": [{"key": "k", "value": "1"}]})
    config = {"properties": {"metadata": {"k": "2"}, "labels": {"more": "y"}}}
    assert (
        make(lab, group(allInstancesConfig=config))["operationType"] == "compute.instanceGroupManagers.insert"
    )
    shown = lab.get(f"{GROUPS}/a")
    assert (shown["currentActions"]["creating"], shown["status"]["isStable"]) == (4, False)
    assert shown["status"]["bulkInstanceOperation"]["inProgress"]
    lab.clock.advance(1000)
    shown = lab.get(f"{GROUPS}/a")
    assert (shown["currentActions"]["none"], state(lab)) == (4, (True, "ACTIVE"))
    assert shown["status"]["currentInstanceStatuses"]["running"] == 4
    found = members(lab)
    assert [each["name"] for each in found] == [f"a-w-00{n}" for n in (1, 2, 3, 4)]
    assert {(each["instanceStatus"], each["currentAction"]) for each in found} == {("RUNNING", "NONE")}
    one = lab.get(f"{INSTANCES}/a-w-001")
    told = {each["key"]: each["value"] for each in one["metadata"]["items"]}
    assert (one["labels"], told.pop("k")) == ({"team": "x", "more": "y"}, "2")
    assert told["created-by"].endswith(f"/zones/{ZONE}/instanceGroupManagers/a")
    assert set(told) == {"created-by", "instance-template"}
    assert lab.get(f"/zones/{ZONE}/instanceGroups/a")["size"] == 4
    listed = lab.call("POST", f"/zones/{ZONE}/instanceGroups/a/listInstances")[1]["items"]
    assert [each["status"] for each in listed] == ["RUNNING"] * 4
    assert lab.call("DELETE", f"{GROUPS}/a")[0] == 200
    shown = lab.get(f"{GROUPS}/a")
    assert (shown["currentActions"]["deleting"], shown["targetSize"]) == (4, 0)
    lab.clock.advance(1000)
    assert (lab.names(GROUPS), lab.names(INSTANCES)) == ([], [])
    for place in (TEMPLATES, POLICIES):
        assert lab.call("DELETE", f"{place}/a")[0] == 200


def test_workers_are_not_numbered_in_the_order_of_their_names(quick: Lab) -> None:
    make(quick, group())
    facts = quick.api.instances.all()[0].group
    assert facts is not None
    assert facts.members == ["a-w-002", "a-w-003", "a-w-004", "a-w-001"]
    assert facts.created_by.endswith(f"/zones/{ZONE}/instanceGroupManagers/a")


@pytest.mark.parametrize("planned", [True, False], ids=["a fault of one member", "too few chips"])
def test_a_group_in_bulk_mode_waits_until_all_fit(quick: Lab, planned: bool) -> None:
    if planned:
        fault = {"method": "instances.insert", "name": "a-w-003", "code": 14, "message": "no room", "times": 0}
        quick.world.faults.add({"kind": "error", "in_operation": True, **fault})
    else:
        quick.world.set_capacity(ZONE, 15)
    make(quick, group())
    assert quick.names(INSTANCES) == []
    check = quick.get(f"{GROUPS}/a")["status"]["bulkInstanceOperation"]
    assert check["inProgress"]
    [row] = check["lastProgressCheck"]["error"]["errors"]
    assert row["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert {each["lastAttempt"]["errors"]["errors"][0]["code"] for each in members(quick)} == {row["code"]}
    [first, *_] = quick.get(f"{GROUPS}/a/listErrors")["items"]
    assert (first["error"], first["instanceActionDetails"]["action"]) == (row, "CREATING")
    quick.world.faults.clear()
    quick.world.set_capacity(ZONE, 16)
    quick.clock.advance(100)
    assert (state(quick), len(quick.names(INSTANCES))) == ((True, "ACTIVE"), 4)
    assert "lastAttempt" not in members(quick)[0]


def test_a_group_in_individual_mode_makes_what_it_can(quick: Lab) -> None:
    quick.world.set_capacity(ZONE, 9)
    body = group(size=3, targetSizePolicy={}, resourcePolicies=None, baseInstanceName="free")
    make(quick, {key: value for key, value in body.items() if value is not None})
    shown = quick.get(f"{GROUPS}/a")
    assert (shown["targetSizePolicy"]["mode"], shown["currentActions"]["creating"]) == ("INDIVIDUAL", 1)
    assert len(quick.names(INSTANCES)) == 2
    quick.call("POST", f"{GROUPS}/a/resize", size="1")
    quick.clock.advance(100)
    assert len(quick.names(INSTANCES)) == 1
    assert quick.get(f"{GROUPS}/a")["status"]["isStable"]


def test_flex_start_members_are_pending_while_there_is_no_room(quick: Lab) -> None:
    flex = {"provisioningModel": "FLEX_START", "maxRunDuration": {"seconds": "3600"}}
    scheduling = {**flex, "instanceTerminationAction": "DELETE", "onHostMaintenance": "TERMINATE"}
    quick.call("POST", TEMPLATES, {"name": "flex", "properties": properties(scheduling=scheduling)})
    quick.world.set_capacity(ZONE, 0)
    make(quick, group(instanceTemplate=f"regions/{REGION}/instanceTemplates/flex"))
    assert quick.get(f"{GROUPS}/a")["status"]["currentInstanceStatuses"]["pending"] == 4


@pytest.mark.parametrize("vanishes", [True, False])
@pytest.mark.parametrize("repairs", [True, False])
def test_a_lost_member_is_made_again_only_where_the_group_repairs(
    quick: Lab, vanishes: bool, repairs: bool
) -> None:
    spot = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE" if vanishes else "STOP"}
    quick.call("POST", TEMPLATES, {"name": "spot", "properties": properties(scheduling=spot)})
    action = {"defaultActionOnFailure": "REPAIR" if repairs else "DO_NOTHING"}
    template = f"regions/{REGION}/instanceTemplates/spot"
    make(quick, group(instanceTemplate=template, instanceLifecyclePolicy=action))
    before = quick.get(f"{INSTANCES}/a-w-002")["id"]
    quick.world.preempt("a-w-002")
    quick.clock.advance(1000)
    lost = next(each for each in members(quick) if each["name"] == "a-w-002")
    if repairs:
        assert (lost["instanceStatus"], state(quick)) == ("RUNNING", (True, "ACTIVE"))
        assert lost["id"] != before
    else:
        assert lost.get("instanceStatus") == (None if vanishes else "TERMINATED")
        assert (lost["currentAction"], state(quick)) == ("NONE", (False, "INCOMPLETE"))


def test_members_are_recreated_and_deleted_by_name(quick: Lab) -> None:
    make(quick, group())
    before = {each["name"]: each["id"] for each in members(quick)}
    url = f"zones/{ZONE}/instances/a-w-001"
    assert quick.call("POST", f"{GROUPS}/a/recreateInstances", {"instances": [url]})[0] == 200
    quick.clock.advance(1000)
    after = {each["name"]: each["id"] for each in members(quick)}
    assert [name for name in before if before[name] != after[name]] == ["a-w-001"]
    every = [f"zones/{ZONE}/instances/{name}" for name in before]
    assert quick.call("POST", f"{GROUPS}/a/deleteInstances", {"instances": every})[0] == 200
    quick.clock.advance(1000)
    assert (members(quick), quick.get(f"{GROUPS}/a")["targetSize"]) == ([], 0)


def test_a_change_is_for_who_knows_the_group(quick: Lab) -> None:
    make(quick, group())
    known = quick.get(f"{GROUPS}/a")["fingerprint"]
    config = {"properties": {"metadata": {"a": "b"}}}
    assert quick.call("PATCH", f"{GROUPS}/a", {"allInstancesConfig": config, "fingerprint": known})[0] == 200
    assert quick.get(f"{GROUPS}/a")["allInstancesConfig"] == config
    assert quick.call("PATCH", f"{GROUPS}/a", {"description": "x", "fingerprint": known})[0] == 412
    assert quick.call("PATCH", f"{GROUPS}/a", {"baseInstanceName": "x"})[0] == 400


BAD_GROUPS = [
    ({"targetSize": 1}, "must be INDIVIDUAL"),
    ({"targetSize": None}, "target size must be specified"),
    ({"targetSize": 2000}, "between 0 and 1000"),
    ({"baseInstanceName": "A"}, "baseInstanceName"),
    ({"instanceTemplate": "a"}, "The URL is malformed"),
    ({"instanceTemplate": "global/instanceTemplates/none"}, "instanceTemplates/none' was not found"),
    ({"instanceTemplate": "regions/us-east1/instanceTemplates/a"}, "in the region us-east5"),
    (
        {"resourcePolicies": {"workloadPolicy": "regions/us-east1/resourcePolicies/a"}},
        "in the region of the group",
    ),
    ({"resourcePolicies": {"workloadPolicy": f"regions/{REGION}/resourcePolicies/no"}}, "no' was not found"),
    ({"autoHealingPolicies": [{"initialDelaySec": 3}]}, "does not implement"),
    ({"name": "Bad_Name"}, "Must be a match of regex"),
]


@pytest.mark.parametrize(("change", "said"), BAD_GROUPS)
def test_a_group_that_cannot_be_is_refused(quick: Lab, change: Any, said: str) -> None:
    body = {key: value for key, value in group(**change).items() if value is not None}
    status, answer = quick.call("POST", GROUPS, body)
    assert status in (400, 404, 412)
    assert said in answer["error"]["message"]
    assert quick.names(GROUPS) == []


@pytest.mark.parametrize(
    ("topology", "size", "machine", "said"),
    [
        ("4x4", 2, "ct6e-standard-4t", "Target size should be 4 for given accelerator topology but was 2."),
        ("3x5", 4, "ct6e-standard-4t", "3x5 is not supported for machine type ct6e-standard-4t"),
        ("2x2x2", 2, "ct6e-standard-4t", "2x2x2 is not supported"),
        ("4x4", 4, "n1-standard-1", "does not support accelerator topologies"),
    ],
)
def test_the_operation_of_a_group_fails_whose_topology_does_not_fit(
    topology: str, size: int, machine: str, said: str
) -> None:
    lab = Lab(compute_operation=0.0)
    prepare(lab, topology, machineType=machine)
    ended = make(lab, group(size))
    [row] = ended["error"]["errors"]
    assert (row["code"], said in row["message"]) == ("INVALID_FIELD_VALUE", True)
    assert lab.names(GROUPS) == []


def test_what_is_there_is_not_made_again_and_a_request_is_obeyed_once(quick: Lab) -> None:
    make(quick, group())
    status, answer = quick.call("POST", GROUPS, group())
    assert (status, "already exists" in answer["error"]["message"]) == (409, True)
    assert quick.call("POST", f"{GROUPS}/a/resize", size="3")[0] == 200
    assert len(members(quick)) == 4, "the size is that of the topology"
    quick.world.faults.add({"kind": "error", "method": "instanceGroupManagers.delete", "code": 14})
    assert quick.call("DELETE", f"{GROUPS}/a")[0] == 503
    late = {"kind": "error", "method": "instanceGroupManagers.delete", "in_operation": True}
    quick.world.faults.add(late)
    assert quick.call("DELETE", f"{GROUPS}/a")[0] == 200
    quick.clock.advance(1000)
    assert len(members(quick)) == 4


@pytest.mark.parametrize(
    ("model", "key", "limit_name"),
    [
        ("STANDARD", "TPUS_PER_TPU_FAMILY/us-east5/CT6E", "TPUS-PER-TPU-FAMILY-per-project-region"),
        ("SPOT", "PREEMPTIBLE_TPU_V6E/us-east5-a", "PREEMPTIBLE-TPU-V6E-per-project-zone"),
    ],
)
def test_compute_engine_has_quotas_of_chips_of_its_own(
    quick: Lab, model: str, key: str, limit_name: str
) -> None:
    scheduling = {"provisioningModel": model, "onHostMaintenance": "TERMINATE"}
    quick.call("POST", TEMPLATES, {"name": "m", "properties": properties(scheduling=scheduling)})
    quick.world.set_quotas({key: 15})
    make(quick, group(instanceTemplate=f"regions/{REGION}/instanceTemplates/m"))
    [row] = members(quick)[0]["lastAttempt"]["errors"]["errors"]
    assert (row["code"], key.partition("/")[0] in row["message"]) == ("QUOTA_EXCEEDED", True)
    assert row["errorDetails"][0]["quotaInfo"]["limitName"] == limit_name
    quick.world.set_quotas({key: 16})
    quick.clock.advance(100)
    assert state(quick) == (True, "ACTIVE")
    alone = {"name": "more", **properties(scheduling=scheduling)}
    alone["machineType"] = f"zones/{ZONE}/machineTypes/{alone['machineType']}"
    begun = quick.call("POST", INSTANCES, alone)[1]
    ended = quick.get(f"/zones/{ZONE}/operations/{begun['name']}")
    assert ended["error"]["errors"][0]["code"] == "QUOTA_EXCEEDED"


def test_a_group_that_is_bound_to_a_reservation_takes_its_chips_from_there(quick: Lab) -> None:
    name = "compute.googleapis.com/reservation-name"
    affinity = {"consumeReservationType": "SPECIFIC_RESERVATION", "key": name, "values": ["res"]}
    bound = {"provisioningModel": "RESERVATION_BOUND", "onHostMaintenance": "TERMINATE"}
    body = {"name": "r", "properties": properties(scheduling=bound, reservationAffinity=affinity)}
    assert quick.call("POST", TEMPLATES, body)[0] == 200
    quick.world.set_capacity(ZONE, 0)

    def reserve(count: int) -> None:
        specific = {"count": str(count), "instanceProperties": {"machineType": "ct6e-standard-4t"}}
        quick.call("DELETE", f"{RESERVATIONS}/res")
        made = quick.call("POST", RESERVATIONS, {"name": "res", "specificReservation": specific})
        assert made[0] == 200, made

    reserve(3)
    make(quick, group(instanceTemplate=f"regions/{REGION}/instanceTemplates/r"))
    quick.clock.advance(10)
    assert quick.names(INSTANCES) == []
    [row] = members(quick)[0]["lastAttempt"]["errors"]["errors"]
    assert "Insufficient reserved capacity" in row["message"]
    reserve(4)
    quick.clock.advance(1000)
    assert state(quick) == (True, "ACTIVE")
    assert quick.world.steering.reservations()[0]["used"] == 16
