"""The proof that nothing is on its way to a disk any more, before it leaves its host.

Asked are the hosts of nodes that list a disk as READ_WRITE, whatever tpuctl knows of it; copies that are only
read need no proof, and no connection. What a host does is in `tpuctl/agent/vacate.py`: programs that have a
file open are named (`NextUse.LEAVE`) or ended (`NextUse.DELETE`), the file system is unmounted in every
namespace, and the device then opens exclusively. A host goes on with that when this call has ended; the next
call hears what came of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.disks.follow import path_of
from tpuctl.disks.make import list_records
from tpuctl.disks.slices import nodes_of
from tpuctl.engine.services import Services
from tpuctl.hosts.agent import HostAgent, RawReply
from tpuctl.hosts.requests import VacateRequest
from tpuctl.hosts.targets import host_targets
from tpuctl.inventory.resources import has_ended, unseen_nodes, written_disks
from tpuctl.lib.codec import from_data
from tpuctl.lib.names import node_names
from tpuctl.lib.shell import quote
from tpuctl.lib.text import fold_workers
from tpuctl.model.cloud import NodeInfo
from tpuctl.model.hosts import HostTarget
from tpuctl.model.records import SliceRecord

GRACE_S = 10.0
"""Between TERM and KILL for programs that use a disk whose host is deleted."""
PATIENCE_S = 10.0
"""How long a host works before it answers that it is still at it."""
CALL_S = 20.0
"""A call of a host at most, apart from its patience."""
LIMIT_S = 900.0
"""Where a command sets no limit: what a host's memory holds is on the disk by then."""
PAUSE_S = 1.0


class NextUse(StrEnum):
    """What happens to the disk next."""

    LEAVE = "leave"
    """It is detached or repaired, and its host lives on: who has a file open stays, and is named."""
    DELETE = "delete"
    """Its host is deleted: who has a file open is ended."""


class Holder(Struct, frozen=True):
    """Who keeps a disk in use: a program (`what` is file, cwd, root, map or device), or something of the
    kernel's (swap, loop, mapper, array, mount)."""

    what: str
    path: str
    pid: int = 0
    user: str = ""
    program: str = ""
    worker: int = 0
    disk: str = ""

    @property
    def said(self) -> str:
        """`worker 0: 123 python of ada has /mnt/x/f open`."""
        who = f"{self.pid} {self.program} of {self.user}" if self.pid else self.path
        how = HOW[self.what].format(path=self.path) if self.what in HOW else f"uses {self.path}"
        return f"worker {self.worker}: {who} {how}"

    def ends(self, slice_name: str) -> str:
        """What to type so that it lets go."""
        words = f"kill {self.pid}" if self.pid else f"{ENDS.get(self.what, 'fuser -vm')} {quote(self.path)}"
        return f"tpuctl exec --worker {self.worker} {slice_name} -- sudo {words}"


HOW = {
    "file": "has {path} open",
    "cwd": "is in {path}",
    "root": "has {path} as its root",
    "map": "has {path} in its memory",
    "device": "has the device {path} open",
    "swap": "is swap",
    "loop": "is made of a file there",
    "mapper": "is made of it",
    "array": "is made of it",
    "mount": "is mounted and cannot be unmounted alone",
}
ENDS = {
    "swap": "swapoff",
    "loop": "losetup -d",
    "mapper": "dmsetup remove",
    "array": "mdadm --stop",
    "mount": "umount",
}


class Vacancy(Struct, frozen=True):
    """What hosts proved. `proved` are names of disks; `silent` workers did not answer; `holders` keep a disk
    in use; `lost` says what may be lost now, empty where nothing is, or the hosts are still at work. `unseen`
    nodes were not shown, so that nobody knows what they can write."""

    proved: tuple[str, ...] = ()
    silent: tuple[int, ...] = ()
    holders: tuple[Holder, ...] = ()
    lost: str = ""
    working: bool = False
    unseen: tuple[str, ...] = ()


class _Device(Struct, frozen=True):
    """What a host says of one device."""

    proved: bool
    why: str = ""
    holders: tuple[Holder, ...] = ()
    path: str = ""


class _Answer(Struct, frozen=True):
    state: str
    disks: tuple[_Device, ...] = ()


def writable_disks(services: Services, record: SliceRecord) -> dict[str, tuple[str, ...]]:
    """Node → the disks that it lists as READ_WRITE; nodes without any are left out."""
    return _writable(nodes_of(services, record))


def _unseen(services: Services, record: SliceRecord, missing: Sequence[str]) -> tuple[str, ...]:
    zone = record.spec.zone
    return unseen_nodes(missing, services.tpus(record.spec.api).list_nodes(zone), zone) if missing else ()


def _writable(nodes: Mapping[str, NodeInfo | None]) -> dict[str, tuple[str, ...]]:
    written = {name: written_disks(node) for name, node in nodes.items() if node is not None}
    return {name: disks for name, disks in written.items() if disks}


def known_disks(services: Services, record: SliceRecord, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """By name, what tells a host which of its devices is which of these disks: the label that tpuctl gave it,
    and where the slice has it; empty where others made it."""
    labels = {each.name: each.fs_label for each in list_records(services)}
    return {
        name: {"name": name, "label": labels.get(name, ""), "path": path_of(services, record, name)}
        for name in names
    }


def vacate(
    services: Services,
    record: SliceRecord,
    disks: Sequence[str] | None = None,
    *,
    purpose: NextUse,
    deadline: float | None = None,
    grace_s: float = GRACE_S,
) -> Vacancy:
    """Proves that `disks` (all that can be written, if None) are used by nothing on the hosts of a slice.
    Takes no lease, and raises for no host that is silent or refuses: that is in the answer."""
    limit = services.clock.now() + LIMIT_S if deadline is None else deadline
    nodes_now = nodes_of(services, record)
    unseen = _unseen(services, record, [name for name, node in nodes_now.items() if node is None])
    if unseen:
        return Vacancy(lost=f"node {', '.join(unseen)} is not shown, and may be there", unseen=unseen)
    written = _writable(nodes_now)
    asked = {
        node: tuple(each for each in names if disks is None or each in disks) for node, names in written.items()
    }
    asked = {node: names for node, names in asked.items() if names}
    if not asked:
        return Vacancy()
    nodes = _nodes_of_workers(record)
    targets = [each for each in _targets(services, record, nodes_now) if nodes[each.worker] in asked]
    if not targets:
        return _silent(record, {0: tuple(name for names in asked.values() for name in names)})
    names = {each.worker: asked[nodes[each.worker]] for each in targets}
    agent = HostAgent(services.remote, services.agent_source)
    known = known_disks(services, record, [name for listed in written.values() for name in listed])
    while True:
        now = services.clock.now()
        patience_s = max(1.0, min(PATIENCE_S, limit - now - 3.0))
        timeout_s = max(5.0, min(CALL_S + PATIENCE_S, limit - now))

        def wanted(target: HostTarget, patience_s: float = patience_s) -> VacateRequest:
            listed = [known[each] for each in written[nodes[target.worker]]]
            # For a deletion every disk of the host that can be written: which is which need not be known.
            only = list(names[target.worker]) if purpose is NextUse.LEAVE else []
            return VacateRequest(str(purpose), patience_s, grace_s, tuple(listed), tuple(only))

        replies = agent.ask(targets, wanted, timeout_s=timeout_s)
        found = judge(record, names, replies)
        if not found.working or services.clock.now() + PAUSE_S >= limit:
            return found
        services.clock.sleep(PAUSE_S)


def judge(record: SliceRecord, names: Mapping[int, tuple[str, ...]], replies: Sequence[RawReply]) -> Vacancy:
    """What the answers of hosts come to; `names` are the disks that were asked of each worker."""
    silent: list[int] = []
    holders: list[Holder] = []
    lost: list[str] = []
    unproved: set[str] = set()
    working = False
    for reply in replies:
        worker = reply.worker
        if reply.value is None:
            unproved.update(names[worker])
            if reply.result.failure is not None:
                silent.append(worker)
            else:
                lost.append(f"worker {worker}: {reply.message}")
            continue
        try:
            answer = from_data(_Answer, reply.value)
        except ValueError as error:
            unproved.update(names[worker])
            lost.append(f"worker {worker} answers what cannot be read: {error}")
            continue
        if answer.state != "done":
            unproved.update(names[worker])
            working = True
            continue
        for device in answer.disks:
            if device.proved:
                continue
            unproved.update(names[worker])
            first = next(iter(names[worker]), "")
            holders += [replace(each, worker=worker, disk=first) for each in device.holders]
            if device.why:
                lost.append(f"worker {worker}: {device.why}")
    proved = {name for each in names.values() for name in each} - unproved
    if silent:
        lost.insert(0, _silent(record, {worker: names[worker] for worker in silent}).lost)
    return Vacancy(
        tuple(sorted(proved)), tuple(silent), tuple(holders), "; ".join(lost) if not working else "", working
    )


def _silent(record: SliceRecord, names: Mapping[int, tuple[str, ...]]) -> Vacancy:
    workers = tuple(sorted(names))
    disks = ", ".join(sorted({name for each in names.values() for name in each}))
    who = f"workers {fold_workers(workers)}" if len(workers) > 1 else f"worker {workers[0]}"
    silence = f"{who} of {record.name} {'do' if len(workers) > 1 else 'does'} not answer"
    return Vacancy(silent=workers, lost=f"{silence}: what was written and is not on {disks} yet may be lost")


def _targets(services: Services, record: SliceRecord, nodes: Mapping[str, NodeInfo | None]) -> list[HostTarget]:
    """Its hosts, but for those that ended while others run on."""
    if record.incarnation is None or not record.incarnation.workers:
        return []
    names, workers = _nodes_of_workers(record), record.incarnation.workers
    return [
        each
        for each in host_targets(services, record)
        if not has_ended(nodes[names[each.worker]], workers[each.worker].endpoint.instance)
    ]


def _nodes_of_workers(record: SliceRecord) -> list[str]:
    """The node of each worker: those of a multislice are counted node by node."""
    incarnation = record.incarnation
    if incarnation is None:
        return []
    nodes = node_names(incarnation.cloud_name, record.spec.slices)
    each = max(1, len(incarnation.workers) // len(nodes))
    return [nodes[min(worker // each, len(nodes) - 1)] for worker in range(len(incarnation.workers))]
