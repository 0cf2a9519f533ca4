"""Changes of an instance that is there: labels, metadata and disks. Each is made at once, and its operation
ends later."""

from __future__ import annotations

from tpuctl.sim.compute.bodies import set_labels
from tpuctl.sim.compute.catalog import Scope
from tpuctl.sim.compute.instance import Instance, InstanceHosts
from tpuctl.sim.compute.instance_form import attached, shown_metadata
from tpuctl.sim.compute.operations import ComputeOperations, Planned
from tpuctl.sim.compute.refusals import in_use, invalid, not_ready, outdated
from tpuctl.sim.wire.status import ApiError, Code, Json, unknown_method
from tpuctl.sim.world.data_disks import (
    MAX_DISKS,
    check_kind,
    check_mode,
    disk_kind,
    find_source,
    number_disks,
)
from tpuctl.sim.world.paths import attached_disk
from tpuctl.sim.world.state import RW, Kernel


class InstanceChanges:
    """Each change answers with its operation; the world's lock is taken for the time of a decision."""

    def __init__(self, kernel: Kernel, operations: ComputeOperations, hosts: InstanceHosts) -> None:
        self._kernel = kernel
        self._operations = operations
        self._hosts = hosts

    def _begin(self, verb: str, instance: Instance, planned: Planned) -> Json:
        return self._operations.begin(verb, Scope("zones", instance.path.zone), instance.data, planned)

    def set_labels(self, instance: Instance, body: Json, planned: Planned) -> Json:
        with self._kernel.lock:
            labelled = set_labels(instance.data, body)
            operation = self._begin("setLabels", instance, planned)
            if planned.error is None:
                instance.data = labelled
        return operation

    def set_metadata(self, instance: Instance, body: Json, planned: Planned) -> Json:
        shown = shown_metadata(body.get("items") or ())
        with self._kernel.lock:
            if body.get("fingerprint") != instance.data["metadata"]["fingerprint"]:
                raise outdated("Supplied fingerprint does not match current metadata fingerprint.")
            operation = self._begin("setMetadata", instance, planned)
            if planned.error is None:
                instance.data["metadata"] = shown
        if planned.error is None:
            self._hosts.apply_keys(instance)
        return operation

    # Disks.

    def attach_disk(self, instance: Instance, body: Json, planned: Planned) -> Json:
        if body.get("forceAttach") or body.get("boot") or body.get("initializeParams"):
            raise unknown_method("attachDisk by force, of a boot disk or of a new one")
        with self._kernel.lock:
            self._check_state(instance)
            self.check_disk(instance, body)
            operation = self._begin("attachDisk", instance, planned)
            if planned.error is None:
                taken = {int(each["index"]) for each in instance.data["disks"]}
                index = next(number for number in range(len(taken) + 1) if number not in taken)
                self.put_disk(instance, body, index)
                self.number(instance)
        if planned.error is None:
            self._hosts.apply_disks(instance)
        return operation

    def check_disk(self, instance: Instance, entry: Json) -> None:
        """Refuses a disk that the instance cannot have. Expects the lock to be held."""
        source, mode = relative(entry.get("source")), str(entry.get("mode") or RW)
        name = str(entry.get("deviceName") or "")
        key = attached_disk(source)
        if key is None or key[0] != instance.path.zone:
            text = f"The disk must be in the zone of the instance, {instance.path.zone}."
            raise invalid("resource.source", source, text)
        disk = find_source(self._kernel, source)
        for each in instance.data["disks"]:
            if attached_disk(str(each["source"])) == key:
                raise in_use("disk", source, instance.resource)
            if name and each["deviceName"] == name:
                text = f"The device name '{name}' is already in use."
                raise invalid("resource.deviceName", name, text)
        most = MAX_DISKS.get(instance.generation, 128)
        if len(instance.data["disks"]) >= most:
            text = f"Maximum disks count should be less than or equal to [{most}], Requested : [{most + 1}]"
            raise ApiError(Code.INVALID_ARGUMENT, text)
        check_kind(instance.generation, disk_kind(disk))
        check_mode(self._kernel, source, disk, mode, instance.path)

    def put_disk(self, instance: Instance, entry: Json, index: int) -> None:
        """Expects the lock to be held."""
        source = relative(entry["source"])
        disk = find_source(self._kernel, source)
        shown = attached(entry, index, disk["selfLink"], instance.generation, disk["sizeGb"])
        instance.data["disks"].append(shown)

    def detach_disk(self, instance: Instance, body: Json, planned: Planned) -> Json:
        name = str(body.get("deviceName") or "")
        with self._kernel.lock:
            self._check_state(instance)
            found = [each for each in instance.data["disks"] if each["deviceName"] == name]
            if not found:
                raise invalid("deviceName", name, f"No attached disk found with device name '{name}'")
            if found[0]["boot"]:
                raise unknown_method("detachDisk of a boot disk")
            operation = self._begin("detachDisk", instance, planned)
            if planned.error is None:
                instance.data["disks"].remove(found[0])
                self.number(instance)
        if planned.error is None:
            self._hosts.apply_disks(instance)
        return operation

    def number(self, instance: Instance) -> None:
        """Expects the lock to be held."""
        entries = [] if instance.gone else instance.data["disks"]
        number_disks(self._kernel, instance, [str(each["source"]) for each in entries if not each["boot"]])

    @staticmethod
    def _check_state(instance: Instance) -> None:
        if instance.leaving or instance.state not in ("RUNNING", "TERMINATED"):
            raise not_ready(instance.resource)


def relative(source: object) -> str:
    """`projects/…` of a URL."""
    text = str(source or "")
    return text[text.find("projects/") :] if "projects/" in text else text
