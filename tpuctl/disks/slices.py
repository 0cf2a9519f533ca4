"""Slices as places for disks: which node, of which generation, with how many hosts and what attached."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.disks.rules import Place
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.model.disks import DataDisk
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.state.repository import list_slices


def place_of(services: Services, record: SliceRecord) -> Place:
    """Where its disks go. Raises TpuctlError for a slice without a node, or with several."""
    incarnation = record.incarnation
    if incarnation is None or record.state is not SliceState.READY:
        raise TpuctlError(f"slice {record.name} is {record.state}", hint=f"tpuctl status {record.name}")
    if record.spec.slices > 1:
        raise UsageError(f"{record.name} is a multislice", hint="disks go to slices of one node")
    node = services.cloud.find_node(record.spec.zone, incarnation.cloud_name)
    if node is None:
        raise TpuctlError(f"node {incarnation.cloud_name} of {record.name} is not there", hint="tpuctl ls")
    found = load_accelerators().find(record.spec.accelerator_type)
    generation = found.generation if found is not None else ""
    return Place(incarnation.cloud_name, record.spec.zone, generation, record.spec.hosts, node.data_disks)


def holders(services: Services, zone: str, disk: str) -> Sequence[tuple[SliceRecord, DataDisk]]:
    """Our slices whose nodes have the disk, and how."""
    found = []
    for record in list_slices(services):
        incarnation = record.incarnation
        if incarnation is None or record.spec.zone != zone or record.state is SliceState.GONE:
            continue
        node = services.cloud.find_node(zone, incarnation.cloud_name)
        for each in node.data_disks if node is not None else ():
            if (each.zone, each.name) == (zone, disk):
                found.append((record, each))
    return found
