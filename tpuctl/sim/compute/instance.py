"""One instance of Compute Engine with chips, and what its host is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tpuctl.lib.names import region_of
from tpuctl.sim.compute.bodies import last_part
from tpuctl.sim.compute.catalog import Machine as MachineType
from tpuctl.sim.compute.group_facts import GroupOfInstances, accelerator_type
from tpuctl.sim.hosts.backend import HostDisk
from tpuctl.sim.hosts.metadata import Value
from tpuctl.sim.world.data_disks import host_disks, render_disks
from tpuctl.sim.world.identity import Network, Told, account_values, machine_values, network_values
from tpuctl.sim.world.machines import Machines
from tpuctl.sim.world.paths import attached_disk
from tpuctl.sim.world.state import RW, Attachment, Kernel, Machine
from tpuctl.sim.world.tpu_vms import shape_env, tpu_env

GUEST_SWITCH = "enable-guest-attributes"
_KEYS = "ssh-keys"


@dataclass
class Instance(Machine):
    """`data` is the resource as the API shows it."""

    machine: MachineType
    group: GroupOfInstances | None = None
    leaving: bool = False
    """It is being deleted."""

    @property
    def state(self) -> str:
        return str(self.data["status"])

    @property
    def generation(self) -> str:
        return self.machine.generation

    @property
    def chips_per_host(self) -> int:
        return self.machine.chips

    @property
    def workers(self) -> range:
        number = self.group.worker(self.path.id) if self.group else 0
        return range(number, number + 1)

    @property
    def live(self) -> bool:
        return self.state == "RUNNING"

    @property
    def holds_chips(self) -> bool:
        return self.state != "TERMINATED"

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.path.id, self.path.name} | ({self.group.name} if self.group else set()))

    @property
    def topology(self) -> str:
        return (self.group and self.group.topology) or self.machine.topology

    @property
    def metadata(self) -> dict[str, str]:
        """The items of its metadata."""
        items = (self.data.get("metadata") or {}).get("items") or ()
        return {str(each["key"]): str(each.get("value", "")) for each in items}

    @property
    def resource(self) -> str:
        """Its name in Compute Engine, relative to the root."""
        return f"projects/{self.path.project}/zones/{self.path.zone}/instances/{self.path.id}"

    def hostname(self, _worker: int) -> str:
        return self.path.id

    def attachments(self) -> Iterator[Attachment]:
        """Its boot disk, too; while it is stopped as well."""
        for entry in self.data["disks"]:
            disk = attached_disk(str(entry["source"]))
            if disk is not None:
                yield Attachment(disk, str(entry["mode"]), (self.resource,))

    def peers(self, kernel: Kernel) -> list[Machine | None]:
        """The members of its slice by worker number; None for one that is not there."""
        if self.group is None or not self.group.topology:
            return [self]
        paths = (self.path.child("instances", each).name for each in self.group.members)
        return [kernel.instances.get(each) for each in paths]


class InstanceHosts(Machines[Instance]):
    """The hosts of instances."""

    def attributes(self, machine: Instance) -> Mapping[str, str]:
        """With the keys of the project, unless the instance blocks them."""
        own, project = machine.metadata, self._kernel.project_metadata
        if own.get("block-project-ssh-keys", "").upper() == "TRUE" or _KEYS not in project:
            return own
        return {**own, _KEYS: "\n".join(filter(None, (own.get(_KEYS), project[_KEYS])))}

    def guest_attributes(self, machine: Instance) -> bool:
        """Off, unless metadata turns them on ("Set and query guest attributes")."""
        switch = machine.metadata.get(GUEST_SWITCH, self._kernel.project_metadata.get(GUEST_SWITCH, ""))
        return switch.upper() == "TRUE"

    def disks(self, machine: Instance, _worker: int) -> list[HostDisk]:
        entries = [each for each in machine.data["disks"] if not each.get("boot")]
        rows = [(str(each["source"]), str(each["mode"]), str(each["deviceName"])) for each in entries]
        return host_disks(self._kernel, machine, rows)

    def told(self, machine: Instance, worker: int) -> Mapping[str, Value]:
        data, scheduling = machine.data, machine.data["scheduling"]
        told = Told(
            machine.path.id,
            str(data.get("description") or ""),
            (data.get("tags") or {}).get("items") or (),
            last_part(data["machineType"]),
            bool(scheduling.get("preemptible")),
            {**machine.metadata, **self._slice_attributes(machine, worker)},
        )
        rows = [(str(each["deviceName"]), str(each.get("mode") or RW)) for each in data["disks"]]
        return {
            **machine_values(self._kernel, machine, worker, told),
            "instance/scheduling/automatic-restart": str(bool(scheduling.get("automaticRestart"))).upper(),
            "instance/scheduling/on-host-maintenance": str(scheduling["onHostMaintenance"]),
            **render_disks(rows, machine.generation),
            **self._interfaces(machine),
            **self._account(machine),
        }

    def _slice_attributes(self, machine: Instance, worker: int) -> dict[str, str]:
        kind = accelerator_type(machine.machine, machine.topology)
        endpoints = self._endpoints(machine)
        env = tpu_env(
            {
                "ACCELERATOR_TYPE": kind,
                "CONSUMER_PROJECT_ID": machine.path.project,
                "WORKER_ID": str(worker),
                "ZONE": machine.path.zone,
                **shape_env(machine.topology, machine.chips_per_host),
            }
        )
        return {
            "accelerator-type": kind,
            "agent-worker-number": str(worker),
            "tpu-env": env,
            **({"worker-network-endpoints": ",".join(endpoints)} if endpoints else {}),
            **({"created-by": machine.group.created_by} if machine.group else {}),
        }

    def _endpoints(self, machine: Instance) -> list[str]:
        """Host names alone, in the order of worker numbers. Where hosts have no names that resolve, their
        addresses, once all are known."""
        peers = machine.peers(self._kernel)
        if self._kernel.hosts.resolves:
            return machine.group.members if len(peers) > 1 and machine.group else [machine.path.id]
        found = [each.addresses[0].internal_ip for each in peers if each is not None and each.addresses]
        return found if len(found) == len(peers) else []

    def _interfaces(self, machine: Instance) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for number, each in enumerate(machine.data["networkInterfaces"]):
            if each.get("networkIP"):
                external = str((each.get("accessConfigs") or [{}])[0].get("natIP") or "")
                place = Network(
                    last_part(each["network"]), last_part(each["subnetwork"]), region_of(machine.path.zone)
                )
                found |= network_values(number, place, str(each["networkIP"]), external)
        return found

    def _account(self, machine: Instance) -> dict[str, Value]:
        """Nothing where it was made without one: programs find no credentials then."""
        accounts = machine.data.get("serviceAccounts") or ()
        return {
            path: value
            for each in accounts
            for path, value in account_values(
                self._kernel, str(each["email"]), tuple(each.get("scopes") or ())
            ).items()
        }

    def tell_names(self) -> None:
        """Hosts of instances find each other by name, as by the internal DNS of a network."""
        with self._kernel.lock:
            known = [each for each in self._kernel.instances.values() if each.addresses and not each.gone]
        names = {each.path.id: each.addresses[0].internal_ip for each in known}
        for each in known:
            with each.host_lock:
                if not each.gone:
                    self._kernel.hosts.set_names(each.key, names)
