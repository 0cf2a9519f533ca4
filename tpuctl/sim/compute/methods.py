"""The methods of Compute Engine that the simulator has besides get, list, insert and delete, and what each asks
for: the type of its body, its query parameters, its permission. A method is named as in the discovery document,
without the scope: `disks.resize`."""

from __future__ import annotations

from collections.abc import Mapping

CHANGES: Mapping[str, str] = {
    "disks.createSnapshot": "Snapshot",
    "disks.resize": "DisksResizeRequest",
    "disks.setLabels": "ZoneSetLabelsRequest",
    "disks.update": "Disk",
    "firewalls.patch": "Firewall",
    "instances.attachDisk": "AttachedDisk",
    "instances.detachDisk": "",
    "instances.setLabels": "InstancesSetLabelsRequest",
    "instances.setMetadata": "Metadata",
    "instances.start": "",
    "instances.stop": "",
    "instanceGroupManagers.deleteInstances": "InstanceGroupManagersDeleteInstancesRequest",
    "instanceGroupManagers.patch": "InstanceGroupManager",
    "instanceGroupManagers.recreateInstances": "InstanceGroupManagersRecreateInstancesRequest",
    "instanceGroupManagers.resize": "",
    "snapshots.setLabels": "GlobalSetLabelsRequest",
}
"""Methods that change what is there, and the types of their bodies; empty where they have none."""
READS: Mapping[str, str] = {
    "instanceGroupManagers.listErrors": "GET",
    "instanceGroupManagers.listManagedInstances": "POST",
    "instanceGroups.listInstances": "POST",
    "instances.getGuestAttributes": "GET",
}
"""Methods that read something of a resource, and their HTTP methods."""
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "instances.attachDisk": ("forceAttach",),
    "instances.detachDisk": ("deviceName",),
    "instanceGroupManagers.resize": ("size",),
}
"""Query parameters of methods of both kinds that belong to what is asked; they are given on with the body."""
UPDATED = ("accessMode", "provisionedThroughput")
"""What `disks.update` changes, one at a time."""
LIKE = {"snapshots.aggregatedList": "disks.aggregatedList"}
"""Methods that only the beta has, with the same parameters as another."""
_VERBS: Mapping[str, str] = {"insert": "create", "aggregatedList": "list", "wait": "get"}
"""What permissions call them (https://cloud.google.com/iam/docs/roles-permissions/compute)."""
_PERMISSIONS: Mapping[str, str] = {
    "firewalls.patch": "firewalls.update",
    **{
        f"instanceGroupManagers.{verb}": "instanceGroupManagers.update"
        for verb in ("deleteInstances", "patch", "recreateInstances", "resize")
    },
    **{
        f"instanceGroupManagers.{verb}": "instanceGroupManagers.get"
        for verb in ("listErrors", "listManagedInstances")
    },
    "instanceGroups.listInstances": "instanceGroups.list",
}


def permission_of(method: str) -> str:
    """What a caller must be allowed to do: `disks.insert` asks for compute.disks.create."""
    collection, _, verb = method.partition(".")
    return f"compute.{_PERMISSIONS.get(method, f'{collection}.{_VERBS.get(verb, verb)}')}"
