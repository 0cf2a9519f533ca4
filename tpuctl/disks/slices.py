"""Slices as places for disks: which nodes, of which generation, with how many hosts and what attached."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.disks.rules import DiskTarget
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.facts import FactsReply, Section
from tpuctl.hosts.provision import NO_ROOT
from tpuctl.hosts.requests import FactsRequest
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.names import node_names
from tpuctl.lib.shell import quote
from tpuctl.model.cloud import NodeInfo
from tpuctl.model.disks import DataDisk, DiskMode, DiskRecord
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.state.repository import list_slices


def place_of(services: Services, record: SliceRecord) -> DiskTarget:
    """Where its disks go. Raises TpuctlError for a slice that has not all its nodes."""
    incarnation = record.incarnation
    if incarnation is None or record.state is not SliceState.READY:
        raise TpuctlError(f"slice {record.name} is {record.state}", hint=f"tpuctl status {record.name}")
    nodes = nodes_of(services, record)
    for name, node in nodes.items():
        if node is None:
            raise TpuctlError(f"node {name} of {record.name} is not there", hint="tpuctl ls")
    found = load_accelerators().find(record.spec.accelerator_type)
    generation = found.generation if found is not None else ""
    disks = dict.fromkeys(disk for node in nodes.values() if node is not None for disk in node.data_disks)
    spec = record.spec
    return DiskTarget(
        incarnation.cloud_name, spec.zone, generation, spec.hosts, tuple(disks), tuple(nodes), api=spec.api
    )


def nodes_of(services: Services, record: SliceRecord) -> dict[str, NodeInfo | None]:
    """The nodes of the current incarnation, several of a multislice, as the cloud shows them."""
    incarnation, spec = record.incarnation, record.spec
    names = node_names(incarnation.cloud_name, spec.slices) if incarnation is not None else ()
    return {name: services.tpus(spec.api).find_node(spec.zone, name) for name in names}


def holders(services: Services, zone: str, disk: str) -> Sequence[tuple[SliceRecord, DataDisk]]:
    """Our slices whose nodes have the disk, and how."""
    found = []
    for record in list_slices(services):
        if record.spec.zone != zone or record.state is SliceState.GONE:
            continue
        nodes = [node for node in nodes_of(services, record).values() if node is not None]
        having = (each for node in nodes for each in node.data_disks if (each.zone, each.name) == (zone, disk))
        entry = next(having, None)
        if entry is not None:
            found.append((record, entry))
    return found


def writer_of(services: Services, disk: DiskRecord) -> SliceRecord | None:
    """The slice of ours that writes a disk."""
    found = holders(services, disk.request.zone, disk.name)
    return next((slice_ for slice_, entry in found if entry.mode is DiskMode.READ_WRITE), None)


def _facts(services: Services, target: SliceRecord, asked: FactsRequest) -> list[tuple[int, FactsReply]]:
    """What hosts say, by worker. Those that do not answer look for themselves before they mount."""
    agent = HostAgent(services.remote, services.agent_source)
    answers = agent.ask(host_targets(services, target), asked)
    return [(each.worker, each.value) for each in answers if each.value is not None]


def check_root(services: Services, target: SliceRecord, name: str) -> None:
    """Raises TpuctlError where a host is known not to let its user mount a disk. Nothing has changed then."""
    for worker, facts in _facts(services, target, FactsRequest((Section.HOST,))):
        if facts.host is not None and not facts.host.root:
            hint = f"{NO_ROOT.hint}; tpuctl disk attach {name} --to {target.name} --no-mount only attaches it"
            what = f"{target.name}: worker {worker}: {NO_ROOT.why}; {name} was not attached"
            raise TpuctlError(what, hint=hint)


def check_on_hosts(services: Services, target: SliceRecord, path: str) -> None:
    """Raises UsageError for a path at which a host has something in the way."""
    for worker, facts in _facts(services, target, FactsRequest((Section.POINTS,), points=(path,))):
        for trouble in (each.trouble for each in facts.points or () if each.trouble):
            look = f"tpuctl exec --worker {worker} {target.name} -- ls -lA {quote(path)}"
            hint = f"another --path, or move what is there: {look}"
            raise UsageError.of("path", f"worker {worker}: {trouble}", hint)
