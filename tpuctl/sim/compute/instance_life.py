"""The life of an instance from PROVISIONING to gone, as
https://docs.cloud.google.com/compute/docs/instances/instance-lifecycle has it.

Operations that Compute Engine begins by itself are named as `gcloud compute operations list` shows them:
compute.instances.preempted, and at the end of maxRunDuration compute.instances.deferredStop or deferredDelete.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping

from tpuctl.errors import TpuctlError
from tpuctl.sim.compute import instance_form as form
from tpuctl.sim.compute.catalog import Scope
from tpuctl.sim.compute.instance import Instance, InstanceHosts
from tpuctl.sim.compute.operations import ComputeOperations, Planned
from tpuctl.sim.compute.refusals import not_ready
from tpuctl.sim.wire.status import ApiError, Code, Json
from tpuctl.sim.wire.timestamps import pacific
from tpuctl.sim.world.data_disks import number_disks
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.paths import attached_disk
from tpuctl.sim.world.state import Kernel

log = logging.getLogger(__name__)

PREEMPTED = "compute.instances.preempted"
SAID: Mapping[str, str] = {
    PREEMPTED: "Instance was preempted.",
    "compute.instances.deferredStop": "Instance was stopped at the end of its maximum run duration.",
    "compute.instances.deferredDelete": "Instance was deleted at the end of its maximum run duration.",
}
"""What operations of Compute Engine's own say; the first as users quote it."""
DELETE = "DELETE"


class InstanceLife:
    """`remove_disk`: of a zone and name, with its content. Host work happens without the world's lock."""

    def __init__(
        self,
        kernel: Kernel,
        operations: ComputeOperations,
        hosts: InstanceHosts,
        remove_disk: Callable[[str, str], None],
    ) -> None:
        self._kernel = kernel
        self._operations = operations
        self._hosts = hosts
        self._remove_disk = remove_disk
        self.on_change: list[Callable[[Instance], None]] = []
        """Called without the lock whenever an instance runs, has ended or is gone."""

    def _changed(self, instance: Instance) -> None:
        for each in self.on_change:
            each(instance)

    def _begin(self, verb: str, instance: Instance, planned: Planned, said: str = "") -> Json:
        scope, held = Scope("zones", instance.path.zone), planned.error is None
        return self._operations.begin(verb, scope, instance.data, planned, held=held, said=said)

    def _set_status(self, instance: Instance, status: str, moment: str = "") -> None:
        """Expects the lock to be held."""
        instance.data["status"] = status
        if moment:
            instance.data[moment] = pacific(self._kernel.clock.now())

    # Up.

    def provision(self, instance: Instance, operation: Json) -> None:
        """Boots the host in a while, for the first time or again; then the operation ends."""
        again, delays = bool(instance.addresses), self._kernel.delays
        wait_s = delays.node_start if again else delays.instance_create

        def stage() -> None:
            with self._kernel.lock:
                if instance.state == "PROVISIONING":
                    self._set_status(instance, "STAGING")

        if wait_s > 0:
            self._kernel.after(wait_s / 2, stage)
        self._kernel.after(wait_s, lambda: self._boot(instance, operation))

    def _boot(self, instance: Instance, operation: Json) -> None:
        error = None
        try:
            if instance.addresses:
                self._hosts.start(instance)
            elif not self._hosts.create(instance):
                error = ApiError(Code.ABORTED, "The instance was deleted while it was being created.")
        except (TpuctlError, OSError) as problem:
            log.exception("the host of %s could not be created", instance.path.name)
            error = ApiError(Code.INTERNAL, f"Internal error. The host could not be created: {problem}")
        with self._kernel.lock:
            if error is None and not instance.leaving:
                self._set_status(instance, "RUNNING", "lastStartTimestamp")
                form.fill_addresses(instance.data["networkInterfaces"], instance.addresses[0])
                self._publish_keys(instance)
            self._operations.release(operation, error)
        if error is not None:
            self._hosts.destroy(instance)
            self._forget(instance)
            return
        self._hosts.tell_names()
        self._plan_end(instance)
        self._changed(instance)

    def _publish_keys(self, instance: Instance) -> None:
        """What Google's guest agent writes at each boot where it may."""
        kind, _, key = instance.addresses[0].host_key.partition(" ")
        if self._hosts.guest_attributes(instance):
            own = instance.guest.setdefault(instance.workers.start, {})
            own |= {f"hostkeys/{kind}": key.split(" ")[0], "guestInventory/Hostname": instance.path.id}

    def _plan_end(self, instance: Instance) -> None:
        """By a planned preemption, and at the end of its run time, which begins anew with each start."""
        boot = instance.boots
        fault = self._kernel.faults.take(FaultKind.PREEMPT, "preempt", instance.path)
        if fault is not None:
            self._kernel.after(fault.seconds, lambda: self.preempt(instance))
        run_s = form.run_seconds(instance.data["scheduling"])
        if run_s is not None:
            with self._kernel.lock:
                ends = pacific(self._kernel.clock.now() + run_s)
                instance.data["resourceStatus"] = {"scheduling": {"terminationTimestamp": ends}}
            self._kernel.after(run_s, lambda: self._expire(instance, boot))

    # Down.

    def delete(self, instance: Instance, planned: Planned) -> Json:
        with self._kernel.lock:
            self._check_ready(instance, leaving=True)
            operation = self._begin("delete", instance, planned)
            if planned.error is not None:
                return operation
            instance.leaving = True
            self._set_status(instance, "STOPPING")
            fault = self._kernel.faults.take(FaultKind.HANG, "instances.delete", instance.path)
        delay_s = self._kernel.delays.node_delete
        delay_s += 0.0 if fault is None else fault.seconds or math.inf
        self._kernel.after(delay_s, lambda: self._vanish(instance, operation))
        return operation

    def _vanish(self, instance: Instance, operation: Json, *, orderly: bool = True) -> None:
        if orderly:
            self._hosts.delete(instance)
        else:
            self._hosts.destroy(instance)
        self._forget(instance)
        with self._kernel.lock:
            self._operations.release(operation, None)
        self._hosts.tell_names()
        self._changed(instance)

    def _forget(self, instance: Instance) -> None:
        """Frees its name, and removes its disks that go with it."""
        with self._kernel.lock:
            instance.gone = instance.leaving = True
            if self._kernel.instances.get(instance.path.name) is instance:
                del self._kernel.instances[instance.path.name]
            number_disks(self._kernel, instance, [])
            disks = [
                attached_disk(str(each["source"])) for each in instance.data["disks"] if each["autoDelete"]
            ]
        for each in disks:
            if each is not None:
                self._remove_disk(*each)

    def stop(self, instance: Instance, _body: Json, planned: Planned) -> Json:
        with self._kernel.lock:
            self._check_ready(instance)
            operation = self._begin("stop", instance, planned)
            if planned.error is None and instance.state == "TERMINATED":
                self._operations.release(operation, None)
            if planned.error is not None or instance.state == "TERMINATED":
                return operation
            self._set_status(instance, "STOPPING")
        self._kernel.after(self._kernel.delays.node_stop, lambda: self._halt(instance, operation))
        return operation

    def _halt(self, instance: Instance, operation: Json, *, orderly: bool = True) -> None:
        self._hosts.stop(instance, orderly=orderly)
        with self._kernel.lock:
            if not instance.leaving:
                self._set_status(instance, "TERMINATED", "lastStopTimestamp")
                instance.data.pop("resourceStatus", None)
                for each in instance.data["networkInterfaces"]:
                    for access in each.get("accessConfigs") or ():
                        access.pop("natIP", None)
            self._operations.release(operation, None)
        self._changed(instance)

    def start(self, instance: Instance, _body: Json, planned: Planned) -> Json:
        with self._kernel.lock:
            self._check_ready(instance)
            operation = self._begin("start", instance, planned)
            if planned.error is None and instance.state == "RUNNING":
                self._operations.release(operation, None)
            if planned.error is not None or instance.state == "RUNNING":
                return operation
            instance.preempted = False
            self._set_status(instance, "PROVISIONING")
        self.provision(instance, operation)
        return operation

    def _check_ready(self, instance: Instance, *, leaving: bool = False) -> None:
        """One that is on its way up or down can only be deleted, one that is being deleted nothing more."""
        if instance.leaving or (not leaving and instance.state not in ("RUNNING", "TERMINATED")):
            raise not_ready(instance.resource)

    # What the cloud does by itself.

    def preempt(self, instance: Instance) -> None:
        """Shuts the host down now. The metadata server says so before the host hears of it; then the instance
        is TERMINATED, or gone where its instanceTerminationAction is DELETE."""
        with self._kernel.lock:
            if not instance.live:
                return
            instance.preempted = True
            vanishes = self._kernel.struck(FaultKind.PREEMPT_DELETES, instance)
        self._end(instance, PREEMPTED, vanishes=vanishes or self._ends_gone(instance))

    @staticmethod
    def _ends_gone(instance: Instance) -> bool:
        return bool(instance.data["scheduling"].get("instanceTerminationAction") == DELETE)

    def _expire(self, instance: Instance, boot: int) -> None:
        vanishes = self._ends_gone(instance)
        verb = "deferredDelete" if vanishes else "deferredStop"
        if instance.live and instance.boots == boot:
            self._end(instance, f"compute.instances.{verb}", vanishes=vanishes)

    def _end(self, instance: Instance, verb: str, *, vanishes: bool) -> None:
        hard = instance.preempted and self._kernel.struck(FaultKind.HARD_PREEMPT, instance)
        with self._kernel.lock:
            operation = self._begin(verb, instance, Planned(), SAID[verb])
            self._set_status(instance, "STOPPING")
            instance.leaving = vanishes
        if vanishes:
            self._vanish(instance, operation, orderly=not hard)
        else:
            self._halt(instance, operation, orderly=not hard)

    def reboot(self, instance: Instance, _workers: Collection[int] | None) -> None:
        """The host goes down in order and comes back as another boot, while the API says RUNNING."""
        self._hosts.stop(instance)
        self._kernel.after(self._kernel.delays.host_reboot, lambda: self._hosts.start(instance))

    def apply_keys(self, instance: Instance) -> None:
        self._hosts.apply_keys(instance)

    def load(
        self, instance: Instance, workers: Collection[int] | None, fields: Mapping[str, str] | None
    ) -> None:
        """Programs seem to run on the host, as `fields` say; None for none."""
        self._hosts.load(instance, workers, fields)
