"""The hosts behind a node: what they are told about themselves, and their life next to the node's.

Nothing here runs under the world's lock: reads of the world never wait for hosts.
"""

from __future__ import annotations

import json

from tpuctl.sim.hosts.interface import HostSpec
from tpuctl.sim.hosts.metadata import GUEST_ATTRIBUTES
from tpuctl.sim.kernel import Kernel, Node

_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}
"""Chips of one host as a box (`CHIPS_PER_HOST_BOUNDS` seen in tpu-env of real hosts)."""


def host_environment(kernel: Kernel, node: Node, worker: int) -> dict[str, str]:
    """Variables of a login session, computed at each login: addresses are known only after creation."""
    return {
        "TPUCTL_SIM": "1",
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": ",".join(each.internal_ip for each in node.addresses),
        "TPU_ACCELERATOR_TYPE": node.offer.name,
        # The simulated chips are CPUs.
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        **kernel.host_environment(),
    }


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
    chip_bounds = _BOUNDS[offer.chips_per_host]
    process_bounds = host_bounds(offer.topology, offer.chips_per_host)
    wraps = [str(int(n) >= 4).lower() for n in (*offer.topology.split("x"), "1", "1")[:3]]
    scheduling = node.data.get("schedulingConfig", {})
    values = {
        "ACCELERATOR_TYPE": offer.name,
        "CHIPS_PER_HOST_BOUNDS": chip_bounds,
        "CONSUMER_PROJECT_ID": node.path.project,
        "HOST_BOUNDS": process_bounds,
        "NODE_ID": node.path.id,
        "PREEMPTIBLE": str(bool(scheduling.get("spot") or scheduling.get("preemptible"))).lower(),
        "RUNTIME_VERSION": str(node.data.get("runtimeVersion", "")),
        "SOURCE": "TPUCTL_SIM",
        "TOPOLOGY": offer.topology,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": chip_bounds,
        "TPU_PROCESS_BOUNDS": process_bounds,
        "TPU_RUNTIME_METRICS_PORTS": ",".join(str(8431 + n) for n in range(offer.chips_per_host)),
        "TPU_TOPOLOGY_WRAP": ",".join(wraps),
        "TYPE": offer.config_type,
        "UID": str(node.data["id"]),
        "WORKER_ID": str(worker),
        "ZONE": node.path.zone,
        **megascale(kernel, node),
    }
    return "".join(f"{key}: '{value}'\n" for key, value in values.items())


def metadata_value(kernel: Kernel, node: Node, worker: int, path: str) -> str | None:
    """Answers the metadata server below `/computeMetadata/v1/instance/`; None means 404."""
    scheduling = node.data.get("schedulingConfig", {})
    if path.startswith("attributes/"):
        return _attribute(kernel, node, worker, path.removeprefix("attributes/"))
    if path.startswith(GUEST_ATTRIBUTES):
        return node.guest.get(worker, {}).get(path.removeprefix(GUEST_ATTRIBUTES))
    values = {
        "id": str(node.data["id"]),
        "name": node.hostname(worker),
        "hostname": f"{node.hostname(worker)}.{node.path.zone}.c.{node.path.project}.internal",
        "zone": f"projects/{node.path.project}/zones/{node.path.zone}",
        "preempted": "TRUE" if node.preempted else "FALSE",
        "scheduling/preemptible": str(bool(scheduling.get("spot") or scheduling.get("preemptible"))).upper(),
        "maintenance-event": "NONE",
        "tags": json.dumps(list(node.data.get("tags", ()))),
        "service-accounts/default/email": (node.data.get("serviceAccount") or {}).get("email"),
    }
    return values.get(path)


def _attribute(kernel: Kernel, node: Node, worker: int, key: str) -> str | None:
    if key == "tpu-env":
        return render_tpu_env(kernel, node, worker)
    own = {
        "accelerator-type": node.offer.name,
        "agent-worker-number": str(worker),
        "instance-id": node.path.id,
        "worker-network-endpoints": ",".join(
            f"{node.hostname(n)}:{node.data['id']}:{each.internal_ip}" for n, each in enumerate(node.addresses)
        ),
    }
    value = own.get(key, node.data.get("metadata", {}).get(key))
    return None if value is None else str(value)


def publish_attribute(kernel: Kernel, node: Node, worker: int, path: str, value: str | None) -> bool:
    """What a program on a host writes through the metadata server. False where the node's metadata says
    `enable-guest-attributes=FALSE`."""
    enabled = str(node.data.get("metadata", {}).get("enable-guest-attributes", "TRUE"))
    if enabled.upper() == "FALSE":
        return False
    with kernel.lock:
        own = node.guest.setdefault(worker, {})
        if value is None:
            own.pop(path, None)
        else:
            own[path] = value
    return True


class Machines:
    """The life of a node's hosts; every method may take seconds and is called without the world's lock."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def _spec(self, node: Node, worker: int) -> HostSpec:
        return HostSpec(
            node_key=node.key,
            worker=worker,
            hostname=node.hostname(worker),
            environment=lambda: host_environment(self._kernel, node, worker),
            metadata=lambda path: metadata_value(self._kernel, node, worker, path),
            publish=lambda path, value: publish_attribute(self._kernel, node, worker, path, value),
        )

    def create(self, node: Node) -> bool:
        """Boots all workers with the node's keys; False when the node was deleted meanwhile."""
        with node.host_lock:
            if node.gone:
                return False
            specs = [self._spec(node, worker) for worker in range(node.offer.hosts)]
            node.addresses = self._kernel.hosts.create(specs)
            self._kernel.hosts.set_ssh_keys(node.key, ssh_keys_of(node))
            return True

    def apply_keys(self, node: Node) -> None:
        with node.host_lock:
            if not node.gone and node.addresses:
                self._kernel.hosts.set_ssh_keys(node.key, ssh_keys_of(node))

    def kill(self, node: Node) -> None:
        with node.host_lock:
            self._kernel.hosts.kill(node.key)

    def stop(self, node: Node) -> None:
        with node.host_lock:
            self._kernel.hosts.stop(node.key)

    def start(self, node: Node) -> None:
        with node.host_lock:
            self._kernel.hosts.start(node.key)
            self._kernel.hosts.set_ssh_keys(node.key, ssh_keys_of(node))

    def destroy(self, node: Node) -> None:
        with node.host_lock:
            node.gone = True
            self._kernel.hosts.destroy(node.key)


def ssh_keys_of(node: Node) -> str:
    return str(node.data.get("metadata", {}).get("ssh-keys", ""))
