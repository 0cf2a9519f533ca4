"""Instances of the simulated Compute Engine: their life, their disks, and what their hosts are told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.test_compute import Lab
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.sim.compute.group_facts import GroupOfInstances
from tpuctl.sim.compute.instance import Instance

ZONE = "us-east5-a"
AT = f"/zones/{ZONE}/instances"
DISKS = f"/zones/{ZONE}/disks"
OPERATIONS = f"/zones/{ZONE}/operations"
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
BOOT = {
    "boot": True,
    "autoDelete": True,
    "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "100", "diskType": "hyperdisk-balanced"},
}
SPOT = {"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}
ATTRIBUTE = "instance/attributes/"


def body(name: str = "big", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/ct6e-standard-4t",
        "disks": [BOOT],
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{}]}],
        **fields,
        "scheduling": {"onHostMaintenance": "TERMINATE", **fields.get("scheduling", {})},
    }


class InstanceLab(Lab):
    """With what is asked of instances."""

    def make(self, name: str = "big", **fields: Any) -> Any:
        status, answer = self.call("POST", AT, body(name, **fields))
        assert status == 200, answer
        self.clock.advance(0)
        return answer

    def post(self, path: str, body: Any = None, **query: str) -> Any:
        status, answer = self.call("POST", f"{AT}/{path}", body, **query)
        assert status == 200, answer
        self.clock.advance(0)
        return answer

    def show(self, name: str = "big") -> Any:
        return self.get(f"{AT}/{name}")

    def instance(self, name: str = "big") -> Instance:
        found = self.api.instances.find(ZONE, name)
        assert found is not None
        return found

    def told(self, name: str = "big") -> Any:
        """What its metadata server says."""
        [spec] = self.hosts.specs[self.instance(name).key]
        return spec.metadata()

    def operation(self, answer: Any) -> Any:
        return self.get(f"{OPERATIONS}/{answer['name']}")


@pytest.fixture
def lab() -> InstanceLab:
    return InstanceLab(**dict.fromkeys(DELAYS, 0.0))


DELAYS = ("compute_operation", "instance_create", "node_start", "node_stop", "node_delete", "host_accounts")


def test_an_instance_comes_up_with_its_boot_disk_and_goes_with_it() -> None:
    lab = InstanceLab(**{**dict.fromkeys(DELAYS, 0.0), "instance_create": 40.0, "node_delete": 60.0})
    begun = lab.make(labels={"a": "b"}, metadata={"items": [{"key": "ssh-keys", "value": "alice:key"}]})
    assert (lab.show()["status"], lab.operation(begun)["status"]) == ("PROVISIONING", "RUNNING")
    lab.clock.advance(20)
    assert lab.show()["status"] == "STAGING"
    lab.clock.advance(20)
    found = lab.show()
    assert (found["status"], lab.operation(begun)["status"]) == ("RUNNING", "DONE")
    [interface] = found["networkInterfaces"]
    assert (interface["networkIP"], interface["accessConfigs"][0]["natIP"]) == ("10.0.0.1", "10.0.0.1")
    [disk] = found["disks"]
    assert (disk["boot"], disk["autoDelete"], disk["diskSizeGb"]) == (True, True, "100")
    assert lab.get(f"{DISKS}/big")["users"] == [found["selfLink"]]
    assert lab.hosts.keys[lab.instance().key] == "alice:key"
    assert lab.names(AT, filter="labels.a = b") == ["big"]
    assert [
        each["name"] for each in lab.get("/aggregated/instances")["items"][f"zones/{ZONE}"]["instances"]
    ] == ["big"]
    [resident] = lab.world.census()
    assert (resident.kind, resident.path.id, resident.state) == ("instance", "big", "RUNNING")
    assert (resident.chips, resident.labels) == (4, {"a": "b"})
    assert lab.call("DELETE", f"{AT}/big")[0] == 200
    assert lab.show()["status"] == "STOPPING"
    assert lab.call("DELETE", f"{AT}/big")[1]["error"]["errors"][0]["reason"] == "resourceNotReady"
    lab.clock.advance(60)
    assert lab.call("GET", f"{AT}/big")[0] == lab.call("GET", f"{DISKS}/big")[0] == 404
    assert not lab.hosts.specs
    assert lab.world.census() == []


def test_a_disk_that_does_not_go_with_its_instance_stays(lab: InstanceLab) -> None:
    lab.make(disks=[{**BOOT, "autoDelete": False}])
    lab.call("DELETE", f"{AT}/big")
    lab.clock.advance(0)
    assert "users" not in lab.get(f"{DISKS}/big")


def test_hosts_are_told_of_their_slice_in_the_form_of_compute_engine(lab: InstanceLab) -> None:
    members = ["big-w-002", "big-w-001"]
    group = GroupOfInstances("big", "2x4", members, "projects/1/zones/z/instanceGroupManagers/big")
    for name in sorted(members):
        lab.api.instances.create(ZONE, body(name), group=group)
    lab.clock.advance(0)
    told = lab.told("big-w-001")
    assert told[f"{ATTRIBUTE}agent-worker-number"] == "1"
    assert told[f"{ATTRIBUTE}accelerator-type"] == "v6e-8"
    # Hosts of this tier have no names that resolve, so these are addresses: as plain as names are.
    assert told[f"{ATTRIBUTE}worker-network-endpoints"] == "10.0.0.2,10.0.0.1"
    assert told[f"{ATTRIBUTE}created-by"] == group.created_by
    env = told[f"{ATTRIBUTE}tpu-env"].splitlines()
    assert {"TOPOLOGY: '2x4'", "WORKER_ID: '1'", "HOST_BOUNDS: '1,2,1'"} <= set(env)
    assert told["instance/name"] == "big-w-001"
    assert "instance/service-accounts/default/token" not in told
    assert lab.world.preempt("big", workers=[1]) == [lab.instance("big-w-001").path.name]
    assert (lab.show("big-w-001")["status"], lab.show("big-w-002")["status"]) == ("TERMINATED", "RUNNING")


def test_hosts_of_one_node_are_preempted_together(lab: InstanceLab) -> None:
    node = {"acceleratorType": "v6e-16", "runtimeVersion": "v2-alpha-tpuv6e"}
    parent = f"projects/sim-project/locations/{ZONE}"
    lab.world.call("CreateNode", {"parent": parent, "nodeId": "n", "node": node})
    lab.clock.advance(1000)
    with pytest.raises(UsageError, match="the hosts of n are preempted together"):
        lab.world.preempt("n", workers=[1])
    assert len(lab.world.preempt("n", workers=[0, 1, 2, 3])) == 1


def test_endpoints_are_plain_host_names_where_these_resolve(lab: InstanceLab) -> None:
    lab.hosts.resolves = True
    group = GroupOfInstances("big", "2x4", ["big-a", "big-b"])
    lab.api.instances.create(ZONE, body("big-a"), group=group)
    lab.clock.advance(0)
    assert lab.told("big-a")[f"{ATTRIBUTE}worker-network-endpoints"] == "big-a,big-b"


def test_members_of_a_group_without_a_topology_are_alone(lab: InstanceLab) -> None:
    group = GroupOfInstances("big", None, ["big-a", "big-b"])
    for name in group.members:
        lab.api.instances.create(ZONE, body(name), group=group)
    lab.clock.advance(0)
    told = lab.told("big-b")
    assert (told[f"{ATTRIBUTE}agent-worker-number"], told[f"{ATTRIBUTE}accelerator-type"]) == ("0", "v6e-4")


@pytest.mark.parametrize(("action", "status"), [("STOP", "TERMINATED"), ("DELETE", None)])
def test_a_preemption_is_an_operation_of_compute_engines_own(
    lab: InstanceLab, action: str, status: str | None
) -> None:
    lab.make(scheduling={**SPOT, "instanceTerminationAction": action})
    told = lab.told
    said = []
    lab.hosts.on_shutdown = lambda: said.append(told()["instance/preempted"])
    assert lab.world.preempt("big") == [f"projects/sim-project/locations/{ZONE}/instances/big"]
    assert said == ["TRUE"]
    [found] = lab.get(OPERATIONS, filter="operationType=compute.instances.preempted")["items"]
    assert (found["user"], found["statusMessage"]) == ("system@google.com", "Instance was preempted.")
    assert found["status"] == "DONE"
    assert found["targetLink"].endswith(f"{AT}/big")
    if status is None:
        assert lab.call("GET", f"{AT}/big")[0] == 404
        return
    assert lab.show()["status"] == status
    lab.post("big/start")
    assert (lab.show()["status"], lab.told()["instance/preempted"]) == ("RUNNING", "FALSE")


def test_a_preemption_can_be_told_to_delete_in_spite_of_the_action(lab: InstanceLab) -> None:
    lab.world.faults.add({"preset": "preempt-deletes", "name": "b*"})
    for name in ("big", "other"):
        lab.make(name, scheduling=SPOT)
        lab.world.preempt(name)
    assert lab.call("GET", f"{AT}/big")[0] == 404
    assert lab.show("other")["status"] == "TERMINATED"
    kinds = [each["operationType"] for each in lab.get(OPERATIONS)["items"]]
    assert sorted(kinds) == [*["compute.instances.preempted"] * 2, "insert", "insert"]


@pytest.mark.parametrize(("action", "verb"), [("STOP", "deferredStop"), ("DELETE", "deferredDelete")])
def test_the_end_of_the_run_time_is_no_preemption(lab: InstanceLab, action: str, verb: str) -> None:
    lab.make(scheduling={"maxRunDuration": {"seconds": "600"}, "instanceTerminationAction": action})
    lab.clock.advance(599)
    assert lab.show()["status"] == "RUNNING"
    lab.clock.advance(1)
    kinds = [each["operationType"] for each in lab.get(OPERATIONS)["items"]]
    assert sorted(kinds) == [f"compute.instances.{verb}", "insert"]
    assert lab.call("GET", f"{AT}/big")[0] == (200 if action == "STOP" else 404)


def test_a_new_start_has_its_whole_run_time(lab: InstanceLab) -> None:
    lab.make(scheduling={"maxRunDuration": {"seconds": "600"}, "instanceTerminationAction": "STOP"})
    lab.clock.advance(500)
    lab.post("big/stop")
    lab.post("big/start")
    lab.clock.advance(500)
    assert lab.show()["status"] == "RUNNING"
    lab.clock.advance(100)
    assert lab.show()["status"] == "TERMINATED"


def test_metadata_and_labels_are_changed_by_who_knows_them(lab: InstanceLab) -> None:
    lab.make()
    print_of = lab.show()["metadata"]["fingerprint"]
    asked = {"items": [{"key": "ssh-keys", "value": "bob:key"}], "fingerprint": print_of}
    lab.post("big/setMetadata", asked)
    assert lab.hosts.keys[lab.instance().key] == "bob:key"
    status, again = lab.call("POST", f"{AT}/big/setMetadata", asked)
    assert (status, again["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")
    labels = {"labels": {"a": "b"}, "labelFingerprint": lab.show()["labelFingerprint"]}
    lab.post("big/setLabels", labels)
    assert lab.show()["labels"] == {"a": "b"}
    assert lab.call("POST", f"{AT}/big/setLabels", labels)[0] == 412


def test_guest_attributes_are_there_where_they_are_turned_on(lab: InstanceLab) -> None:
    on = {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]}
    lab.make("on", metadata=on)
    lab.make("off")
    [item] = lab.get(f"{AT}/on/getGuestAttributes", queryPath="hostkeys/")["queryValue"]["items"]
    assert item == {"namespace": "hostkeys", "key": "ssh-ed25519", "value": "KEY1"}
    status, answer = lab.call("GET", f"{AT}/off/getGuestAttributes", queryPath="hostkeys/")
    assert status == 404
    assert answer["error"]["message"] == "The resource 'hostkeys/' of type 'Guest Attribute' was not found."
    assert not lab.hosts.specs[lab.instance("off").key][0].publish("a/b", "c")
    assert lab.hosts.specs[lab.instance("on").key][0].publish("a/b", "c")
    assert lab.get(f"{AT}/on/getGuestAttributes", queryPath="a/b")["queryValue"]["items"][0]["value"] == "c"


def data_disk(lab: InstanceLab, name: str, **fields: Any) -> dict[str, str]:
    kind = {"type": f"zones/{ZONE}/diskTypes/hyperdisk-balanced", **fields}
    status, answer = lab.call("POST", DISKS, {"name": name, "sizeGb": "10", **kind})
    assert status == 200, answer
    return {"source": f"projects/sim-project/zones/{ZONE}/disks/{name}"}


def test_disks_are_attached_and_detached_by_their_device_names(lab: InstanceLab) -> None:
    lab.make()
    lab.post("big/attachDisk", {**data_disk(lab, "data"), "deviceName": "mine"})
    assert [each["deviceName"] for each in lab.show()["disks"]] == ["persistent-disk-0", "mine"]
    assert lab.get(f"{DISKS}/data")["users"] == [lab.show()["selfLink"]]
    assert lab.told()["instance/disks/1/device-name"] == "mine"
    [disk] = lab.hosts.disks[lab.instance().key][0]
    assert (disk.number, disk.link, disk.read_only) == (1, "google-mine", False)
    status, answer = lab.call("DELETE", f"{DISKS}/data")
    assert (status, answer["error"]["errors"][0]["reason"]) == (400, "resourceInUseByAnotherResource")
    lab.post("big/detachDisk", deviceName="mine")
    assert "users" not in lab.get(f"{DISKS}/data")
    status, answer = lab.call("POST", f"{AT}/big/detachDisk", deviceName="mine")
    assert "No attached disk found with device name 'mine'" in answer["error"]["message"]


def test_a_disk_is_held_by_instances_and_nodes_alike(lab: InstanceLab) -> None:
    lab.make("one")
    lab.make("two")
    asked = data_disk(lab, "data")
    lab.post("one/attachDisk", asked)
    status, answer = lab.call("POST", f"{AT}/two/attachDisk", asked)
    assert (status, "is already being used by" in answer["error"]["message"]) == (400, True)
    node = {
        "acceleratorType": "v6e-4",
        "runtimeVersion": "v2-alpha-tpuv6e",
        "dataDisks": [{"sourceDisk": asked["source"]}],
    }
    parent = f"projects/sim-project/locations/{ZONE}"
    with pytest.raises(Exception, match="is already being used by 'projects/sim-project/zones/us-east5-a/inst"):
        lab.world.call("CreateNode", {"parent": parent, "nodeId": "n", "node": node})
    # A preempted instance that was stopped holds its disks; when it is gone it holds none.
    lab.world.preempt("one")
    assert lab.call("POST", f"{AT}/two/attachDisk", asked)[0] == 400
    lab.call("DELETE", f"{AT}/one")
    lab.clock.advance(0)
    lab.post("two/attachDisk", asked)


def test_several_write_to_a_disk_that_is_made_for_it(lab: InstanceLab) -> None:
    asked = data_disk(lab, "data", accessMode="READ_WRITE_MANY")
    for name in ("one", "two"):
        lab.make(name)
        lab.post(f"{name}/attachDisk", asked)
    assert len(lab.get(f"{DISKS}/data")["users"]) == 2


BAD: list[tuple[dict[str, Any], str]] = [
    ({"disks": []}, "'resource.disks'"),
    ({"networkInterfaces": []}, "'resource.networkInterfaces'"),
    ({"machineType": f"zones/{ZONE}/machineTypes/no-such"}, "'no-such' does not exist in zone"),
    (
        {"machineType": f"zones/{ZONE}/machineTypes/e2-standard-2"},
        "does not implement instances of machine type",
    ),
    ({"scheduling": {"onHostMaintenance": "MIGRATE"}}, "do not support live migration"),
    ({"scheduling": {"maxRunDuration": {"seconds": "5"}}}, "from 30 seconds to 120 days"),
    ({"scheduling": {"maxRunDuration": {"seconds": "50"}}}, "'resource.scheduling.instanceTerminationAction'"),
    ({"scheduling": {**SPOT, "automaticRestart": True}}, "'resource.scheduling.automaticRestart'"),
    ({"scheduling": {"provisioningModel": "FLEX_START"}}, "Flex-start needs maxRunDuration"),
    ({"disks": [{"boot": True}]}, "A boot disk needs an image"),
    ({"disks": [{**BOOT, "initializeParams": {"sourceImage": "i"}}]}, "image resource cannot be found"),
    (
        {"disks": [{**BOOT, "initializeParams": {"sourceImage": IMAGE}}]},
        "InstanceTaxonomies are not compatible",
    ),
    ({"disks": [BOOT, {"source": f"projects/sim-project/zones/{ZONE}/disks/none"}]}, "was not found"),
    ({"networkInterfaces": [{"network": "global/networks/other"}]}, "networks/other' was not found"),
    ({"metadata": {"items": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}}, "must be unique"),
    ({"minCpuPlatform": "AMD"}, "does not implement 'minCpuPlatform'"),
    ({"name": "Big"}, "'resource.name'"),
]


@pytest.mark.parametrize(("fields", "text"), BAD)
def test_what_is_wrong_is_refused_and_nothing_is_left(lab: InstanceLab, fields: Any, text: str) -> None:
    status, answer = lab.call("POST", AT, {**body(), **body(**fields)})
    assert (status in (400, 404), text in answer["error"]["message"]) == (True, True), answer
    assert lab.names(AT) == lab.names(DISKS) == []


def test_no_room_and_no_quota_fail_the_operation_and_leave_nothing(lab: InstanceLab) -> None:
    lab.world.set_capacity(ZONE, 3)
    error = lab.operation(lab.make())["error"]["errors"][0]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert "does not have enough resources available" in error["message"]
    assert lab.names(AT) == lab.names(DISKS) == []
    lab.world.set_capacity(ZONE, 4)
    lab.make()
    node = {"acceleratorType": "v6e-4", "runtimeVersion": "v2-alpha-tpuv6e"}
    parent = f"projects/sim-project/locations/{ZONE}"
    assert lab.world.room(ZONE) == 0
    lab.world.call("CreateNode", {"parent": parent, "nodeId": "n", "node": node})
    lab.clock.advance(1000)
    with pytest.raises(NotFoundError, match="no such node"):
        lab.world.preempt("n")


def test_a_planned_failure_leaves_what_is_there_as_it_was(lab: InstanceLab) -> None:
    lab.make()
    asked = data_disk(lab, "data")
    for verb in ("delete", "attachDisk", "stop"):
        spec = {"kind": "error", "method": f"instances.{verb}", "in_operation": True, "message": "no"}
        lab.world.faults.add(spec)
    failed = [lab.call("DELETE", f"{AT}/big")[1], lab.post("big/attachDisk", asked), lab.post("big/stop")]
    assert [lab.operation(each)["error"]["errors"][0]["message"] for each in failed] == ["no"] * 3
    assert (lab.show()["status"], len(lab.show()["disks"])) == ("RUNNING", 1)


def test_chips_that_an_instance_gives_back_serve_who_waits(lab: InstanceLab) -> None:
    lab.world.set_capacity(ZONE, 4)
    lab.make()
    parent = f"projects/sim-project/locations/{ZONE}"
    node = {"acceleratorType": "v6e-4", "runtimeVersion": "v2-alpha-tpuv6e"}
    spec = {"nodeSpec": [{"parent": parent, "nodeId": "n", "node": node}]}
    asked = {"parent": parent, "queuedResourceId": "q", "queuedResource": {"tpu": spec}}
    lab.world.call("CreateQueuedResource", asked)
    lab.clock.advance(1000)
    name = f"{parent}/queuedResources/q"
    assert lab.world.call("GetQueuedResource", {"name": name})["state"]["state"] == "WAITING_FOR_RESOURCES"
    lab.call("DELETE", f"{AT}/big")
    lab.clock.advance(1000)
    assert lab.world.call("GetQueuedResource", {"name": name})["state"]["state"] == "ACTIVE"
