"""The one way in which anything of ours is deleted: read right before, proved to be ours, decided, called."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError
from tpuctl.inventory.ownership import Claim, Refusal, check_ownership
from tpuctl.inventory.resources import listed_nodes, unseen_nodes, written_disks
from tpuctl.model.cloud import (
    CloudResource,
    NodeInfo,
    OperationInfo,
    QueuedInfo,
    ResourceKind,
)
from tpuctl.model.disks import ComputeOperation, DiskInfo, SnapshotInfo

Decide = Callable[[CloudResource], Refusal | None]
"""The caller's last word on what was read: writes the decision down, or says why it is not to be."""


class DeletionRequest(Struct, frozen=True):
    """Why nothing was asked for, or the operation that began. Neither, where it is gone or going already."""

    refused: Refusal | None = None
    operation: OperationInfo | ComputeOperation | None = None

    @property
    def compute(self) -> ComputeOperation | None:
        """The operation, where it is one of Compute Engine."""
        return self.operation if isinstance(self.operation, ComputeOperation) else None


class NodesNow(Struct, frozen=True):
    """The nodes of a TPU that are there now. `unseen` ones may be, too: nobody knows what they can write."""

    shown: tuple[NodeInfo, ...] = ()
    unseen: tuple[str, ...] = ()


def find_nodes(services: Services, found: CloudResource) -> NodesNow:
    """One that is not found by its name is gone only if the list of its zone agrees, and a queued resource has
    all nodes that name it."""
    cloud = services.tpus(found.api)
    names: tuple[str, ...] = (found.name,)
    if found.kind is ResourceKind.QUEUED:
        queued = services.cloud.find_queued(found.location, found.name)
        names = queued.node_ids if queued is not None else ()
    nodes = {name: cloud.find_node(found.location, name) for name in names}
    shown = tuple(node for node in nodes.values() if node is not None)
    if shown and found.kind is not ResourceKind.QUEUED:
        return NodesNow(shown)
    listed = cloud.list_nodes(found.location)
    missing = [name for name, node in nodes.items() if node is None]
    missing += [node.name for node in listed_nodes(found, listed.items) if node.name not in nodes]
    # Of a request that names no nodes, none that its zone hides can be missed.
    dark = [found.name] if not nodes and found.location in listed.unreachable else []
    return NodesNow(shown, unseen_nodes([*missing, *dark], listed, found.location))


def find_written(services: Services, found: CloudResource) -> tuple[str, ...]:
    """The disks that the hosts of a TPU can write, by what its nodes list now."""
    nodes = find_nodes(services, found)
    disks = (disk for node in nodes.shown for disk in written_disks(node))
    return (*disks, *(f"unknown disks of node {name}, which is not shown" for name in nodes.unseen))


def _find_bucket(services: Services, found: CloudResource) -> CloudResource | None:
    """Only its labels are read: its name is one for all the world, and its place cannot change."""
    if not services.objects.bucket_exists(found.name):
        return None
    try:
        return replace(found, labels=services.project_api.bucket_settings(found.name).labels)
    except NotFoundError:
        return None


def _as_resource(info: NodeInfo | QueuedInfo | DiskInfo | SnapshotInfo | None) -> CloudResource | None:
    return None if info is None else info.resource


Find = Callable[[Services, CloudResource], CloudResource | None]
Delete = Callable[[Services, CloudResource], OperationInfo | ComputeOperation | None]


def _find_node(services: Services, found: CloudResource) -> CloudResource | None:
    """Of a slice in Compute Engine the topmost object that is there: the next may be of another kind."""
    return _as_resource(services.tpus(found.api).find_node(found.location, found.name))


def _delete_node(services: Services, found: CloudResource) -> OperationInfo | None:
    return services.tpus(found.api).delete_node(found.location, found.name, found)


OWNED: Mapping[ResourceKind, tuple[Find, Delete | None]] = {
    ResourceKind.NODE: (_find_node, _delete_node),
    ResourceKind.GROUP: (_find_node, _delete_node),
    ResourceKind.TEMPLATE: (_find_node, _delete_node),
    ResourceKind.POLICY: (_find_node, _delete_node),
    ResourceKind.INSTANCE: (_find_node, _delete_node),
    ResourceKind.QUEUED: (
        lambda services, it: _as_resource(services.cloud.find_queued(it.location, it.name)),
        lambda services, it: services.cloud.delete_queued(it.location, it.name),
    ),
    ResourceKind.DISK: (
        lambda services, it: _as_resource(services.disks.find_disk(it.location, it.name)),
        lambda services, it: services.disks.delete_disk(it.location, it.name),
    ),
    ResourceKind.SNAPSHOT: (
        lambda services, it: _as_resource(services.disks.find_snapshot(it.name)),
        lambda services, it: services.disks.delete_snapshot(it.name),
    ),
    ResourceKind.BUCKET: (_find_bucket, None),
}
"""Whatever tpuctl makes and labels: how one is read by its name, and how it is deleted. Buckets are never."""


def find_owned(services: Services, found: CloudResource) -> CloudResource | None:
    """What the API shows now under the name of `found`."""
    return OWNED[found.kind][0](services, found)


def delete_owned(services: Services, first: CloudResource, claim: Claim, decide: Decide) -> DeletionRequest:
    """Asks for the deletion of what was read as `first`, if a read right now agrees and proves it ours.

    What is not found any more is as wanted, what is being deleted will be. To be called under the lease of its
    slice or of the master of a disk.
    """
    again = find_owned(services, first)
    if again is None:
        return DeletionRequest()
    refused = check_ownership(first, again, claim)
    if refused is not None or again.state == "DELETING":
        return DeletionRequest(refused)
    refused = decide(again)
    delete = OWNED[first.kind][1]
    if refused is not None or delete is None:
        return DeletionRequest(refused)
    return DeletionRequest(operation=delete(services, again))
