"""The life of the hosts behind machines, next to that of what their APIs show.

Nothing here runs under the world's lock: reads of the world never wait for hosts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

from tpuctl.model.shipped_files import load_accelerators
from tpuctl.sim.hosts.backend import HostDisk, HostSpec
from tpuctl.sim.hosts.metadata import Value
from tpuctl.sim.hosts.metrics_server import Devices, Load, MetricsServers, change_load, share
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.state import Kernel, Machine
from tpuctl.telemetry.sample import DEVICES_PER_CHIP

M = TypeVar("M", bound=Machine)

WINDOW_LEAST_S = 1.0
"""However fast the simulator: what reacts to SIGTERM at once has had the time to."""


def host_environment(kernel: Kernel) -> dict[str, str]:
    """Variables of a login session. Nothing that tells of the TPU: a login of a real TPU VM has none of
    `TPU_WORKER_ID` and its like, which are GKE's, nor `JAX_PLATFORMS`; libtpu asks the metadata server."""
    return {"TPUCTL_SIM": "1", **kernel.host_environment()}


class Machines(ABC, Generic[M]):
    """The hosts of machines of one kind; every method may take seconds and is called without the world's
    lock."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._metrics = MetricsServers()

    def close(self) -> None:
        self._metrics.close()

    # What hosts of a kind are told.

    @abstractmethod
    def attributes(self, machine: M) -> Mapping[str, str]:
        """The metadata that users gave it."""

    @abstractmethod
    def told(self, machine: M, worker: int) -> Mapping[str, Value]:
        """Everything that the metadata server of a worker says, by its path below `/computeMetadata/v1/`."""

    @abstractmethod
    def disks(self, machine: M, worker: int) -> list[HostDisk]:
        """What one worker has as devices now, in the order in which its kernel finds them. Expects the world's
        lock to be held."""

    @abstractmethod
    def guest_attributes(self, machine: M) -> bool:
        """Whether programs may publish some."""

    # Their life.

    def load(self, machine: M, workers: Collection[int] | None, fields: Mapping[str, str] | None) -> None:
        """Programs seem to run there, as `fields` say; None for none."""
        per_chip = DEVICES_PER_CHIP.get(machine.generation, 1)
        memory = load_accelerators().generations[machine.generation].hbm_gib * (1 << 30) // per_chip
        count = machine.chips_per_host * per_chip
        with machine.host_lock:
            for worker in machine.workers if workers is None else workers:
                ports = {}
                if fields is None:
                    machine.loads.pop(worker, None)
                else:
                    machine.loads[worker] = change_load(machine.loads.get(worker, Load()), fields)
                    ids = range(worker * count, (worker + 1) * count)
                    devices = Devices(machine.loads[worker], ids, per_chip, memory, machine.hostname(worker))
                    ports = {port: self._metrics.streams(each) for port, each in share(devices)}
                self._kernel.hosts.serve(machine.key, worker, ports)
                self._metrics.end(machine.hostname(worker))

    def _spec(self, machine: M, worker: int) -> HostSpec:
        return HostSpec(
            node_key=machine.key,
            worker=worker,
            hostname=machine.hostname(worker),
            environment=lambda: host_environment(self._kernel),
            metadata=lambda: self._metadata(machine, worker),
            publish=lambda path, value: self._publish(machine, worker, path, value),
            bans=lambda: self._bans(machine),
        )

    def _bans(self, machine: M) -> tuple[int, float] | None:
        """After how many refused log-ins hosts are deaf, and how long."""
        found = self._kernel.faults.standing(FaultKind.LOGIN_BAN, machine.path.id)
        return (found[0].skip, found[0].seconds) if found else None

    def _metadata(self, machine: M, worker: int) -> Mapping[str, Value]:
        if self._kernel.struck(FaultKind.NO_METADATA, machine):
            return {}
        return self.told(machine, worker)

    def _publish(self, machine: M, worker: int, path: str, value: str | None) -> bool:
        """What a program on a host writes through the metadata server. False where that is off."""
        if not self.guest_attributes(machine):
            return False
        with self._kernel.lock:
            own = machine.guest.setdefault(worker, {})
            if value is None:
                own.pop(path, None)
            else:
                own[path] = value
        return True

    def create(self, machine: M) -> bool:
        """Boots all workers with the machine's keys; False when the machine was deleted meanwhile."""
        with machine.host_lock:
            if machine.gone:
                return False
            specs = [self._spec(machine, worker) for worker in machine.workers]
            machine.addresses = self._kernel.hosts.create(specs)
            machine.boots += 1
            self._set_disks(machine)
        late = self._kernel.faults.take(FaultKind.LATE_KEYS, "late-keys", machine.path)
        wait_s = self._kernel.delays.host_accounts + (late.seconds if late else 0.0)
        if wait_s > 0:
            self._kernel.after(wait_s, lambda: self.apply_keys(machine))
        else:
            self.apply_keys(machine)
        return True

    def apply_keys(self, machine: M) -> None:
        with machine.host_lock:
            if not machine.gone and machine.addresses:
                self._kernel.hosts.set_ssh_keys(machine.key, self._accepted_keys(machine))

    def apply_disks(self, machine: M) -> None:
        """Hosts get the devices of the machine's data disks, and lose those of others."""
        with machine.host_lock:
            if not machine.gone and machine.addresses:
                self._set_disks(machine)

    def _set_disks(self, machine: M) -> None:
        with self._kernel.lock:
            disks = {worker: self.disks(machine, worker) for worker in machine.workers}
        self._kernel.hosts.set_disks(machine.key, disks)

    def preempt(self, machine: M) -> None:
        """The hosts are shut down in order, then they are gone with their boot disks."""
        with machine.host_lock:
            if not self._kernel.struck(FaultKind.HARD_PREEMPT, machine):
                self._shut_down(machine, None)
            self._kernel.hosts.kill(machine.key)

    def stop(self, machine: M, workers: Collection[int] | None = None, *, orderly: bool = True) -> None:
        """The hosts, or those of some workers, are shut down in order and keep their disks."""
        with machine.host_lock:
            if orderly:
                self._shut_down(machine, workers)
            self._kernel.hosts.stop(machine.key, workers)

    def _shut_down(self, machine: M, workers: Collection[int] | None) -> None:
        window_s = max(WINDOW_LEAST_S, self._kernel.delays.shutdown / self._kernel.speed)
        self._kernel.hosts.shutdown(machine.key, window_s, workers)

    def start(self, machine: M) -> None:
        """Boots those that are off."""
        with machine.host_lock:
            self._kernel.hosts.start(machine.key)
            machine.boots += 1
            self._set_disks(machine)
            self._kernel.hosts.set_ssh_keys(machine.key, self._accepted_keys(machine))

    def delete(self, machine: M) -> None:
        """As `preempt`: Compute Engine gives an instance that is deleted its time to end, too."""
        with machine.host_lock:
            if not machine.gone and not self._kernel.struck(FaultKind.HARD_DELETE, machine):
                self._shut_down(machine, None)
        self.destroy(machine)

    def destroy(self, machine: M) -> None:
        """At once, without a word to the hosts."""
        with machine.host_lock:
            machine.gone = True
            self._kernel.hosts.destroy(machine.key)

    def _accepted_keys(self, machine: M) -> str:
        """The keys of the machine's metadata, as its hosts take them: none with OS Login, which a machine's own
        metadata turns on or off before its project's does, and the organisation's policy before both
        (docs.cloud.google.com/compute/docs/oslogin)."""
        kernel, own = self._kernel, self.attributes(machine)
        os_login = str(own.get("enable-oslogin", kernel.project_metadata.get("enable-oslogin", "FALSE")))
        if os_login.upper() == "TRUE" or kernel.faults.standing(FaultKind.OS_LOGIN_POLICY, "os-login-policy"):
            return ""
        return str(own.get("ssh-keys", ""))
