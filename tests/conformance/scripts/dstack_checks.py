"""The TPU parts of dstack's Google Cloud backend: what its server calls for an instance and its volume."""

import os
import time
import uuid
from datetime import UTC, datetime

from checks import check, main, raises, sim
from dstack._internal.core.backends.gcp import auth
from dstack._internal.core.backends.gcp import resources as gcp_resources
from dstack._internal.core.backends.gcp.compute import GCPCompute
from dstack._internal.core.backends.gcp.models import GCPConfig, GCPDefaultCreds
from dstack._internal.core.errors import BackendAuthError, ComputeError, NoCapacityError, ProvisioningError
from dstack._internal.core.models.backends.base import BackendType
from dstack._internal.core.models.instances import (
    Gpu,
    InstanceAvailability,
    InstanceConfiguration,
    InstanceOfferWithAvailability,
    InstanceType,
    Resources,
    SSHKey,
)
from dstack._internal.core.models.volumes import GCPVolumeConfiguration, Volume, VolumeStatus

PROJECT, REGION, ZONE = os.environ["GOOGLE_CLOUD_PROJECT"], "us-central2", "us-central2-b"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ6u0hZ2eQbVpVYc2YkX0C2Z9aV1mV0kq7Qv0g0Yz0aa dstack"
compute = GCPCompute(GCPConfig(project_id=PROJECT, regions=[REGION], tpu=True, creds=GCPDefaultCreds()))
seen = {}


def offer(kind="v4-8", spot=False, zones=(ZONE,)):
    resources = Resources(
        cpus=240, memory_mib=400 * 1024, gpus=[Gpu(name=kind, memory_mib=32 * 1024)], spot=spot
    )
    return InstanceOfferWithAvailability(
        backend=BackendType.GCP,
        instance=InstanceType(name=kind, resources=resources),
        region=REGION,
        price=12.88,
        availability=InstanceAvailability.AVAILABLE,
        availability_zones=list(zones),
    )


def create(*args, **options):
    config = InstanceConfiguration(
        project_name="main",
        instance_name=f"job-{uuid.uuid4().hex[:6]}",
        user="admin",
        ssh_keys=[SSHKey(public=PUBLIC_KEY)],
    )
    return compute.create_instance(offer(*args, **options), config, None)


def update(instance):
    compute.update_provisioning_data(instance, PUBLIC_KEY, "")


def node(instance):
    name = f"projects/{PROJECT}/locations/{ZONE}/nodes/{instance.instance_id}"
    return compute.tpu_client.get_node(name=name)


def volume(name):
    now = datetime.now(UTC)
    return Volume(
        id=uuid.uuid4(),
        name=name,
        user="admin",
        project_name="main",
        configuration=GCPVolumeConfiguration(name=name, region=REGION, size="100GB", volume_id=None),
        external=False,
        created_at=now,
        last_processed_at=now,
        status=VolumeStatus.ACTIVE,
        deleted=False,
    )


def terminate(instance):
    compute.terminate_instance(instance.instance_id, instance.region, instance.backend_data)


@check
def credentials():
    """default credentials are good for the project, and not for another one"""
    auth.authenticate(GCPDefaultCreds(), PROJECT)
    raises(BackendAuthError, auth.authenticate, GCPDefaultCreds(), "no-such-project")


@check
def zones():
    """the zones of a region"""
    assert ZONE in gcp_resources.get_availability_zones(compute.regions_client, PROJECT, REGION)


@check
def vpc():
    """the default network has a usable subnetwork there, and another one has none"""
    options = {
        "subnetworks_client": compute.subnetworks_client,
        "routers_client": compute.routers_client,
        "project_id": PROJECT,
        "regions": [REGION],
        "allocate_public_ip": True,
    }
    gcp_resources.check_vpc(**options)
    raises(ComputeError, gcp_resources.check_vpc, **options, vpc_name="none")


@check
def quotas():
    """the quotas of the regions"""
    listed = {each.name: each.quotas for each in compute.regions_client.list(project=PROJECT)}
    assert listed[REGION]


@check
def create_instance():
    """create_instance makes a firewall rule and a node"""
    seen["one"] = create()
    assert (seen["one"].availability_zone, seen["one"].hostname) == (ZONE, None)
    rules = [each.name for each in compute.firewalls_client.list(project=PROJECT)]
    assert [each for each in rules if each.startswith("dstack-ssh-in")], rules


@check
def provisioned():
    """update_provisioning_data finds the addresses"""
    update(seen["one"])
    assert seen["one"].hostname
    assert seen["one"].internal_ip


@check
def labelled():
    """the node has dstack's labels, keys and startup script"""
    found = node(seen["one"])
    assert found.labels["owner"] == "dstack"
    assert found.metadata["ssh-keys"].startswith("ubuntu:ssh-ed25519")
    assert found.metadata["startup-script"]


@check
def create_volume():
    """create_volume makes a balanced disk"""
    made = volume("data")
    made.provisioning_data = compute.create_volume(made)
    made.volume_id = made.provisioning_data.volume_id
    assert made.provisioning_data.size_gb == 100
    assert made.provisioning_data.availability_zone in gcp_resources.get_availability_zones(
        compute.regions_client, PROJECT, REGION
    )
    seen["volume"] = made


@check
def register_volume():
    """register_volume finds a disk of any zone"""
    other = volume("again")
    other.configuration.volume_id = seen["volume"].volume_id
    assert (
        compute.register_volume(other).availability_zone == seen["volume"].provisioning_data.availability_zone
    )
    other.configuration.volume_id = "none"
    raises(ComputeError, compute.register_volume, other)


@check
def attach():
    """attach_volume, and once more"""
    made = seen["volume"]
    for _ in range(2):
        made.attachment_data = compute.attach_volume(made, seen["one"])
        assert made.attachment_data.device_name == "persistent-disk-1"
    assert [each.source_disk.rpartition("/")[2] for each in node(seen["one"]).data_disks] == [made.volume_id]


@check
def detach():
    """detach_volume and delete_volume"""
    compute.detach_volume(seen["volume"], seen["one"])
    assert not node(seen["one"]).data_disks
    compute.delete_volume(seen["volume"])
    compute.delete_volume(seen["volume"])


@check
def stockout():
    """no capacity sends it to the next zone, and then it gives up"""
    sim("fault", "stockout", "--set", "times=1")
    raises(NoCapacityError, create)
    raises(NoCapacityError, create, zones=())


@check
def unknown():
    """an unknown accelerator type and an unknown zone are refused"""
    raises(Exception, create, "v4-16384")
    raises(Exception, create, zones=["us-mars1-a"])


@check
def preempted():
    """a preempted instance is no longer provisioned"""
    spot = create(spot=True)
    assert node(spot).scheduling_config.preemptible
    sim("preempt", spot.instance_id)
    end = time.monotonic() + 60
    while node(spot).state.name != "PREEMPTED":
        assert time.monotonic() < end
        time.sleep(1)
    raises(ProvisioningError, update, spot)
    terminate(spot)


@check
def delete():
    """terminate_instance, twice; then it is not found"""
    terminate(seen["one"])
    end = time.monotonic() + 60
    while gcp_has(seen["one"]):
        assert time.monotonic() < end
        time.sleep(1)
    terminate(seen["one"])
    raises(ProvisioningError, update, seen["one"])


def gcp_has(instance):
    return instance.instance_id in [
        each.name.rpartition("/")[2]
        for each in compute.tpu_client.list_nodes(parent=f"projects/{PROJECT}/locations/{ZONE}")
    ]


main()
