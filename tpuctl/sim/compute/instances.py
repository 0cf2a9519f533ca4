"""Instances: what is asked of them.

Those with chips alone are simulated: each has a host of the simulator's tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tpuctl.sim.compute import instance_form as form
from tpuctl.sim.compute.bodies import check_body, fingerprint, shown_labels, target
from tpuctl.sim.compute.catalog import KINDS, ROOT, TPU_MACHINES, Kind, Scope, skeleton
from tpuctl.sim.compute.group_facts import GroupOfInstances
from tpuctl.sim.compute.instance import Instance, InstanceHosts
from tpuctl.sim.compute.instance_changes import InstanceChanges
from tpuctl.sim.compute.instance_life import InstanceLife
from tpuctl.sim.compute.operations import Planned
from tpuctl.sim.compute.refusals import absent, already_there, invalid
from tpuctl.sim.compute.room import lack_of_room, reservation_of
from tpuctl.sim.compute.state import ComputeState
from tpuctl.sim.wire.status import ApiError, Code, Json, unknown_method
from tpuctl.sim.wire.timestamps import pacific
from tpuctl.sim.world.data_disks import check_kind
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.paths import ResourcePath
from tpuctl.sim.world.reservations import take_chips
from tpuctl.sim.world.state import copy_json, guest_items
from tpuctl.sim.world.world import World

KIND = KINDS["instances"]
AS_ASKED = Planned()


class Instances:
    """`has_type`: whether a zone has a machine type. Calls take
    the world's lock for decisions and changes of state; host work happens outside of it.

    Groups make members by `create` and end them by `remove`; `life.on_change` tells them what becomes of
    these."""

    def __init__(
        self,
        world: World,
        state: ComputeState,
        has_type: Callable[[str, str], bool],
    ) -> None:
        self._world = world
        self._kernel = world.kernel
        self._state = state
        self._operations = state.operations
        self._has_type = has_type
        self._hosts = InstanceHosts(self._kernel)
        self.life = InstanceLife(self._kernel, self._operations, self._hosts, state.remove_disk)
        self._changes = InstanceChanges(self._kernel, self._operations, self._hosts)

    def reset(self) -> None:
        with self._kernel.lock:
            gone = self.all()
            self._kernel.instances.clear()
        for instance in gone:
            self._hosts.destroy(instance)

    def close(self) -> None:
        self._hosts.close()

    # Reads.

    def all(self) -> list[Instance]:
        return [each for each in self._kernel.instances.values() if isinstance(each, Instance)]

    def find(self, zone: str, name: str) -> Instance | None:
        found = self._kernel.instances.get(self._path(zone, name).name)
        return found if isinstance(found, Instance) else None

    def rows(self, _kind: Kind) -> list[tuple[str, str, Json]]:
        with self._kernel.lock:
            shown = [each for each in self.all() if not {each.path.name} & self._kernel.hidden]
            return [(f"zones/{each.path.zone}", each.path.id, copy_json(each.data)) for each in shown]

    def guest_attributes(self, scope: Scope, name: str, query: Json) -> Json:
        """Those below `queryPath`."""
        with self._kernel.lock:
            instance = self._existing(scope, name)
            asked = str(query.get("variableKey") or query.get("queryPath") or "")
            found = {} if self._unread(instance) else dict(instance.guest.get(instance.workers.start, {}))
        items = guest_items(dict(sorted(found.items())), asked)
        if not items:
            # The words that gcloud's users are shown, whether there are none or they are off.
            raise ApiError(Code.NOT_FOUND, f"The resource '{asked}' of type 'Guest Attribute' was not found.")
        return {
            "kind": "compute#guestAttributes",
            "queryPath": asked,
            "queryValue": {"items": items},
            "selfLink": f"{instance.data['selfLink']}/guestAttributes/{asked}",
        }

    def _unread(self, instance: Instance) -> bool:
        method = "instances.getGuestAttributes"
        return self._kernel.faults.take(
            FaultKind.NO_ATTRIBUTES, method, instance.path
        ) is not None or not self._hosts.guest_attributes(instance)

    def _path(self, zone: str, name: str) -> ResourcePath:
        return target(self._kernel.project, KIND, Scope("zones", zone), name)

    def _existing(self, scope: Scope, name: str) -> Instance:
        found = self.find(scope.name, name)
        if found is None:
            raise absent(f"projects/{self._kernel.project}/{scope}/instances/{name}")
        return found

    # Creation.

    def insert(self, _kind: Kind, scope: Scope, body: Json, planned: Planned) -> Json:
        """The operation of an instance that somebody asks for."""
        return self.create(scope.name, body, planned=planned)[1]

    def create(
        self, zone: str, body: Json, *, group: GroupOfInstances | None = None, planned: Planned = AS_ASKED
    ) -> tuple[Instance, Json]:
        """An instance, alone or of a group, which names it as a member before; and its operation. Raises
        ApiError for what is wrong with the body. One that there is no room or quota for is never listed: its
        operation fails. A group checks for room itself."""
        name = check_body(KIND, body)
        form.check_inputs(body)
        machine_type, link = form.machine_link(self._kernel.project, zone, body.get("machineType"))
        if not self._has_type(zone, machine_type):
            text = f"Machine type with name '{machine_type}' does not exist in zone '{zone}'."
            raise invalid("resource.machineType", body.get("machineType") or "", text)
        if machine_type not in TPU_MACHINES:
            raise unknown_method(f"instances of machine type {machine_type}, which has no TPUs")
        with self._kernel.lock:
            path = self._path(zone, name)
            if path.name in self._kernel.instances:
                raise already_there(f"projects/{path.project}/zones/{zone}/instances/{name}")
            data = self._data(zone, name, {**body, "machineType": link})
            key = f"{name[:20]}-{self._kernel.ids.short()}"
            instance = Instance(path, key, data, TPU_MACHINES[machine_type], group, life=self.life)
            model = str(data["scheduling"]["provisioningModel"])
            error, bound = planned.error, reservation_of(data)
            if error is None and bound:
                error = take_chips(self._kernel, instance, bound)
            elif error is None and group is None:
                error = lack_of_room(self._kernel, zone, instance.machine, 1, model)
            new = [] if error else self._new_disks(instance, body["disks"])
            error = error or self._state.over_quota(new)
            scope, held = Scope("zones", zone), error is None
            operation = self._operations.begin("insert", scope, data, Planned(planned.slow, error), held=held)
            if error is not None:
                return instance, operation
            self._put_disks(instance, body["disks"], new)
            self._kernel.instances[path.name] = instance
            self._changes.number(instance)
        self._state.fill_disks(new)
        self.life.provision(instance, operation)
        return instance, operation

    def _data(self, zone: str, name: str, body: Json) -> Json:
        base, scope = f"{ROOT}/projects/{self._kernel.project}", Scope("zones", zone)
        kept = ("description", "tags", "reservationAffinity", "resourcePolicies", "shieldedInstanceConfig")
        now = pacific(self._kernel.clock.now())
        return {
            **skeleton(base, KIND, scope, name, self._kernel.ids.node_id(), now),
            "status": "PROVISIONING",
            "machineType": body["machineType"],
            "canIpForward": bool(body.get("canIpForward")),
            **{key: body[key] for key in kept if body.get(key)},
            **shown_labels(body.get("labels") or {}),
            "metadata": form.shown_metadata((body.get("metadata") or {}).get("items") or ()),
            "scheduling": form.checked_scheduling(body.get("scheduling") or {}),
            "networkInterfaces": form.interfaces(self._kernel.project, zone, body["networkInterfaces"]),
            "serviceAccounts": form.accounts(body.get("serviceAccounts") or []),
            "disks": [],
            "fingerprint": fingerprint({"at": now}),
        }

    def _new_disks(self, instance: Instance, entries: list[Json]) -> list[Json]:
        """What of its disks is to be made; checks those that are there. Expects the lock to be held."""
        zone, made = instance.path.zone, []
        for index, entry in enumerate(entries):
            if entry.get("source"):
                self._changes.check_disk(instance, entry)
                continue
            asked = form.new_disk(zone, instance.path.id, entry, index, self._state.find_image)
            check_kind(instance.generation, asked["type"].rsplit("/", 1)[-1])
            made.append(self._state.plan_disk(Scope("zones", zone), asked))
        return made

    def _put_disks(self, instance: Instance, entries: list[Json], new: list[Json]) -> None:
        self._state.add_disks(new)
        links = iter([str(each["selfLink"]) for each in new])
        for index, entry in enumerate(entries):
            self._changes.put_disk(instance, {**entry, "source": entry.get("source") or next(links)}, index)

    # Changes.

    def change(self, verb: str, _kind: Kind, scope: Scope, name: str, body: Json, planned: Planned) -> Json:
        """One of the methods of `methods.CHANGES`."""
        acts: Mapping[str, Callable[[Instance, Json, Planned], Json]] = {
            "attachDisk": self._changes.attach_disk,
            "detachDisk": self._changes.detach_disk,
            "setLabels": self._changes.set_labels,
            "setMetadata": self._changes.set_metadata,
            "start": self.life.start,
            "stop": self.life.stop,
        }
        return acts[verb](self._existing(scope, name), body, planned)

    def delete(self, _kind: Kind, scope: Scope, name: str, planned: Planned) -> Json:
        return self.life.delete(self._existing(scope, name), planned)

    def remove(self, zone: str, name: str) -> Json | None:
        """What a group does to a member; None where there is none, or it goes already."""
        found = self.find(zone, name)
        return None if found is None or found.leaving else self.life.delete(found, AS_ASKED)
