"""Data disks of nodes: what may be attached where, who uses a disk, and which device it is on a host.

Texts of Compute Engine are those that its users quote (kubernetes-sigs/gcp-compute-persistent-disk-csi-driver,
google/cloud-forensics-utils pull request 530). What the TPU API itself says to a wrong list is not published:
those sentences are ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tpuctl.model.accelerators import AcceleratorType
from tpuctl.sim.hosts.backend import HostDisk
from tpuctl.sim.wire.status import ApiError, Code, Json, failed_precondition, invalid_argument
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.paths import ResourcePath, attached_disk
from tpuctl.sim.world.state import Kernel, Node

RO, RW = "READ_ONLY", "READ_WRITE"
_PD = frozenset({"pd-standard", "pd-balanced", "pd-ssd"})
_HYPER = frozenset({"hyperdisk-balanced", "hyperdisk-ml"})
COMPATIBLE: Mapping[str, Collection[str]] = {
    "v2": _PD,
    "v3": _PD,
    "v4": _PD | {"pd-extreme", "hyperdisk-balanced"},
    "v5e": (_PD - {"pd-standard"}) | _HYPER,
    "v5p": (_PD - {"pd-standard"}) | _HYPER,
    "v6e": _HYPER,
}
"""By generation: deploy/kubernetes/overlays/node-labeler/configmap.yaml of the CSI driver (2026-02-03); v2,
which is not there, as v3. Of other generations nothing is known, and nothing refused."""
MAX_DISKS: Mapping[str, int] = {"v6e": 32}
"""With the boot disk (cloud.google.com/tpu/docs/attach-durable-block-storage); 128 for the others."""
NVME = frozenset({"v6e"})
"""Generations whose hosts see disks as NVMe namespaces."""


def disk_paths(node: Node) -> list[str]:
    """The full names of its data disks, in their order."""
    return [str(each.get("sourceDisk")) for each in node.data.get("dataDisks") or ()]


def _mode(entry: Json) -> str:
    return str(entry.get("mode") or RW)


def _workers(node: Node, entry: Json) -> list[int]:
    """Those that get the disk: all, or what v2alpha1 says."""
    return [int(each) for each in entry.get("workerIds") or ()] or list(range(node.offer.hosts))


def holders(nodes: Collection[Node]) -> Iterator[tuple[tuple[str, str], str, Node, list[int]]]:
    """(zone and name of the disk, mode, node, workers) of all attachments; a preempted node holds nothing."""
    for node in nodes:
        for entry in () if node.preempted else node.data.get("dataDisks") or ():
            key = attached_disk(str(entry.get("sourceDisk")))
            if key is not None:
                yield key, _mode(entry), node, _workers(node, entry)


def instance(node: Node, worker: int) -> str:
    """The machine of a worker as Compute Engine calls it; it is in the TPU service's project, really."""
    path = node.path
    return f"projects/{path.project}/zones/{path.zone}/instances/{path.id}-w-{worker}"


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
    zone, name = attached_disk(source) or ("", "")
    disk = kernel.find_disk(zone, name)
    if disk is None:
        raise ApiError(Code.NOT_FOUND, f"The resource '{source}' was not found")
    kind = str(disk["type"]).rsplit("/", 1)[-1]
    if attached_already:
        return
    if disk["status"] != "READY":
        raise failed_precondition(f"The resource '{source}' is not ready")
    compatible = COMPATIBLE.get(offer.generation)
    if compatible is not None and kind not in compatible:
        raise failed_precondition(
            f"[{kind}] features and [instance_type: VIRTUAL_MACHINE] InstanceTaxonomies are not compatible for "
            "creating instance."
        )
    hosts = len(entry.get("workerIds") or ()) or offer.hosts
    if mode == RW and hosts > 1:
        raise failed_precondition(
            f"The disk '{source}' cannot be attached in read-write mode to more than one worker."
        )
    if mode == RO and kind == "hyperdisk-balanced":
        raise failed_precondition(f"{kind} disk type cannot be attached in read-only mode.")
    shared = disk.get("accessMode") == "READ_ONLY_MANY"
    if kind == "hyperdisk-ml" and (mode == RO) != shared:
        raise failed_precondition(
            f"The disk '{source}' with access mode {disk.get('accessMode')} cannot be attached in {mode} mode."
        )
    for other, held, node, workers in holders(kernel.nodes.values()):
        if other == (zone, name) and node.path != path and RW in (mode, held):
            user = instance(node, workers[0])
            raise failed_precondition(f"The disk resource '{source}' is already being used by '{user}'")


def number_disks(kernel: Kernel, node: Node) -> None:
    """Gives each data disk the lowest free number, 1 for the first, which it keeps while it is attached; and
    notes the time. Expects the world's lock to be held."""
    wanted = [] if node.gone or node.preempted else disk_paths(node)
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


def host_disks(kernel: Kernel, node: Node, worker: int) -> list[HostDisk]:
    """What one worker has as devices now, in the order in which its kernel finds them."""
    # Whether images of TPU VMs name NVMe disks in /dev/disk/by-id is not known, so nothing may rely on it.
    marked = node.offer.generation not in NVME
    marked = marked and not kernel.faults.standing(FaultKind.UNMARKED_DISKS, node.path.id)
    found = []
    for entry in node.data.get("dataDisks") or ():
        source = str(entry["sourceDisk"])
        disk = kernel.find_disk(*(attached_disk(source) or ("", "")))
        if disk is not None and worker in _workers(node, entry):
            number = node.disk_numbers[source]
            nvme = node.offer.generation in NVME
            found.append(HostDisk(str(disk["id"]), number, _mode(entry) == RO, nvme, marked))
    found.sort(key=lambda each: each.number)
    if len(found) > 1 and kernel.faults.standing(FaultKind.DEVICE_ORDER, node.path.id):
        first = node.boots % len(found)
        return found[first:] + found[:first]
    return found


def disk_metadata(node: Node) -> dict[str, str]:
    """`instance/disks/` of the metadata server (Compute Engine documentation, "Predefined metadata keys")."""
    interface = "NVME" if node.offer.generation in NVME else "SCSI"
    rows = {0: RW} | {
        node.disk_numbers[str(each["sourceDisk"])]: _mode(each)
        for each in node.data.get("dataDisks") or ()
        if str(each["sourceDisk"]) in node.disk_numbers
    }
    found: dict[str, str] = {}
    for index, mode in enumerate(rows[number] for number in sorted(rows)):
        folder = f"instance/disks/{index}/"
        found |= {
            f"{folder}device-name": f"persistent-disk-{sorted(rows)[index]}",
            f"{folder}index": str(index),
            f"{folder}interface": interface,
            f"{folder}mode": mode,
            f"{folder}type": "PERSISTENT",
        }
    return found
