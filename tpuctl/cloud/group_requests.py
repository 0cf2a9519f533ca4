"""A slice as Compute Engine wants it: the objects of a `SliceSpec`, as google-cloud-compute's types. Pure.

Several hosts are a workload policy with their topology, an instance template and a managed instance group,
which makes all of them or none; one host is an instance. These three take no labels: whose they are is said in
their descriptions (https://docs.cloud.google.com/compute/docs/tpus/create-tpu-mig-multi-host-slice).
"""

from __future__ import annotations

import re
from typing import Any

from tpuctl.cloud.instances import GUEST_ATTRIBUTES
from tpuctl.cloud.lean_compute import compute_v1 as v1
from tpuctl.lib.names import region_of
from tpuctl.model.cloud import Tier
from tpuctl.model.resources import ZONE_MARK, marks_text
from tpuctl.model.slice_spec import SliceSpec

BOOT_DISK_GIB = 100
"""What hosts of the TPU API have. Images alone ask for 10, which is too little for one environment."""
IMAGES = "ubuntu-os-accelerator-images"
"""Google's project with the images for TPUs."""
_DATED = re.compile(r".*-v[0-9]{8}[a-z]?")
_ALL_APIS = "https://www.googleapis.com/auth/cloud-platform"
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"
_LONGEST_NUMBERED = 52
"""A base name that ends with `-###` has at most 52 characters before that; a longer one gets random letters
(`baseInstanceName` of https://cloud.google.com/compute/docs/reference/rest/v1/instanceGroupManagers)."""


def render_policy(_project: str, name: str, spec: SliceSpec) -> v1.ResourcePolicy:
    """What puts the hosts of a slice into one ICI domain."""
    policy = v1.ResourcePolicyWorkloadPolicy(
        type_="HIGH_THROUGHPUT",
        accelerator_topology=spec.topology or "",
        accelerator_topology_mode="AUTO_CONNECT",
    )
    return v1.ResourcePolicy(
        name=name, region=region_of(spec.zone), description=_marks(spec), workload_policy=policy
    )


def render_template(project: str, name: str, spec: SliceSpec) -> v1.InstanceTemplate:
    """What each host of a slice is like."""
    disk_type = boot_disk_type(spec.machine_type)
    properties = v1.InstanceProperties(
        description=spec.description or None,
        machine_type=spec.machine_type,
        disks=[_boot_disk(spec, disk_type)],
        reservation_affinity=_affinity(spec),
        **_alike(project, spec),
    )
    return v1.InstanceTemplate(name=name, description=_marks(spec), properties=properties)


def render_group(project: str, name: str, spec: SliceSpec) -> v1.InstanceGroupManager:
    """The group: all hosts or none, none replaced by itself."""
    base = f"projects/{project}/regions/{region_of(spec.zone)}"
    return v1.InstanceGroupManager(
        name=name,
        description=_marks(spec),
        base_instance_name=base_instance_name(name),
        instance_template=f"{base}/instanceTemplates/{name}",
        target_size=spec.hosts,
        target_size_policy=v1.InstanceGroupManagerTargetSizePolicy(mode="BULK"),
        instance_lifecycle_policy=v1.InstanceGroupManagerInstanceLifecyclePolicy(
            default_action_on_failure="DO_NOTHING"
        ),
        update_policy=v1.InstanceGroupManagerUpdatePolicy(type_="OPPORTUNISTIC"),
        resource_policies=v1.InstanceGroupManagerResourcePolicies(
            workload_policy=f"{base}/resourcePolicies/{name}"
        ),
    )


def render_instance(project: str, name: str, spec: SliceSpec) -> v1.Instance:
    """The one host of a slice."""
    zone = f"zones/{spec.zone}"
    disk_type = f"{zone}/diskTypes/{boot_disk_type(spec.machine_type)}"
    instance = v1.Instance(
        name=name,
        description=spec.description or None,
        machine_type=f"{zone}/machineTypes/{spec.machine_type}",
        disks=[_boot_disk(spec, disk_type)],
        reservation_affinity=_affinity(spec),
        **_alike(project, spec),
    )
    if spec.tier is Tier.FLEX_START and spec.valid_for_s is not None:
        waits = v1.Duration(seconds=int(spec.valid_for_s))
        instance.params = v1.InstanceParams(request_valid_for_duration=waits)
    return instance


RENDER = {
    "resourcePolicies": render_policy,
    "instanceTemplates": render_template,
    "instanceGroupManagers": render_group,
    "instances": render_instance,
}
"""By the API's name for a kind of object."""


def base_instance_name(group: str) -> str:
    """What the names of a group's hosts are made of: `big-1-w-001` and so on."""
    return f"{group}-w-###" if len(group) + len("-w") <= _LONGEST_NUMBERED else f"{group}-w"


def boot_disk_type(machine_type: str) -> str:
    """v6e and TPU7x take hyperdisks alone; v5p has persistent disks, too, which Google's pages use there."""
    return "pd-balanced" if machine_type.startswith("ct5p-") else "hyperdisk-balanced"


def source_image(word: str) -> str:
    """An image family of Google's images for TPUs, or one of these images, which are dated; a path as it is."""
    if "/" in word:
        return word
    kind = "" if _DATED.fullmatch(word) else "family/"
    return f"projects/{IMAGES}/global/images/{kind}{word}"


def _marks(spec: SliceSpec) -> str:
    return marks_text({**spec.labels, ZONE_MARK: spec.zone}, spec.description or "")


def _alike(project: str, spec: SliceSpec) -> dict[str, Any]:
    """What a template and an instance say alike."""
    metadata = {**spec.metadata, GUEST_ATTRIBUTES: "TRUE"}
    account = v1.ServiceAccount(email=spec.service_account or "default", scopes=[_ALL_APIS])
    return {
        "labels": dict(spec.labels),
        "metadata": v1.Metadata(items=[v1.Items(key=key, value=value) for key, value in metadata.items()]),
        "network_interfaces": [_interface(project, spec)],
        "scheduling": _scheduling(spec),
        "service_accounts": [account],
        "tags": v1.Tags(items=list(spec.tags)) if spec.tags else None,
    }


def _boot_disk(spec: SliceSpec, disk_type: str) -> v1.AttachedDisk:
    made = v1.AttachedDiskInitializeParams(
        disk_size_gb=spec.boot_disk_gib or BOOT_DISK_GIB,
        disk_type=disk_type,
        source_image=source_image(spec.runtime_version),
    )
    return v1.AttachedDisk(boot=True, auto_delete=True, mode="READ_WRITE", initialize_params=made)


def _interface(project: str, spec: SliceSpec) -> v1.NetworkInterface:
    """Names become full paths: a template is of no place in which short ones would be looked up."""
    interface = v1.NetworkInterface(nic_type="GVNIC")
    if spec.network or not spec.subnetwork:
        interface.network = _path(f"projects/{project}/global/networks", spec.network or "default")
    if spec.subnetwork:
        place = f"projects/{project}/regions/{region_of(spec.zone)}/subnetworks"
        interface.subnetwork = _path(place, spec.subnetwork)
    if spec.external_ips:
        interface.access_configs = [v1.AccessConfig(name="External NAT", type_="ONE_TO_ONE_NAT")]
    return interface


def _path(place: str, name: str) -> str:
    return name if "/" in name else f"{place}/{name}"


def _scheduling(spec: SliceSpec) -> v1.Scheduling:
    """TPU hosts cannot be moved. A preempted spot host stops, which leaves the proof. There is one action for
    both, so it also stops when its time is over: its boot disk is billed until a pass or `down` deletes it. All
    others are deleted when their time is over, as nobody might be there to do it."""
    scheduling = v1.Scheduling(on_host_maintenance="TERMINATE")
    if spec.tier is Tier.SPOT:
        scheduling.provisioning_model, scheduling.instance_termination_action = "SPOT", "STOP"
    elif spec.tier is Tier.FLEX_START:
        scheduling.provisioning_model, scheduling.instance_termination_action = "FLEX_START", "DELETE"
    elif spec.tier is Tier.RESERVED and spec.reservation:
        scheduling.provisioning_model, scheduling.instance_termination_action = "RESERVATION_BOUND", "DELETE"
    elif spec.tier is Tier.PREEMPTIBLE:
        scheduling.preemptible, scheduling.automatic_restart = True, False
    if spec.run_duration_s is not None:
        scheduling.max_run_duration = v1.Duration(seconds=int(spec.run_duration_s))
        if not scheduling.instance_termination_action:
            scheduling.instance_termination_action = "DELETE"
    return scheduling


def _affinity(spec: SliceSpec) -> v1.ReservationAffinity | None:
    if spec.tier is Tier.RESERVED and spec.reservation:
        return v1.ReservationAffinity(
            consume_reservation_type="SPECIFIC_RESERVATION", key=_RESERVATION_KEY, values=[spec.reservation]
        )
    if spec.tier is Tier.FLEX_START:
        return v1.ReservationAffinity(consume_reservation_type="NO_RESERVATION")
    return None
