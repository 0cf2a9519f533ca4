"""Data disks of nodes: what may be attached where, who uses a disk, and which device it is on a host.

Texts of Compute Engine are those that its users quote (kubernetes-sigs/gcp-compute-persistent-disk-csi-driver,
google/cloud-forensics-utils pull request 530). What the TPU API itself says to a wrong list is not published:
those sentences are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tpuctl.model.accelerators import AcceleratorType
from tpuctl.sim.hosts.backend import HostDisk
from tpuctl.sim.wire.status import ApiError, Code, Json, failed_precondition, invalid_argument
from tpuctl.sim.world.catalog import DISK_TYPES
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.paths import ResourcePath, attached_disk
from tpuctl.sim.world.state import RO, RW, Kernel, Machine, Node

_KNOWN = frozenset[str]().union(*(each.generations for each in DISK_TYPES.values()))
"""Of other generations nothing is known, and nothing refused."""
MAX_DISKS: Mapping[str, int] = {"v6e": 32}
"""With the boot disk (cloud.google.com/tpu/docs/attach-durable-block-storage); 128 for the others."""
NVME = frozenset({"v6e", "tpu7x"})
"""Generations whose hosts see disks as NVMe namespaces. That tpu7x is like v6e here is inferred."""


def number_node(kernel: Kernel, node: Node) -> None:
    """`number_disks` of the data disks that a node holds."""
    entries = [] if node.gone or node.preempted else node.data.get("dataDisks") or ()
    number_disks(kernel, node, [str(each.get("sourceDisk")) for each in entries])


def _mode(entry: Json) -> str:
    return str(entry.get("mode") or RW)


def check_disks(
    kernel: Kernel, path: ResourcePath, offer: AcceleratorType, wanted: Sequence[Json], node: Node | None = None
) -> None:
    """Refuses a list of data disks for the node at `path`, which may be there already. Expects the world's lock
    to be held."""
    seen: dict[tuple[str, str], Json] = {}
    if len(wanted) >= MAX_DISKS.get(offer.generation, 128):
        most = MAX_DISKS.get(offer.generation, 128)
        raise failed_precondition(
            f"Maximum disks count should be less than or equal to [{most}], Requested : [{len(wanted) + 1}]"
        )
    before = (
        {str(each.get("sourceDisk")): _mode(each) for each in (node.data.get("dataDisks") or ())}
        if node
        else {}
    )
    for entry in wanted:
        source = str(entry.get("sourceDisk") or "")
        key = attached_disk(source)
        if key is None or not source.startswith(f"projects/{path.project}/"):
            raise invalid_argument(f'Invalid source disk "{source}": must be the full path.')
        if key[0] != path.zone:
            raise invalid_argument(f'The disk "{source}" is not in zone "{path.zone}".')
        if key in seen:
            raise invalid_argument(f'The disk "{source}" is attached twice.')
        seen[key] = entry
        if before.get(source, _mode(entry)) != _mode(entry):
            raise failed_precondition(f"The disk '{source}' is already attached with mode {before[source]}.")
        _check_one(kernel, path, offer, entry, attached_already=source in before)


def _check_one(
    kernel: Kernel, path: ResourcePath, offer: AcceleratorType, entry: Json, *, attached_already: bool
) -> None:
    source, mode = str(entry["sourceDisk"]), _mode(entry)
    disk = find_source(kernel, source)
    if attached_already:
        return
    kind = disk_kind(disk)
    check_kind(offer.generation, kind)
    hosts = len(entry.get("workerIds") or ()) or offer.hosts
    if mode == RW and hosts > 1:
        raise failed_precondition(
            f"The disk '{source}' cannot be attached in read-write mode to more than one worker."
        )
    check_mode(kernel, source, disk, mode, path)


def find_source(kernel: Kernel, source: str) -> Json:
    """The disk of that full name. Raises NOT_FOUND."""
    disk = kernel.find_disk(*(attached_disk(source) or ("", "")))
    if disk is None:
        raise ApiError(Code.NOT_FOUND, f"The resource '{source}' was not found")
    return disk


def disk_kind(disk: Json) -> str:
    return str(disk["type"]).rsplit("/", 1)[-1]


def check_kind(generation: str, kind: str) -> None:
    """Refuses a type of disk that hosts of the generation cannot have."""
    known = DISK_TYPES.get(kind)
    if generation in _KNOWN and (known is None or generation not in known.generations):
        raise failed_precondition(
            f"[{kind}] features and [instance_type: VIRTUAL_MACHINE] InstanceTaxonomies are not compatible for "
            "creating instance."
        )


def check_mode(kernel: Kernel, source: str, disk: Json, mode: str, path: ResourcePath) -> None:
    """Refuses a disk that is not ready, does not know that mode, or that others than the machine at `path` hold
    so that it cannot have it, too. Expects the world's lock to be held."""
    kind, access = disk_kind(disk), disk.get("accessMode")
    if disk["status"] != "READY":
        raise failed_precondition(f"The resource '{source}' is not ready")
    if mode == RO and kind == "hyperdisk-balanced":
        raise failed_precondition(f"{kind} disk type cannot be attached in read-only mode.")
    if kind == "hyperdisk-ml" and (mode == RO) != (access == "READ_ONLY_MANY"):
        raise failed_precondition(
            f"The disk '{source}' with access mode {access} cannot be attached in {mode} mode."
        )
    for other in kernel.machines():
        for held in other.attachments() if other.path != path else ():
            if held.disk == attached_disk(source) and RW in (mode, held.mode):
                if path.collection == "instances" and access == "READ_WRITE_MANY":
                    continue
                text = f"The disk resource '{source}' is already being used by '{held.users[0]}'"
                raise ApiError(Code.FAILED_PRECONDITION, text)


def number_disks(kernel: Kernel, node: Machine, wanted: Sequence[str]) -> None:
    """Gives each data disk the lowest free number, 1 for the first, which it keeps while it is attached; and
    notes the time. Expects the world's lock to be held. `wanted`: the full names of those that it has."""
    for source in {*wanted, *node.disk_numbers}:
        key = attached_disk(source)
        if key is not None and (source in wanted) != (source in node.disk_numbers):
            when = "lastAttachTimestamp" if source in wanted else "lastDetachTimestamp"
            kernel.disk_times.setdefault(key, {})[when] = kernel.timestamp()
    node.disk_numbers = {source: number for source, number in node.disk_numbers.items() if source in wanted}
    for source in wanted:
        if source not in node.disk_numbers:
            taken = set(node.disk_numbers.values())
            node.disk_numbers[source] = next(n for n in range(1, len(taken) + 2) if n not in taken)


def host_disks(kernel: Kernel, machine: Machine, rows: Iterable[tuple[str, str, str]]) -> list[HostDisk]:
    """What a host has as devices now, by full name, mode and device name (empty for one by its number), in the
    order in which its kernel finds them."""
    # Whether images name NVMe disks in /dev/disk/by-id is not known, so nothing may rely on it.
    nvme = machine.generation in NVME
    marked = not nvme and not kernel.struck(FaultKind.UNMARKED_DISKS, machine)
    found = []
    for source, mode, name in rows:
        disk = kernel.find_disk(*(attached_disk(source) or ("", "")))
        if disk is not None:
            number = machine.disk_numbers[source]
            found.append(HostDisk(str(disk["id"]), number, mode == RO, nvme, marked, name))
    found.sort(key=lambda each: each.number)
    if len(found) > 1 and kernel.struck(FaultKind.DEVICE_ORDER, machine):
        first = machine.boots % len(found)
        return found[first:] + found[:first]
    return found


def node_disks(kernel: Kernel, node: Node, worker: int) -> list[HostDisk]:
    """Those of one worker of a node."""
    entries = [each for each in node.data.get("dataDisks") or () if worker in node.workers_of(each)]
    return host_disks(kernel, node, [(str(each["sourceDisk"]), _mode(each), "") for each in entries])


def disk_metadata(node: Node) -> dict[str, str]:
    """`instance/disks/` of the metadata server of a node's hosts."""
    modes = {str(each["sourceDisk"]): _mode(each) for each in node.data.get("dataDisks") or ()}
    rows = {0: ("persistent-disk-0", RW)} | {
        number: (f"persistent-disk-{number}", modes[source])
        for source, number in node.disk_numbers.items()
        if source in modes
    }
    return render_disks([rows[number] for number in sorted(rows)], node.generation)


def render_disks(rows: Sequence[tuple[str, str]], generation: str) -> dict[str, str]:
    """`instance/disks/` from device names and modes (Compute Engine documentation, "Predefined metadata
    keys")."""
    interface = "NVME" if generation in NVME else "SCSI"
    found: dict[str, str] = {}
    for index, (name, mode) in enumerate(rows):
        folder = f"instance/disks/{index}/"
        found |= {
            f"{folder}device-name": name,
            f"{folder}index": str(index),
            f"{folder}interface": interface,
            f"{folder}mode": mode,
            f"{folder}type": "PERSISTENT",
        }
    return found
