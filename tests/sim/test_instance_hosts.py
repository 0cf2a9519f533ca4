"""Hosts behind instances, through Google's own client and real ssh."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import NotFound
from google.auth.credentials import AnonymousCredentials

from tests.sim.test_instances import AT, IMAGE, ZONE
from tests.support.hosts import TIERS, require_tier, wait_until
from tests.support.sim import RunningSim, running_sim

if TYPE_CHECKING:
    from google.cloud import compute_v1

pytestmark = pytest.mark.slow

METADATA = "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"


class Cloud:
    """Google's clients of Compute Engine, and ssh to the hosts of instances."""

    def __init__(self, sim: RunningSim, folder: Path) -> None:
        from google.cloud import (
            compute_v1,
        )  # takes two seconds, for which the collection of tests does not wait

        self.v1 = compute_v1
        self.sim = sim
        options: Any = {
            "credentials": AnonymousCredentials(),
            "client_options": ClientOptions(api_endpoint=sim.endpoint),
        }
        self.instances = compute_v1.InstancesClient(**options)
        self.disks = compute_v1.DisksClient(**options)
        self.operations = compute_v1.ZoneOperationsClient(**options)
        token = (("authorization", f"Bearer {sim.token}"),)
        self.at: Any = {"project": "sim-project", "zone": ZONE, "metadata": token}
        self.key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)

    def wait(self, operation: Any) -> None:
        done = self.operations.wait(operation=operation.name, **self.at)
        assert done.status == self.v1.Operation.Status.DONE
        assert not done.error.errors

    def make(self, name: str) -> compute_v1.Instance:
        items = {
            "ssh-keys": f"alice:{self.key.with_suffix('.pub').read_text().strip()}",
            "enable-guest-attributes": "TRUE",
        }
        boot = self.v1.AttachedDisk(
            boot=True,
            auto_delete=True,
            initialize_params=self.v1.AttachedDiskInitializeParams(
                source_image=IMAGE, disk_size_gb=20, disk_type=f"zones/{ZONE}/diskTypes/hyperdisk-balanced"
            ),
        )
        access = self.v1.AccessConfig(name="External NAT", type_="ONE_TO_ONE_NAT")
        instance = self.v1.Instance(
            name=name,
            machine_type=f"zones/{ZONE}/machineTypes/ct6e-standard-4t",
            disks=[boot],
            network_interfaces=[
                self.v1.NetworkInterface(network="global/networks/default", access_configs=[access])
            ],
            metadata=self.v1.Metadata(
                items=[self.v1.Items(key=key, value=value) for key, value in items.items()]
            ),
            scheduling=self.v1.Scheduling(on_host_maintenance="TERMINATE"),
            service_accounts=[
                self.v1.ServiceAccount(
                    email="default", scopes=["https://www.googleapis.com/auth/cloud-platform"]
                )
            ],
        )
        self.wait(self.instances.insert_unary(instance_resource=instance, **self.at))
        return self.get(name)

    def get(self, name: str) -> compute_v1.Instance:
        return self.instances.get(instance=name, **self.at)

    def ssh(self, name: str, command: str) -> str:
        address = self.get(name).network_interfaces[0].access_configs[0].nat_i_p
        words = [
            *(
                "ssh",
                "-i",
                str(self.key),
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
            ),
            *("-o", "LogLevel=ERROR", "-p", str(self.sim.ssh_port), f"alice@{address}", command),
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def told(self, name: str, path: str) -> str:
        return self.ssh(name, f"curl -sf -H Metadata-Flavor:Google {METADATA}/{path}")


@pytest.fixture(scope="module", params=TIERS)
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """With the instances one and two."""
    require_tier(request.param)
    folder = tmp_path_factory.mktemp("cloud")
    with running_sim(folder, hosts=request.param) as sim:
        cloud = Cloud(sim, folder)
        for name in ("one", "two"):
            cloud.make(name)
        yield cloud


def test_a_host_knows_who_it_is_and_its_key_is_in_the_guest_attributes(cloud: Cloud) -> None:
    assert cloud.ssh("one", "hostname") == "one"
    assert cloud.told("one", "attributes/accelerator-type") == "v6e-4"
    assert "TOPOLOGY: '2x2'" in cloud.told("one", "attributes/tpu-env")
    assert cloud.told("one", "machine-type").endswith("/ct6e-standard-4t")
    assert cloud.told("one", "preempted") == "FALSE"
    found = cloud.instances.get_guest_attributes(
        request={"instance": "one", "project": "sim-project", "zone": ZONE, "query_path": "hostkeys/"},
        metadata=cloud.at["metadata"],
    )
    address = cloud.get("one").network_interfaces[0].access_configs[0].nat_i_p
    scanned = subprocess.run(
        ["ssh-keyscan", "-t", "ed25519", "-p", str(cloud.sim.ssh_port), address],
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    assert [each.value for each in found.query_value.items] == [scanned.split()[-1]]


def test_a_host_that_was_stopped_comes_back_with_its_files(cloud: Cloud) -> None:
    cloud.ssh("one", "echo kept > file")
    boot = cloud.get("one").last_start_timestamp
    cloud.wait(cloud.instances.stop_unary(instance="one", **cloud.at))
    assert cloud.get("one").status == "TERMINATED"
    cloud.wait(cloud.instances.start_unary(instance="one", **cloud.at))
    wait_until(lambda: cloud.ssh("one", "cat file") == "kept")
    assert cloud.get("one").last_start_timestamp > boot


def test_hosts_find_each_other_by_name_and_write_to_the_disks_that_they_have(cloud: Cloud) -> None:
    if not cloud.sim.simulator.hosts.resolves:
        pytest.skip("hosts of the process tier have this machine's network and no devices")
    assert cloud.ssh("two", "getent hosts one").split()[0] == cloud.get("one").network_interfaces[0].network_i_p
    disk = cloud.v1.Disk(name="data", size_gb=10, type_=f"zones/{ZONE}/diskTypes/hyperdisk-balanced")
    cloud.wait(cloud.disks.insert_unary(disk_resource=disk, **cloud.at))
    source = f"projects/sim-project/zones/{ZONE}/disks/data"
    asked = cloud.v1.AttachedDisk(source=source, device_name="data", mode="READ_WRITE")
    at = {"attached_disk_resource": asked, **cloud.at}
    cloud.wait(cloud.instances.attach_disk_unary(instance="one", **at))
    mount = "sudo mkdir -p /mnt/d && sudo mount /dev/nvme0n2 /mnt/d"
    cloud.ssh(
        "one", f"sudo mkfs.ext4 -q /dev/nvme0n2 && {mount} && echo x | sudo tee /mnt/d/f && sudo umount /mnt/d"
    )
    cloud.wait(cloud.instances.detach_disk_unary(instance="one", device_name="data", **cloud.at))
    assert cloud.ssh("one", "ls /dev/nvme0n2 2>/dev/null || echo none") == "none"
    cloud.wait(cloud.instances.attach_disk_unary(instance="two", **at))
    assert cloud.ssh("two", f"{mount} && cat /mnt/d/f") == "x"


def test_a_host_that_is_preempted_hears_of_it_and_is_off(cloud: Cloud) -> None:
    cloud.make("three")
    told = f"curl -sf -H Metadata-Flavor:Google {METADATA}/preempted"
    cloud.ssh("three", f"(trap '{told} > heard; exit' TERM; sleep 100 & wait) > /dev/null 2>&1 & sleep 0.5")
    answer = cloud.sim.call("POST", "_sim/preempt", json={"node": "three"})
    assert answer.json() == [f"projects/sim-project/locations/{ZONE}/instances/three"]
    assert cloud.get("three").status == "TERMINATED"
    request = {"project": "sim-project", "zone": ZONE, "filter": "operationType=compute.instances.preempted"}
    [found] = cloud.operations.list(request=request, metadata=cloud.at["metadata"])
    assert found.target_link.endswith(f"{AT}/three")
    cloud.wait(cloud.instances.start_unary(instance="three", **cloud.at))
    wait_until(lambda: cloud.ssh("three", "cat heard") == "TRUE")
    cloud.wait(cloud.instances.delete_unary(instance="three", **cloud.at))
    with pytest.raises(NotFound):
        cloud.get("three")
