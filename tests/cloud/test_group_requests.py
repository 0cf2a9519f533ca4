"""What is asked of Compute Engine for a slice, beside what other tools that make TPUs there ask."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from msgspec.structs import replace

from tests.support.compute_slices import FAMILY, OWNED, OWNER
from tpuctl.cloud.groups import KINDS
from tpuctl.model.cloud import Tier
from tpuctl.model.resources import parse_marks
from tpuctl.model.slice_spec import SliceSpec

POLICY, TEMPLATE, GROUP, INSTANCE = KINDS


def spec(**changes: Any) -> SliceSpec:
    return replace(OWNED, **{"tier": Tier.ON_DEMAND, **changes})


def rendering() -> ModuleType:
    """Its import takes two seconds, for which the collection of tests does not wait."""
    return importlib.import_module("tpuctl.cloud.group_requests")


def body(kind: str, asked: SliceSpec, name: str = "big-1") -> dict[str, Any]:
    message = rendering().RENDER[kind]("p", name, asked)
    found: dict[str, Any] = MessageToDict(type(message).pb(message))
    return found


def contains(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(contains(found.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(contains, found, wanted))
    return bool(found == wanted)


OPERATORS_DISK = {"boot": True, "autoDelete": True, "mode": "READ_WRITE"}
OPERATORS_ACCOUNT = {"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
ASKED_BY_OTHERS = [
    pytest.param(
        POLICY,
        spec(),
        {
            "name": "big-1",
            "region": "us-central1",
            "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "2x2x2"},
        },
        id="gke-labs/tpu-operator docs/gce-api-client.md, workload policy",
    ),
    pytest.param(
        POLICY,
        spec(topology="4x8"),
        {"workloadPolicy": {"acceleratorTopology": "4x8", "acceleratorTopologyMode": "AUTO_CONNECT"}},
        id="wchen99998/skypilot tests/unit_tests/test_gcp.py, gcloud's --accelerator-topology-mode",
    ),
    pytest.param(
        TEMPLATE,
        spec(),
        {
            "properties": {
                "machineType": "tpu7x-standard-4t",
                "disks": [OPERATORS_DISK],
                "networkInterfaces": [{"accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
                "serviceAccounts": [OPERATORS_ACCOUNT],
                "scheduling": {"onHostMaintenance": "TERMINATE"},
            }
        },
        id="gke-labs/tpu-operator docs/gce-api-client.md, instance template",
    ),
    pytest.param(
        TEMPLATE,
        spec(tier=Tier.RESERVED, reservation="mine"),
        {
            "properties": {
                "scheduling": {"provisioningModel": "RESERVATION_BOUND", "instanceTerminationAction": "DELETE"},
                "reservationAffinity": {
                    "consumeReservationType": "SPECIFIC_RESERVATION",
                    "key": "compute.googleapis.com/reservation-name",
                    "values": ["mine"],
                },
            }
        },
        id="gke-labs/tpu-operator docs/gce-api-client.md, reservation binding",
    ),
    pytest.param(
        TEMPLATE,
        spec(tier=Tier.FLEX_START, run_duration_s=3600.0),
        {
            "properties": {
                "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
                "scheduling": {
                    "provisioningModel": "FLEX_START",
                    "instanceTerminationAction": "DELETE",
                    "maxRunDuration": {"seconds": "3600"},
                    "onHostMaintenance": "TERMINATE",
                },
            }
        },
        id="wchen99998/skypilot tests/unit_tests/test_gcp.py, flex-start",
    ),
    pytest.param(
        TEMPLATE,
        spec(),
        {
            "properties": {
                "disks": [{"initializeParams": {"diskType": "hyperdisk-balanced"}}],
                "networkInterfaces": [{"nicType": "GVNIC"}],
            }
        },
        id="vllm-project/ci-infra ci_v7x_gce, template",
    ),
    pytest.param(
        GROUP,
        spec(),
        {
            "name": "big-1",
            "targetSize": 2,
            "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
            "targetSizePolicy": {"mode": "BULK"},
            "resourcePolicies": {"workloadPolicy": "projects/p/regions/us-central1/resourcePolicies/big-1"},
        },
        id="gke-labs/tpu-operator docs/gce-api-client.md, group",
    ),
    pytest.param(
        GROUP,
        spec(),
        {
            "baseInstanceName": "big-1-w-###",
            "updatePolicy": {"type": "OPPORTUNISTIC"},
            "instanceTemplate": "projects/p/regions/us-central1/instanceTemplates/big-1",
        },
        id="vllm-project/ci-infra ci_v7x_gce, group; template of the region: wchen99998/skypilot",
    ),
]


@pytest.mark.parametrize(("kind", "asked", "wanted"), ASKED_BY_OTHERS)
def test_each_object_says_what_others_say_there(kind, asked, wanted):
    found = body(kind, asked)
    assert contains(found, wanted), found


def test_three_objects_of_a_region_or_a_group_carry_the_owner_in_their_descriptions_and_hosts_in_labels():
    asked = spec(description="Ablation")
    for kind in (POLICY, TEMPLATE, GROUP):
        description = body(kind, asked)["description"]
        assert description.startswith("Ablation [")
        assert parse_marks(description) == {**OWNER, "tpuctl-zone": "us-central1-c"}
    assert body(TEMPLATE, asked)["properties"]["labels"] == asked.labels
    assert "labels" not in body(TEMPLATE, asked)["properties"]["disks"][0]["initializeParams"]


def test_one_host_is_an_instance_with_paths_of_its_zone():
    found = body(INSTANCE, spec(hosts=1, topology="2x2x1", description="Ablation", tags=("a",)))
    zone = "zones/us-central1-c"
    assert found["machineType"] == f"{zone}/machineTypes/tpu7x-standard-4t"
    assert found["disks"][0]["initializeParams"] == {
        "diskSizeGb": "100",
        "diskType": f"{zone}/diskTypes/hyperdisk-balanced",
        "sourceImage": f"projects/ubuntu-os-accelerator-images/global/images/family/{FAMILY}",
    }
    items = {each["key"]: each["value"] for each in found["metadata"]["items"]}
    assert items == {"ssh-keys": "tpuctl:ssh-ed25519 AAAA", "enable-guest-attributes": "TRUE"}
    assert (found["description"], found["labels"]["tpuctl-user"], found["tags"]["items"]) == (
        "Ablation",
        "ada",
        ["a"],
    )


@pytest.mark.parametrize(
    ("changes", "scheduling"),
    [
        ({}, {}),
        ({"tier": Tier.SPOT}, {"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}),
        (
            {"tier": Tier.SPOT, "run_duration_s": 90.0},
            {
                "provisioningModel": "SPOT",
                "instanceTerminationAction": "STOP",
                "maxRunDuration": {"seconds": "90"},
            },
        ),
        (
            {"run_duration_s": 90.0},
            {"instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": "90"}},
        ),
        ({"tier": Tier.RESERVED}, {}),
    ],
)
def test_how_a_host_ends_follows_from_how_it_is_paid_for(changes, scheduling):
    found = body(TEMPLATE, spec(**changes))["properties"]["scheduling"]
    assert found == {"onHostMaintenance": "TERMINATE", **scheduling}


@pytest.mark.parametrize(
    ("changes", "interface"),
    [
        ({}, {"network": "projects/p/global/networks/default"}),
        ({"network": "training"}, {"network": "projects/p/global/networks/training"}),
        ({"subnetwork": "inner"}, {"subnetwork": "projects/p/regions/us-central1/subnetworks/inner"}),
        ({"network": "projects/host/global/networks/n"}, {"network": "projects/host/global/networks/n"}),
    ],
)
def test_networks_are_full_paths(changes, interface):
    found = body(TEMPLATE, spec(external_ips=False, **changes))["properties"]["networkInterfaces"]
    assert found == [{"nicType": "GVNIC", **interface}]


@pytest.mark.parametrize(
    ("word", "path"),
    [
        (FAMILY, f"projects/ubuntu-os-accelerator-images/global/images/family/{FAMILY}"),
        (f"{FAMILY}-v20260716", f"projects/ubuntu-os-accelerator-images/global/images/{FAMILY}-v20260716"),
        ("projects/mine/global/images/tuned", "projects/mine/global/images/tuned"),
    ],
)
def test_images_are_families_or_single_ones(word, path):
    assert rendering().source_image(word) == path


@pytest.mark.parametrize("length", [5, 50, 51, 55])
def test_base_names_fit_what_compute_engine_takes(length):
    pattern = r"[a-z](([-a-z0-9]{0,57})|([-a-z0-9]{0,51}-#{1,10}(\[[0-9]{1,10}\])?))"
    assert re.fullmatch(pattern, rendering().base_instance_name("b" * length))


def test_the_boot_disk_of_v5p_is_a_persistent_one():
    found = body(TEMPLATE, spec(machine_type="ct5p-hightpu-4t", boot_disk_gib=500))["properties"]["disks"][0]
    assert found["initializeParams"]["diskType"] == "pd-balanced"
    assert found["initializeParams"]["diskSizeGb"] == "500"


@pytest.mark.slow
def test_what_stands_in_for_googles_library_has_all_its_clients_and_messages_and_imports_few() -> None:
    code = """
import sys
from tpuctl.cloud.lean_compute import NAME, compute_v1 as lean
assert lean.DisksClient and lean.Disk
services = {name.split(".")[4] for name in sys.modules if name.startswith(f"{NAME}.services.")}
from google.cloud import compute_v1
assert compute_v1 is lean
del sys.modules[NAME]
import google.cloud.compute_v1 as whole
print(sorted(services), [name for name in whole.__all__ if getattr(lean, name) is not getattr(whole, name)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['disks', 'zone_operations'] []\n"
