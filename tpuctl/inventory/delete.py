"""The one way in which a TPU is deleted: read right before, proved to be ours, decided, called."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.inventory.ownership import Claim, Refusal, check_ownership
from tpuctl.inventory.resources import listed_nodes, unseen_nodes, written_disks
from tpuctl.model.cloud import CloudResource, NodeInfo, ResourceKind

Decide = Callable[[CloudResource], Refusal | None]
"""The caller's last word on what was read: writes the decision down, or says why it is not to be."""


class NodesNow(Struct, frozen=True):
    """The nodes of a TPU that are there now. `unseen` ones may be, too: nobody knows what they can write."""

    shown: tuple[NodeInfo, ...] = ()
    unseen: tuple[str, ...] = ()


def find_tpu(services: Services, found: CloudResource) -> CloudResource | None:
    """What the API shows now under the name of `found`."""
    if found.kind is ResourceKind.QUEUED:
        queued = services.cloud.find_queued(found.location, found.name)
        return None if queued is None else queued.resource
    node = services.cloud.find_node(found.location, found.name)
    return None if node is None else node.resource


def find_nodes(services: Services, found: CloudResource) -> NodesNow:
    """One that is not found by its name is gone only if the list of its zone agrees, and a queued resource has
    all nodes that name it."""
    names: tuple[str, ...] = (found.name,)
    if found.kind is ResourceKind.QUEUED:
        queued = services.cloud.find_queued(found.location, found.name)
        names = queued.node_ids if queued is not None else ()
    nodes = {name: services.cloud.find_node(found.location, name) for name in names}
    shown = tuple(node for node in nodes.values() if node is not None)
    if shown and found.kind is ResourceKind.NODE:
        return NodesNow(shown)
    listed = services.cloud.list_nodes(found.location)
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


def delete_tpu(services: Services, first: CloudResource, claim: Claim, decide: Decide) -> Refusal | None:
    """Asks for the deletion of what was read as `first`, if a read right now agrees and proves it ours.

    What is not found any more is as wanted, what is being deleted will be. Returns why nothing was deleted
    otherwise. To be called under the lease of its slice.
    """
    again = find_tpu(services, first)
    if again is None:
        return None
    refused = check_ownership(first, again, claim)
    if refused is not None or again.state == "DELETING":
        return refused
    refused = decide(again)
    if refused is not None:
        return refused
    if first.kind is ResourceKind.QUEUED:
        services.cloud.delete_queued(first.location, first.name)
    else:
        services.cloud.delete_node(first.location, first.name)
    return None
