"""Groups and instances, seen as nodes: JSON of Compute Engine to what workflows know."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from tpuctl.cloud.compute_errors import join_operations, parse_errors, parse_operation
from tpuctl.cloud.group_nodes import GroupParts, hosts_of, parse_parts
from tpuctl.cloud.instances import (
    AttachedDisk,
    Instance,
    is_tpu,
    next_disk,
    parse_instance,
    replaced_in_host,
    shared_disks,
)
from tpuctl.model.cloud import Api, CloudErrorInfo, Endpoint, GroupHosts, NodeState, OperationInfo, Tier
from tpuctl.model.disks import DataDisk, DiskMode
from tpuctl.model.resources import ResourceKind, gcloud_command, marks_text
from tpuctl.model.shipped_files import load_accelerators

ZONE, PROJECT = "us-central1-c", "https://www.googleapis.com/compute/v1/projects/p"
OWNER = {"tpuctl-slice": "big", "tpuctl-incarnation": "1", "tpuctl-store": "ab12", "tpuctl-user": "ada"}
FAMILY = "ubuntu-accel-2404-amd64-tpu-tpu7x"
RW, RO = DiskMode.READ_WRITE, DiskMode.READ_ONLY


def instance(number: int = 1, *, group: str = "big-1", **changes: Any) -> dict[str, Any]:
    """A host, in the form of https://cloud.google.com/compute/docs/reference/rest/v1/instances."""
    name = f"{group}-w-{number:03d}" if group else "one-1"
    made_by = (
        {"created-by": f"projects/415104041262/zones/{ZONE}/instanceGroupManagers/{group}"} if group else {}
    )
    metadata = {"ssh-keys": "tpuctl:k", "enable-guest-attributes": "TRUE", "team": "vision", **made_by}
    return {
        "kind": "compute#instance",
        "id": str(100 + number),
        "name": name,
        "selfLink": f"{PROJECT}/zones/{ZONE}/instances/{name}",
        "zone": f"{PROJECT}/zones/{ZONE}",
        "machineType": f"{PROJECT}/zones/{ZONE}/machineTypes/tpu7x-standard-4t",
        "status": "RUNNING",
        "creationTimestamp": "2026-11-26T08:00:00.000-08:00",
        "lastStartTimestamp": "2026-11-26T08:00:10.000-08:00",
        "labels": {"team": "vision", **OWNER},
        "labelFingerprint": "lf",
        "metadata": {"fingerprint": "mf", "items": [{"key": k, "value": v} for k, v in metadata.items()]},
        "networkInterfaces": [
            {
                "network": f"{PROJECT}/global/networks/default",
                "subnetwork": f"{PROJECT}/regions/us-central1/subnetworks/default",
                "networkIP": f"10.0.0.{number}",
                "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "natIP": f"34.0.0.{number}"}],
            }
        ],
        "disks": [{"boot": True, "source": f"{PROJECT}/zones/{ZONE}/disks/{name}", "mode": "READ_WRITE"}],
        "scheduling": {"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"},
        "serviceAccounts": [
            {
                "email": "415104041262-compute@developer.gserviceaccount.com",
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
        ],
        "tags": {"items": ["a"]},
        **changes,
    }


def group(**changes: Any) -> dict[str, Any]:
    base = f"{PROJECT}/regions/us-central1"
    return {
        "id": "77",
        "name": "big-1",
        "zone": f"{PROJECT}/zones/{ZONE}",
        "description": marks_text({**OWNER, "tpuctl-zone": ZONE}, "Ablation"),
        "creationTimestamp": "2026-11-26T08:00:00.000-08:00",
        "baseInstanceName": "big-1-w-###",
        "instanceTemplate": f"{base}/instanceTemplates/big-1",
        "resourcePolicies": {"workloadPolicy": f"{base}/resourcePolicies/big-1"},
        "targetSize": 2,
        "currentActions": {"none": 2, "creating": 0, "deleting": 0},
        "status": {"isStable": True},
        **changes,
    }


TEMPLATE: dict[str, Any] = {
    "id": "66",
    "name": "big-1",
    "region": f"{PROJECT}/regions/us-central1",
    "description": marks_text({**OWNER, "tpuctl-zone": ZONE}),
    "properties": {
        "machineType": "tpu7x-standard-4t",
        "disks": [
            {"boot": True, "initializeParams": {"sourceImage": f"projects/i/global/images/family/{FAMILY}"}}
        ],
        "scheduling": {"provisioningModel": "SPOT"},
        "labels": OWNER,
    },
}
POLICY: dict[str, Any] = {
    "id": "55",
    "name": "big-1",
    "region": f"{PROJECT}/regions/us-central1",
    "description": marks_text({**OWNER, "tpuctl-zone": ZONE}),
    "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "2x2x2"},
}


def parts(*hosts: dict[str, Any], **changes: Any) -> GroupParts:
    values = {"group": group(), "template": TEMPLATE, "policy": POLICY, **changes}
    return GroupParts("big-1", ZONE, hosts=tuple(parse_instance(each) for each in hosts), **values)


def node(*hosts: dict[str, Any], **changes: Any) -> Any:
    return parse_parts(parts(*hosts, **changes), load_accelerators())


def test_a_slice_ends_when_compute_engine_ends_the_first_of_its_hosts():
    ends = [
        {"resourceStatus": {"scheduling": {"terminationTimestamp": f"2026-11-26T0{n}:00:00-08:00"}}}
        for n in (9, 8)
    ]
    found = node(instance(1, **ends[0]), instance(2, **ends[1]))
    assert found.ends_at == datetime(2026, 11, 26, 16, tzinfo=UTC).timestamp()
    assert node(instance(1), instance(2)).ends_at is None


def test_what_tpuctl_did_not_make_of_a_group_stays():
    theirs = {**TEMPLATE, "name": "base", "description": ""}
    shared = {**POLICY, "name": "ici"}
    of_all = {key: value for key, value in theirs.items() if key != "region"}
    assert node(instance(1), instance(2)).stays == ()
    assert [
        gcloud_command("delete", each.kind, each.name, each.location)
        for template in (theirs, of_all)
        for each in node(instance(1), instance(2), template=template, policy=shared).stays
    ] == [
        "gcloud compute instance-templates delete base --region us-central1",
        "gcloud compute resource-policies delete ici --region us-central1",
        "gcloud compute instance-templates delete base --global",
        "gcloud compute resource-policies delete ici --region us-central1",
    ]


def test_a_group_whose_hosts_all_run_is_a_ready_node():
    found = node(instance(1), instance(2))
    assert (found.name, found.zone, found.uid, found.state) == ("big-1", ZONE, "77", NodeState.READY)
    assert (found.accelerator_type, found.runtime_version, found.tier) == ("tpu7x-16", FAMILY, Tier.SPOT)
    assert found.endpoints == (
        Endpoint("10.0.0.1", "34.0.0.1", "big-1-w-001"),
        Endpoint("10.0.0.2", "34.0.0.2", "big-1-w-002"),
    )
    assert found.labels == {"team": "vision", **OWNER}
    assert found.metadata == {"ssh-keys": "tpuctl:k", "team": "vision"}
    assert (found.options.description, found.tags, found.unsaid) == ("Ablation", ("a",), ())
    assert (found.kind, found.api, found.error, found.health) == (ResourceKind.GROUP, Api.COMPUTE, None, "")
    assert found.holds == ("66", "55")
    assert found.options.network is found.options.subnetwork is found.options.service_account is None


def test_an_instance_alone_is_a_node_by_its_own_labels_and_id():
    one = parse_instance(instance(1, group=""))
    found = parse_parts(GroupParts("one-1", ZONE, hosts=(one,)), load_accelerators())
    assert (found.uid, found.state, found.accelerator_type) == ("101", NodeState.READY, "tpu7x-8")
    assert found.kind is ResourceKind.INSTANCE
    assert found.labels == {"team": "vision", **OWNER}
    assert len(found.endpoints) == 1


@pytest.mark.parametrize(
    ("changes", "uid", "labels"),
    [
        ({}, "66", OWNER),
        ({"template": None}, "55", OWNER),
        ({"template": None, "policy": {**POLICY, "description": "somebody's"}}, "55", {}),
        (
            {"template": None, "policy": {**POLICY, "description": marks_text({**OWNER, "tpuctl-zone": "x"})}},
            "55",
            {},
        ),
    ],
)
def test_what_has_no_hosts_yet_or_no_more_is_half_made(changes, uid, labels):
    found = node(group=None, **changes)
    assert (found.state, found.uid, found.labels) == (NodeState.HALF_MADE, uid, labels)
    assert found.kind is (ResourceKind.TEMPLATE if uid == "66" else ResourceKind.POLICY)
    assert found.accelerator_type == ("tpu7x-16" if uid == "66" else "2x2x2")
    assert found.endpoints == ()


def test_a_template_and_a_policy_of_a_person_are_not_held():
    found = node(
        instance(1), instance(2), template={**TEMPLATE, "description": ""}, policy={**POLICY, "name": "p"}
    )
    assert found.holds == ()


def test_a_group_that_was_adopted_shows_the_labels_that_its_hosts_got():
    ours = {**OWNER, "tpuctl-store": "cd34"}
    found = node(instance(1, labels=ours), instance(2, labels=ours))
    assert found.labels == ours
    found = node(instance(1, labels=ours), instance(2, labels={}))
    assert found.labels == OWNER


FAILED = {
    "lastAttempt": {
        "errors": {
            "errors": [
                {
                    "code": "ZONE_RESOURCE_POOL_EXHAUSTED",
                    "message": "The zone 'projects/p/zones/us-central1-c' does not have enough resources "
                    "available to fulfill the request.  Try a different zone, or try again later.",
                }
            ]
        }
    }
}
COMING = group(currentActions={"creating": 2}, status={"isStable": False})


def test_a_group_without_capacity_is_being_created_and_says_why_it_is_not():
    checked = {
        "isStable": False,
        "bulkInstanceOperation": {"lastProgressCheck": {"error": FAILED["lastAttempt"]["errors"]}},
    }
    for said in ({"group": COMING, "attempts": (FAILED,)}, {"group": {**COMING, "status": checked}}):
        found = node(**said)
        assert (found.state, found.endpoints, found.error.code) == (NodeState.CREATING, (), 8)
        assert "does not have enough resources" in found.health_description
        assert found.accelerator_type == "tpu7x-16"
    assert node(instance(1), instance(2), attempts=(FAILED,)).error is None  # it was made in the end


def preempted(number: int) -> dict[str, Any]:
    return {
        "operationType": "compute.instances.preempted",
        "targetId": str(100 + number),
        "targetLink": f"{PROJECT}/zones/{ZONE}/instances/big-1-w-{number:03d}",
        "insertTime": "2026-11-26T09:00:00.000-08:00",
    }


@pytest.mark.parametrize(
    ("hosts", "changes", "state"),
    [
        ([instance(1), instance(2, status="TERMINATED")], {"operations": (preempted(2),)}, NodeState.PREEMPTED),
        ([instance(1), instance(2, status="TERMINATED")], {}, NodeState.UNKNOWN),
        ([instance(1)], {"operations": (preempted(2),)}, NodeState.PREEMPTED),
        ([instance(1)], {"operations": (preempted(1),)}, NodeState.UNKNOWN),
        ([instance(1)], {"group": COMING}, NodeState.CREATING),
        ([instance(1), instance(2, status="STAGING")], {"group": COMING}, NodeState.CREATING),
        ([instance(1), instance(2)], {"group": group(currentActions={"deleting": 2})}, NodeState.DELETING),
        ([instance(1), instance(2)], {"group": group(currentActions={"restarting": 1})}, NodeState.RESTARTING),
        ([], {"group": group(targetSize=0, currentActions={"deleting": 1})}, NodeState.DELETING),
        ([], {"group": group(targetSize=0)}, NodeState.STOPPED),
    ],
)
def test_the_state_of_a_group_is_that_of_its_hosts(hosts, changes, state):
    assert node(*hosts, **changes).state is state


def test_hosts_that_run_are_told_from_those_that_ended_or_are_not_there():
    found = node(
        instance(1), instance(2, status="TERMINATED"), operations=(preempted(2),), group=group(targetSize=3)
    )
    assert found.hosts == GroupHosts(3, ("big-1-w-001", "big-1-w-002"), ("big-1-w-001",))
    assert (found.endpoints, found.runs_in_part, found.is_dead) == ((), True, False)
    over = node(instance(1, status="TERMINATED"), operations=(preempted(1),))
    assert (over.runs_in_part, over.is_dead) == (False, True)


@pytest.mark.parametrize(
    ("base", "own", "others"),
    [
        ("big-1-w-###", ["big-1-w-002", "big-1-w-1000"], ["big-1-w-02", "big-1-w-x-002", "big-1-w-abcd"]),
        ("big-1-w-##[10]", ["big-1-w-12"], ["big-1-w-1"]),
        ("big", ["big-x1y2"], ["big-1-w-002", "big-other-x1y2"]),
    ],
)
def test_the_hosts_of_a_group_are_known_by_the_whole_form_of_their_names(base, own, others):
    members = parts(group=group(baseInstanceName=base)).members
    assert [each for each in (*own, *others) if re.fullmatch(members, each)] == own
    assert parts(group=group(baseInstanceName="")).members == ""


def test_hosts_of_a_group_are_in_the_order_of_their_names_and_no_others():
    listed = [instance(2), instance(1), instance(3, group="big-1-other"), instance(9, group="")]
    found = hosts_of(parts(), tuple(parse_instance(each) for each in listed))
    assert [each.name for each in found] == ["big-1-w-001", "big-1-w-002"]


@pytest.mark.parametrize(
    ("machine_type", "chips"),
    [
        ("ct6e-standard-8t", True),
        ("tpu7x-standard-4t", True),
        ("tpu7x-ultranet-4t", True),
        ("ct6e-standard-1t-tpu", True),
        ("n1-standard-4", False),
        ("ct6e", False),
    ],
)
def test_machines_with_chips_are_known_by_their_type(machine_type, chips):
    assert is_tpu(machine_type) is chips


def host(*disks: tuple[str, DiskMode]) -> Instance:
    found = parse_instance(instance())
    return Instance(
        found.name,
        ZONE,
        "1",
        "RUNNING",
        "tpu7x-standard-4t",
        Tier.SPOT,
        found.endpoint,
        disks=tuple(AttachedDisk(ZONE, name, mode, f"device-{name}") for name, mode in disks),
    )


def test_a_disk_that_not_all_hosts_have_says_which_have_it():
    both, half = DataDisk(ZONE, "both", RO), DataDisk(ZONE, "half", RO, ("1",))
    assert shared_disks([host(("both", RO)), host(("half", RO), ("both", RO))]) == (both, half)


A, B = DataDisk(ZONE, "a", RO), DataDisk(ZONE, "b", RO)
HAS_A = AttachedDisk(ZONE, "a", RO, "device-a")


@pytest.mark.parametrize(
    ("has", "before", "wanted", "step"),
    [
        ([], [], [A], A),
        ([("a", RO)], [], [A], None),
        ([("a", RO)], [A], [], HAS_A),
        ([("a", RO)], [A], [B], HAS_A),
        ([], [A], [B], B),
        ([("a", RO), ("b", RO)], [A], [A], None),  # somebody else attached b meanwhile
        (
            [("a", RO)],
            [A],
            [DataDisk(ZONE, "a", RW)],
            HAS_A,
        ),  # it comes back in the other mode by the next step
        ([], [DataDisk(ZONE, "a", RO, ("1",))], [DataDisk(ZONE, "a", RO, ("1",))], None),
        ([], [DataDisk(ZONE, "a", RO, ("1",))], [DataDisk(ZONE, "a", RO, ("1",)), A], A),
    ],
)
def test_one_step_at_a_time_brings_a_host_to_the_disks_of_its_slice(has, before, wanted, step):
    assert next_disk(host(*has), 0, before, wanted) == step


def test_replacing_metadata_keeps_what_is_of_one_host_or_of_the_service():
    own = {"created-by": "g", "mine": "1", "team": "vision"}
    assert replaced_in_host(own, {"team": "vision"}, {"ssh-keys": "k"}) == {
        "created-by": "g",
        "mine": "1",
        "ssh-keys": "k",
    }


QUOTA = {
    "code": "QUOTA_EXCEEDED",
    "message": "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in region us-central1.",
    "errorDetails": [
        {
            "quotaInfo": {
                "metricName": "compute.googleapis.com/tpus_per_tpu_family",
                "limitName": "TPUS-PER-TPU-FAMILY-per-project-region",
                "dimensions": {"region": "us-central1", "tpu_family": "CT6E"},
                "limit": 0,
            }
        }
    ],
}


def operation(**changes: Any) -> dict[str, Any]:
    return {
        "selfLink": f"{PROJECT}/zones/{ZONE}/operations/o-1",
        "status": "DONE",
        "targetLink": "t",
        **changes,
    }


def test_operations_are_called_by_their_path_and_tell_which_quota_is_used_up():
    assert parse_operation(operation(status="RUNNING")) == OperationInfo(
        f"projects/p/zones/{ZONE}/operations/o-1", False, None, "t"
    )
    found = parse_operation(operation(error={"errors": [QUOTA]}, httpErrorStatusCode=403))
    assert (found.done, found.error.code) == (True, 8)
    assert found.error.details[0]["metadata"]["tpu_family"] == "CT6E"


@pytest.mark.parametrize(
    ("code", "http", "rpc"),
    [
        ("RESOURCE_NOT_FOUND", 0, 5),
        ("INVALID_USAGE", 0, 3),
        ("NEVER_HEARD_OF", 403, 7),
        ("NEVER_HEARD_OF", 0, 2),
    ],
)
def test_codes_of_compute_engine_are_codes_of_google_rpc(code, http, rpc):
    found = parse_errors({"errors": [{"code": code, "message": "m"}]}, http)
    assert (found.code, found.message) == (rpc, "m")
    assert parse_errors({}) is None


def test_a_field_that_does_not_exist_is_not_named():
    text = "Target size should be 8 for given accelerator topology but was 2."
    error = {"code": "INVALID_FIELD_VALUE", "message": f"Invalid value for field 'operation': ''. {text}"}
    found = parse_errors({"errors": [error]})
    assert (found.code, found.message) == (3, text)


def test_several_operations_are_done_together_and_fail_by_one():
    error = CloudErrorInfo(9, "no")
    done, failed, runs = OperationInfo("a", True), OperationInfo("b", True, error), OperationInfo("c", False)
    assert join_operations([done, failed]) == OperationInfo("a,b", True, error)
    assert join_operations([failed, runs]) == OperationInfo("b,c", False)
    assert join_operations([]) == OperationInfo("", True)


def test_reading_does_not_load_the_library_of_changes():
    code = "import sys, tpuctl.cloud.groups; sys.exit('google.cloud.compute_v1' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
