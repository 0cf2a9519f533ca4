"""What the hosts behind a node are told about themselves."""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.sim.hosts.backend import HostDisk
from tpuctl.sim.hosts.metadata import Value
from tpuctl.sim.world.data_disks import node_disks
from tpuctl.sim.world.identity import node_values
from tpuctl.sim.world.machines import Machines
from tpuctl.sim.world.state import Kernel, Node

_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}
"""Chips of one host as a box (`CHIPS_PER_HOST_BOUNDS` seen in tpu-env of real hosts)."""


def host_bounds(topology: str, chips_per_host: int) -> str:
    """How many hosts along each axis, as `HOST_BOUNDS` says it."""
    chips = [int(each) for each in topology.split("x")]
    chips += [1] * (3 - len(chips))
    host = [int(each) for each in _BOUNDS[chips_per_host].split(",")]
    return ",".join(str(max(1, whole // part)) for whole, part in zip(chips, host, strict=True))


def megascale(kernel: Kernel, node: Node) -> dict[str, str]:
    """What the hosts of a multislice are told: which slice of how many they are, and where slice 0 begins."""
    queued = kernel.queued.get(node.queued.name) if node.queued else None
    if queued is None or len(queued.node_paths) < 2:
        return {}
    first = kernel.nodes.get(queued.node_paths[0].name)
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": first.addresses[0].internal_ip if first and first.addresses else "",
        "MEGASCALE_NUM_SLICES": str(len(queued.node_paths)),
        "MEGASCALE_SLICE_ID": str(queued.node_paths.index(node.path)),
    }


def render_tpu_env(kernel: Kernel, node: Node, worker: int) -> str:
    """The `tpu-env` attribute: `KEY: 'value'` lines, as read on real hosts."""
    offer = node.offer
    scheduling = node.data.get("schedulingConfig", {})
    return tpu_env(
        {
            "ACCELERATOR_TYPE": offer.name,
            "CONSUMER_PROJECT_ID": node.path.project,
            "NODE_ID": node.path.id,
            "PREEMPTIBLE": str(bool(scheduling.get("spot") or scheduling.get("preemptible"))).lower(),
            "RUNTIME_VERSION": str(node.data.get("runtimeVersion", "")),
            "TYPE": offer.config_type,
            "UID": str(node.data["id"]),
            "WORKER_ID": str(worker),
            "ZONE": node.path.zone,
            **shape_env(offer.topology, offer.chips_per_host),
            **megascale(kernel, node),
        }
    )


def shape_env(topology: str, chips_per_host: int) -> dict[str, str]:
    """What `tpu-env` says of the shape of a slice."""
    chip_bounds, process_bounds = _BOUNDS[chips_per_host], host_bounds(topology, chips_per_host)
    wraps = [str(int(n) >= 4).lower() for n in (*topology.split("x"), "1", "1")[:3]]
    return {
        "CHIPS_PER_HOST_BOUNDS": chip_bounds,
        "HOST_BOUNDS": process_bounds,
        "TOPOLOGY": topology,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": chip_bounds,
        "TPU_PROCESS_BOUNDS": process_bounds,
        "TPU_RUNTIME_METRICS_PORTS": ",".join(str(8431 + n) for n in range(chips_per_host)),
        "TPU_TOPOLOGY_WRAP": ",".join(wraps),
    }


def tpu_env(values: Mapping[str, str | None]) -> str:
    """`KEY: 'value'` lines, in order."""
    return "".join(f"{key}: '{value}'\n" for key, value in sorted({"SOURCE": "TPUCTL_SIM", **values}.items()))


def _attributes(kernel: Kernel, node: Node, worker: int) -> dict[str, str]:
    own = {
        "accelerator-type": node.offer.name,
        "agent-worker-number": str(worker),
        "instance-id": node.path.id,
        "tpu-env": render_tpu_env(kernel, node, worker),
        "worker-network-endpoints": ",".join(
            f"{node.hostname(n)}:{node.data['id']}:{each.internal_ip}" for n, each in enumerate(node.addresses)
        ),
    }
    given = dict(node.data.get("metadata") or {})
    return {**{key: str(value) for key, value in given.items()}, **own}


class TpuVms(Machines[Node]):
    """The hosts of nodes."""

    def attributes(self, machine: Node) -> Mapping[str, str]:
        return machine.data.get("metadata") or {}

    def told(self, machine: Node, worker: int) -> Mapping[str, Value]:
        return node_values(self._kernel, machine, worker, _attributes(self._kernel, machine, worker))

    def disks(self, machine: Node, worker: int) -> list[HostDisk]:
        return node_disks(self._kernel, machine, worker)

    def guest_attributes(self, machine: Node) -> bool:
        """Unless the node's metadata says otherwise."""
        return str(self.attributes(machine).get("enable-guest-attributes", "TRUE")).upper() != "FALSE"
