"""The hosts behind a node: what they are told about themselves, and their life next to the node's.

Nothing here runs under the world's lock: reads of the world never wait for hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tpuctl.model.shipped_files import load_accelerators
from tpuctl.sim.hosts.backend import HostSpec
from tpuctl.sim.hosts.metadata import GUEST_ATTRIBUTES, Value
from tpuctl.sim.hosts.metrics_server import Devices, Load, MetricsServers, change_load, share
from tpuctl.sim.world.data_disks import host_disks
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.identity import instance_values, project_values
from tpuctl.sim.world.state import Kernel, Node
from tpuctl.telemetry.sample import DEVICES_PER_CHIP

MAINTENANCE = "TERMINATE_ON_HOST_MAINTENANCE"
"""What the metadata server calls it: TPU VMs cannot be moved while they run."""
WINDOW_LEAST_S = 1.0
"""However fast the simulator: what reacts to SIGTERM at once has had the time to."""
_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}
"""Chips of one host as a box (`CHIPS_PER_HOST_BOUNDS` seen in tpu-env of real hosts)."""


def host_environment(kernel: Kernel) -> dict[str, str]:
    """Variables of a login session. Nothing that tells of the TPU: a login of a real TPU VM has none of
    `TPU_WORKER_ID` and its like, which are GKE's, nor `JAX_PLATFORMS`; libtpu asks the metadata server."""
    return {"TPUCTL_SIM": "1", **kernel.host_environment()}


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


def metadata_values(kernel: Kernel, node: Node, worker: int) -> dict[str, Value]:
    """Everything that the metadata server of a worker says, by its path below `/computeMetadata/v1/`."""
    scheduling = node.data.get("schedulingConfig", {})
    guest = node.guest.get(worker, {})
    return {
        **project_values(kernel),
        **instance_values(kernel, node, worker),
        **{f"instance/attributes/{key}": value for key, value in _attributes(kernel, node, worker).items()},
        **{f"{GUEST_ATTRIBUTES}{path}": value for path, value in dict(guest).items()},
        "instance/preempted": "TRUE" if node.preempted else "FALSE",
        "instance/scheduling/preemptible": str(
            bool(scheduling.get("spot") or scheduling.get("preemptible"))
        ).upper(),
        "instance/maintenance-event": MAINTENANCE if worker in node.maintenance else "NONE",
    }


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
        self._metrics = MetricsServers()

    def close(self) -> None:
        self._metrics.close()

    def load(self, node: Node, workers: Collection[int] | None, fields: Mapping[str, str] | None) -> None:
        """Programs seem to run there, as `fields` say; None for none."""
        offer = node.offer
        per_chip = DEVICES_PER_CHIP.get(offer.generation, 1)
        memory = load_accelerators().generations[offer.generation].hbm_gib * (1 << 30) // per_chip
        count = offer.chips_per_host * per_chip
        with node.host_lock:
            for worker in range(offer.hosts) if workers is None else workers:
                ports = {}
                if fields is None:
                    node.loads.pop(worker, None)
                else:
                    node.loads[worker] = change_load(node.loads.get(worker, Load()), fields)
                    ids = range(worker * count, (worker + 1) * count)
                    devices = Devices(node.loads[worker], ids, per_chip, memory, node.hostname(worker))
                    ports = {port: self._metrics.streams(each) for port, each in share(devices)}
                self._kernel.hosts.serve(node.key, worker, ports)
                self._metrics.end(node.hostname(worker))

    def _spec(self, node: Node, worker: int) -> HostSpec:
        return HostSpec(
            node_key=node.key,
            worker=worker,
            hostname=node.hostname(worker),
            environment=lambda: host_environment(self._kernel),
            metadata=lambda: self._metadata(node, worker),
            publish=lambda path, value: publish_attribute(self._kernel, node, worker, path, value),
            bans=lambda: self._bans(node),
        )

    def _bans(self, node: Node) -> tuple[int, float] | None:
        """After how many refused log-ins hosts are deaf, and how long."""
        found = self._kernel.faults.standing(FaultKind.LOGIN_BAN, node.path.id)
        return (found[0].skip, found[0].seconds) if found else None

    def _metadata(self, node: Node, worker: int) -> Mapping[str, Value]:
        if self._kernel.faults.standing(FaultKind.NO_METADATA, node.path.id):
            return {}
        return metadata_values(self._kernel, node, worker)

    def create(self, node: Node) -> bool:
        """Boots all workers with the node's keys; False when the node was deleted meanwhile."""
        with node.host_lock:
            if node.gone:
                return False
            specs = [self._spec(node, worker) for worker in range(node.offer.hosts)]
            node.addresses = self._kernel.hosts.create(specs)
            node.boots += 1
            self._set_disks(node)
        late = self._kernel.faults.take(FaultKind.LATE_KEYS, "late-keys", node.path)
        wait_s = self._kernel.delays.host_accounts + (late.seconds if late else 0.0)
        if wait_s > 0:
            self._kernel.after(wait_s, lambda: self.apply_keys(node))
        else:
            self.apply_keys(node)
        return True

    def apply_keys(self, node: Node) -> None:
        with node.host_lock:
            if not node.gone and node.addresses:
                self._kernel.hosts.set_ssh_keys(node.key, accepted_keys(self._kernel, node))

    def apply_disks(self, node: Node) -> None:
        """Hosts get the devices of the node's data disks, and lose those of others."""
        with node.host_lock:
            if not node.gone and node.addresses:
                self._set_disks(node)

    def _set_disks(self, node: Node) -> None:
        with self._kernel.lock:
            disks = {worker: host_disks(self._kernel, node, worker) for worker in range(node.offer.hosts)}
        self._kernel.hosts.set_disks(node.key, disks)

    def preempt(self, node: Node) -> None:
        """The hosts are shut down in order, then they are gone with their boot disks."""
        with node.host_lock:
            if not self._kernel.faults.standing(FaultKind.HARD_PREEMPT, node.path.id):
                self._shut_down(node, None)
            self._kernel.hosts.kill(node.key)

    def stop(self, node: Node, workers: Collection[int] | None = None) -> None:
        """The hosts, or those of some workers, are shut down in order and keep their disks."""
        with node.host_lock:
            self._shut_down(node, workers)
            self._kernel.hosts.stop(node.key, workers)

    def _shut_down(self, node: Node, workers: Collection[int] | None) -> None:
        window_s = max(WINDOW_LEAST_S, self._kernel.delays.shutdown / self._kernel.speed)
        self._kernel.hosts.shutdown(node.key, window_s, workers)

    def start(self, node: Node) -> None:
        """Boots those that are off."""
        with node.host_lock:
            self._kernel.hosts.start(node.key)
            node.boots += 1
            self._set_disks(node)
            self._kernel.hosts.set_ssh_keys(node.key, accepted_keys(self._kernel, node))

    def delete(self, node: Node) -> None:
        """As `preempt`: Compute Engine gives an instance that is deleted its time to end, too."""
        with node.host_lock:
            if not node.gone and not self._kernel.faults.standing(FaultKind.HARD_DELETE, node.path.id):
                self._shut_down(node, None)
        self.destroy(node)

    def destroy(self, node: Node) -> None:
        """At once, without a word to the hosts."""
        with node.host_lock:
            node.gone = True
            self._kernel.hosts.destroy(node.key)


def accepted_keys(kernel: Kernel, node: Node) -> str:
    """The keys of the node's metadata, as its hosts take them: none with OS Login, which a node's own metadata
    turns on or off before its project's does, and the organisation's policy before both
    (docs.cloud.google.com/compute/docs/oslogin)."""
    own = node.data.get("metadata", {})
    os_login = str(own.get("enable-oslogin", kernel.project_metadata.get("enable-oslogin", "FALSE")))
    if os_login.upper() == "TRUE" or kernel.faults.standing(FaultKind.OS_LOGIN_POLICY, "os-login-policy"):
        return ""
    return str(own.get("ssh-keys", ""))
