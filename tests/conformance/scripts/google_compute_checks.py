"""google-cloud-compute by default construction: places, disks, snapshots, operations, refusals."""

import os
import time
import uuid

from checks import check, main, raises
from google.api_core import exceptions
from google.cloud import compute_v1

PROJECT = os.environ["GOOGLE_CLOUD_PROJECT"]
ZONE, OTHER_ZONE, REGION = "us-central2-b", "europe-west4-b", "us-central2"
WAIT_S = 60
disks, snapshots, images = compute_v1.DisksClient(), compute_v1.SnapshotsClient(), compute_v1.ImagesClient()
addresses, zones, regions = compute_v1.AddressesClient(), compute_v1.ZonesClient(), compute_v1.RegionsClient()
operations = compute_v1.ZoneOperationsClient()


def type_of(name, zone=ZONE):
    return f"projects/{PROJECT}/zones/{zone}/diskTypes/{name}"


def make_disk(name, zone=ZONE, kind="pd-balanced", **fields):
    asked = compute_v1.Disk(name=name, type_=type_of(kind, zone), **fields)
    disks.insert(project=PROJECT, zone=zone, disk_resource=asked).result(WAIT_S)
    return disks.get(project=PROJECT, zone=zone, disk=name)


def names(client, **request):
    return [each.name for each in client.list(request={"project": PROJECT, **request})]


def refused(kind, text, call, **request):
    error = raises(kind, call, request={"project": PROJECT, **request})
    assert text in str(error), error
    return error


@check
def project():
    """the project with its quotas"""
    found = compute_v1.ProjectsClient().get(project=PROJECT)
    assert found.name == PROJECT
    assert "HEALTH_CHECKS" in [each.metric for each in found.quotas]


@check
def no_project():
    """another project is denied or not found"""
    raises((exceptions.Forbidden, exceptions.NotFound), compute_v1.ProjectsClient().get, project="not-mine-1")


@check
def zones_listed():
    """zones: listed, in pages of two, read, an unknown one not found"""
    everything = names(zones)
    assert {ZONE, OTHER_ZONE} <= set(everything)
    pages = list(zones.list(request={"project": PROJECT, "max_results": 2}).pages)
    assert [each.name for page in pages for each in page.items] == everything
    assert all(len(page.items) == 2 for page in pages[:-1])
    found = zones.get(project=PROJECT, zone=ZONE)
    assert (found.status, found.region.rsplit("/", 1)[-1]) == ("UP", REGION)
    refused(exceptions.NotFound, "was not found", zones.get, zone="mars-1")


@check
def zones_filtered():
    """zones by filter: equality, eq with a pattern, AND, NOT, an order"""
    assert names(zones, filter=f"name={ZONE}") == [ZONE]
    assert names(zones, filter='name eq "us-central2-.*"') == [ZONE]
    assert ZONE not in names(zones, filter=f"name != {ZONE}")
    assert names(zones, filter=f"(name = {ZONE}) (status = UP)") == [ZONE]
    assert names(zones, filter=f"status = UP AND NOT name = {OTHER_ZONE} AND name = {OTHER_ZONE}") == []
    assert names(zones, order_by="name") == sorted(names(zones))


@check
def regions_listed():
    """regions: listed, read with zones and quotas"""
    assert REGION in names(regions)
    found = regions.get(project=PROJECT, region=REGION)
    assert ZONE in [each.rsplit("/", 1)[-1] for each in found.zones]
    assert "IN_USE_ADDRESSES" in [each.metric for each in found.quotas]


@check
def machine_types():
    """machine types: of a zone, by filter, aggregated, an unknown one"""
    client = compute_v1.MachineTypesClient()
    assert "n1-standard-4" in names(client, zone=ZONE)
    assert client.get(project=PROJECT, zone=ZONE, machine_type="n1-standard-4").guest_cpus == 4
    assert names(client, zone=ZONE, filter="guestCpus = 4 AND name : n1-*") == ["n1-standard-4"]
    scoped = dict(client.aggregated_list(request={"project": PROJECT, "filter": "name = n1-standard-1"}))
    assert [each.name for each in scoped[f"zones/{ZONE}"].machine_types] == ["n1-standard-1"]
    refused(exceptions.NotFound, "was not found", client.get, zone=ZONE, machine_type="n0")


@check
def disk_types():
    """disk types: of a zone, read, aggregated"""
    client = compute_v1.DiskTypesClient()
    assert {"pd-standard", "pd-balanced", "pd-ssd"} <= set(names(client, zone=ZONE))
    assert client.get(project=PROJECT, zone=ZONE, disk_type="pd-ssd").valid_disk_size
    assert f"zones/{ZONE}" in dict(client.aggregated_list(project=PROJECT))
    refused(exceptions.NotFound, "was not found", client.get, zone=ZONE, disk_type="pd-none")


@check
def networks():
    """networks, subnetworks, firewalls"""
    assert names(compute_v1.NetworksClient()) == ["default"]
    assert compute_v1.NetworksClient().get(project=PROJECT, network="default").auto_create_subnetworks
    subnets = compute_v1.SubnetworksClient()
    assert subnets.get(project=PROJECT, region=REGION, subnetwork="default").ip_cidr_range
    assert f"regions/{REGION}" in dict(subnets.aggregated_list(project=PROJECT))
    assert "default-allow-ssh" in names(compute_v1.FirewallsClient())


@check
def empty():
    """instances, reservations and GPU types: lists that are empty, and aggregated ones that say so by zone"""
    for client in (
        compute_v1.InstancesClient(),
        compute_v1.ReservationsClient(),
        compute_v1.AcceleratorTypesClient(),
    ):
        assert names(client, zone=ZONE) == []
        scoped = dict(client.aggregated_list(project=PROJECT))
        assert scoped[f"zones/{ZONE}"].warning.code == "NO_RESULTS_ON_PAGE"


@check
def disk_made():
    """a disk: inserted, the operation waited for, read"""
    found = make_disk("d-1", size_gb=20, labels={"team": "x"}, description="mine")
    assert (found.size_gb, found.status, dict(found.labels)) == (20, "READY", {"team": "x"})
    assert found.type_.endswith(type_of("pd-balanced"))
    assert found.physical_block_size_bytes == 4096
    assert found.label_fingerprint
    assert found.self_link.endswith(f"zones/{ZONE}/disks/d-1")


@check
def default_size():
    """a disk without a size is as large as the API says: 500 GB of pd-standard"""
    assert make_disk("d-2", kind="pd-standard").size_gb == 500


@check
def operation_of_insert():
    """the operation of an insertion: its kind, target and end; waited for; read; listed"""
    asked = compute_v1.Disk(name="d-3", type_=type_of("pd-ssd"), size_gb=10)
    begun = disks.insert(project=PROJECT, zone=ZONE, disk_resource=asked)
    name = begun.name
    done = operations.wait(project=PROJECT, zone=ZONE, operation=name)
    assert (done.operation_type, done.status.name, done.progress) == ("insert", "DONE", 100)
    assert done.target_link.endswith("/disks/d-3")
    assert done.end_time >= done.insert_time
    assert operations.get(project=PROJECT, zone=ZONE, operation=name).target_id == done.target_id
    assert name in names(operations, zone=ZONE, filter="operationType = insert")
    assert name not in names(operations, zone=ZONE, filter="operationType = delete")
    everywhere = dict(compute_v1.GlobalOperationsClient().aggregated_list(project=PROJECT))
    assert name in [each.name for each in everywhere[f"zones/{ZONE}"].operations]
    refused(exceptions.NotFound, "was not found", operations.wait, zone=ZONE, operation="operation-none")


@check
def repeated():
    """a request that is repeated with its requestId gets the same operation"""
    request = {
        "project": PROJECT,
        "zone": ZONE,
        "request_id": str(uuid.uuid4()),
        "disk_resource": compute_v1.Disk(name="d-4", type_=type_of("pd-ssd"), size_gb=10),
    }
    first, second = disks.insert(request=request), disks.insert(request=request)
    assert first.name == second.name
    first.result(WAIT_S)


@check
def disks_listed():
    """disks of a zone: by label, by size, in pages, newest first"""
    assert names(disks, zone=ZONE) == ["d-1", "d-2", "d-3", "d-4"]
    assert names(disks, zone=ZONE, filter="labels.team = x") == ["d-1"]
    assert names(disks, zone=ZONE, filter="labels.team:*") == ["d-1"]
    assert names(disks, zone=ZONE, filter="sizeGb > 15") == ["d-1", "d-2"]
    assert names(disks, zone=ZONE, filter="name ne d-[12]") == ["d-3", "d-4"]
    pages = list(disks.list(request={"project": PROJECT, "zone": ZONE, "max_results": 3}).pages)
    assert [len(page.items) for page in pages] == [3, 1]
    assert names(disks, zone=ZONE, order_by="creationTimestamp desc")[0] == "d-4"
    assert names(disks, zone=OTHER_ZONE) == []


@check
def disks_aggregated():
    """disks of all zones: each in its zone, the others with a warning; by filter; in pages"""
    make_disk("e-1", zone=OTHER_ZONE, size_gb=10)
    scoped = dict(disks.aggregated_list(project=PROJECT))
    assert [each.name for each in scoped[f"zones/{ZONE}"].disks] == ["d-1", "d-2", "d-3", "d-4"]
    assert [each.name for each in scoped[f"zones/{OTHER_ZONE}"].disks] == ["e-1"]
    bare = [scope for scope, each in scoped.items() if not each.disks]
    assert all(scoped[scope].warning.code == "NO_RESULTS_ON_PAGE" for scope in bare)
    request = {"project": PROJECT, "filter": "name : e-*"}
    found = [
        (scope, each.name) for scope, part in disks.aggregated_list(request=request) for each in part.disks
    ]
    assert found == [(f"zones/{OTHER_ZONE}", "e-1")]
    paged = disks.aggregated_list(request={"project": PROJECT, "max_results": 2})
    seen = [each.name for _, part in paged for each in part.disks]
    assert sorted(seen) == ["d-1", "d-2", "d-3", "d-4", "e-1"]


@check
def disks_refused():
    """disks: a name twice, a wrong name, type, size, label and zone, one that is not there"""
    wrong = {
        "already exists": (exceptions.Conflict, {"name": "d-1"}),
        "Must be a match of regex": (exceptions.BadRequest, {"name": "D_1"}),
        "diskTypes/pd-none": (exceptions.GoogleAPICallError, {"name": "w", "type_": type_of("pd-none")}),
        "Disk size": (exceptions.BadRequest, {"name": "w", "size_gb": 1_000_000}),
        "abel": (exceptions.BadRequest, {"name": "w", "labels": {"Team": "x"}}),
    }
    for text, (kind, fields) in wrong.items():
        refused(kind, text, disks.insert, zone=ZONE, disk_resource=compute_v1.Disk(**fields))
    there = compute_v1.Disk(name="w")
    refused(exceptions.BadRequest, "Unknown zone", disks.insert, zone="mars-1", disk_resource=there)
    error = refused(exceptions.NotFound, "was not found", disks.get, zone=ZONE, disk="none")
    assert error.errors[0]["reason"] == "notFound"
    refused(exceptions.NotFound, "was not found", disks.delete, zone=ZONE, disk="none")


@check
def lists_refused():
    """lists: a filter that cannot be read, too large a page, an unknown order, an unknown token"""
    for field, value in {
        "filter": "name = (",
        "max_results": 501,
        "order_by": "sizeGb",
        "page_token": "x",
    }.items():
        refused(exceptions.BadRequest, "nvalid", disks.list, zone=ZONE, **{field: value})


@check
def snapshots_made():
    """a snapshot, by its disk and by itself: the operation's target, listed by filter, read, deleted"""
    asked = compute_v1.Snapshot(name="s-1", labels={"a": "b"}, storage_locations=["us"])
    begun = disks.create_snapshot(project=PROJECT, zone=ZONE, disk="d-1", snapshot_resource=asked)
    assert begun.target_link.endswith("/disks/d-1")
    begun.result(WAIT_S)
    found = snapshots.get(project=PROJECT, snapshot="s-1")
    assert (found.disk_size_gb, found.status, list(found.storage_locations)) == (20, "READY", ["us"])
    assert found.source_disk.endswith("/disks/d-1")
    source = disks.get(project=PROJECT, zone=ZONE, disk="d-1")
    assert found.source_disk_id == str(source.id)
    itself = compute_v1.Snapshot(name="s-2", source_disk=source.self_link)
    snapshots.insert(project=PROJECT, snapshot_resource=itself).result(WAIT_S)
    assert names(snapshots) == ["s-1", "s-2"]
    assert names(snapshots, filter="labels.a = b") == ["s-1"]
    refused(exceptions.NotFound, "was not found", snapshots.get, snapshot="none")
    refused(
        exceptions.NotFound,
        "was not found",
        disks.create_snapshot,
        zone=ZONE,
        disk="none",
        snapshot_resource=asked,
    )
    snapshots.delete(project=PROJECT, snapshot="s-2").result(WAIT_S)
    assert names(snapshots) == ["s-1"]


@check
def images_made():
    """an image of a disk: made, listed, read, deleted"""
    source = disks.get(project=PROJECT, zone=ZONE, disk="d-1").self_link
    asked = compute_v1.Image(name="i-1", source_disk=source, family="mine")
    images.insert(project=PROJECT, image_resource=asked).result(WAIT_S)
    assert names(images, filter="family = mine") == ["i-1"]
    assert images.get(project=PROJECT, image="i-1").disk_size_gb == 20
    images.delete(project=PROJECT, image="i-1").result(WAIT_S)
    assert names(images) == []


@check
def addresses_made():
    """addresses: of a region and global, listed, aggregated, released"""
    addresses.insert(project=PROJECT, region=REGION, address_resource=compute_v1.Address(name="a-1")).result(
        WAIT_S
    )
    found = addresses.get(project=PROJECT, region=REGION, address="a-1")
    assert (found.status, found.address_type) == ("RESERVED", "EXTERNAL")
    assert found.address
    everywhere = compute_v1.GlobalAddressesClient()
    everywhere.insert(project=PROJECT, address_resource=compute_v1.Address(name="g-1")).result(WAIT_S)
    scoped = dict(addresses.aggregated_list(project=PROJECT))
    assert [each.name for each in scoped[f"regions/{REGION}"].addresses] == ["a-1"]
    assert [each.name for each in scoped["global"].addresses] == ["g-1"]
    addresses.delete(project=PROJECT, region=REGION, address="a-1").result(WAIT_S)
    everywhere.delete(project=PROJECT, address="g-1").result(WAIT_S)
    assert names(addresses, region=REGION) == []


TPU_ZONE, TPU_REGION = "us-east5-a", "us-east5"
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
policies, templates = compute_v1.ResourcePoliciesClient(), compute_v1.RegionInstanceTemplatesClient()
groups, instances = compute_v1.InstanceGroupManagersClient(), compute_v1.InstancesClient()


def template_properties():
    params = compute_v1.AttachedDiskInitializeParams(
        source_image=IMAGE,
        disk_size_gb=100,
        disk_type="hyperdisk-balanced",
    )
    return compute_v1.InstanceProperties(
        machine_type="ct6e-standard-4t",
        disks=[compute_v1.AttachedDisk(boot=True, auto_delete=True, initialize_params=params)],
        network_interfaces=[compute_v1.NetworkInterface(network="global/networks/default")],
        scheduling=compute_v1.Scheduling(on_host_maintenance="TERMINATE"),
    )


@check
def group_made():
    """a group of TPU instances: its policy and template first; then stable, with its members"""
    workload = compute_v1.ResourcePolicyWorkloadPolicy(type_="HIGH_THROUGHPUT", accelerator_topology="4x4")
    policy = compute_v1.ResourcePolicy(name="p", workload_policy=workload)
    policies.insert(project=PROJECT, region=TPU_REGION, resource_policy_resource=policy).result(WAIT_S)
    template = compute_v1.InstanceTemplate(name="t", properties=template_properties())
    templates.insert(project=PROJECT, region=TPU_REGION, instance_template_resource=template).result(WAIT_S)
    asked = compute_v1.InstanceGroupManager(
        name="g",
        base_instance_name="g-w-###",
        instance_template=f"regions/{TPU_REGION}/instanceTemplates/t",
        target_size=4,
        target_size_policy=compute_v1.InstanceGroupManagerTargetSizePolicy(mode="BULK"),
        resource_policies=compute_v1.InstanceGroupManagerResourcePolicies(
            workload_policy=f"regions/{TPU_REGION}/resourcePolicies/p"
        ),
    )
    where = {"project": PROJECT, "zone": TPU_ZONE}
    groups.insert(**where, instance_group_manager_resource=asked).result(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while not groups.get(**where, instance_group_manager="g").status.is_stable:
        assert time.monotonic() < deadline, groups.get(**where, instance_group_manager="g").status
    found = groups.get(**where, instance_group_manager="g")
    assert found.status.applied_accelerator_topologies[0].state == "ACTIVE"
    members = list(groups.list_managed_instances(**where, instance_group_manager="g"))
    assert [each.name for each in members] == [f"g-w-00{n}" for n in (1, 2, 3, 4)]
    assert {each.instance_status for each in members} == {"RUNNING"}
    refused(
        exceptions.BadRequest, "already being used by", policies.delete, region=TPU_REGION, resource_policy="p"
    )


@check
def group_deleted():
    """a group goes with its members; then nothing uses its template and policy"""
    where = {"project": PROJECT, "zone": TPU_ZONE}
    groups.delete(**where, instance_group_manager="g").result(WAIT_S)
    assert (names(groups, zone=TPU_ZONE), names(instances, zone=TPU_ZONE)) == ([], [])
    templates.delete(project=PROJECT, region=TPU_REGION, instance_template="t").result(WAIT_S)
    policies.delete(project=PROJECT, region=TPU_REGION, resource_policy="p").result(WAIT_S)


@check
def unimplemented():
    """what is not simulated is refused: nothing that clients take for an answer or repeat"""
    group = compute_v1.InstanceGroupManager(name="g", target_size=1)
    regional = {"region": REGION, "instance_group_manager_resource": group}
    for call, request in (
        (compute_v1.RegionInstanceGroupManagersClient().insert, regional),
        (compute_v1.RoutersClient().list, {"region": REGION}),
        (compute_v1.HealthChecksClient().list, {}),
    ):
        error = refused(exceptions.GoogleAPICallError, "does not implement", call, **request)
        assert error.code in (400, 412), error


@check
def deleted():
    """disks are deleted and gone"""
    for name in names(disks, zone=ZONE):
        disks.delete(project=PROJECT, zone=ZONE, disk=name).result(WAIT_S)
    assert names(disks, zone=ZONE) == []
    refused(exceptions.NotFound, "was not found", disks.delete, zone=ZONE, disk="d-1")


main()
