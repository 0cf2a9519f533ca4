"""Managed instance groups: their calls, and how they make, repair and end their members.

A group in BULK mode makes all its members or none and tries again until there is room for all. What a group
does by itself it does as docs.cloud.google.com/compute/docs/instance-groups describes it; how long it waits
between tries is not known.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tpuctl.sim.compute import group_form as form
from tpuctl.sim.compute.bodies import check_body, fingerprint, target
from tpuctl.sim.compute.catalog import ROOT, TPU_MACHINES, Kind, Scope, skeleton
from tpuctl.sim.compute.group_facts import GroupOfInstances
from tpuctl.sim.compute.group_form import Group, Member
from tpuctl.sim.compute.instance import Instance
from tpuctl.sim.compute.instances import Instances
from tpuctl.sim.compute.operations import Planned, error_row
from tpuctl.sim.compute.records import find_policy, find_template
from tpuctl.sim.compute.refusals import absent, already_there, invalid, not_ready, outdated
from tpuctl.sim.compute.room import lack_of_room, reservation_of
from tpuctl.sim.compute.state import ComputeState
from tpuctl.sim.wire.status import ApiError, Json, unknown_method
from tpuctl.sim.wire.timestamps import pacific
from tpuctl.sim.world.faults import FaultKind
from tpuctl.sim.world.iam import PROJECT_NUMBER
from tpuctl.sim.world.listing import page_of
from tpuctl.sim.world.world import World

RETRY_LEAST_S = 1.0
"""However fast the simulator: a group that waits for room must not keep it busy."""
KEPT_ERRORS = 100


class Groups:
    """Calls take the world's lock for decisions; members are made and removed outside of it."""

    def __init__(self, world: World, state: ComputeState, instances: Instances) -> None:
        self._world = world
        self._state = state
        self._instances = instances
        self._project = world.options.project
        self._lock = world.kernel.lock
        self._random = random.Random(world.options.seed)
        self._groups: dict[str, Group] = {}
        """By `projects/…/instanceGroupManagers/NAME`."""
        instances.life.on_change.append(self._changed)
        state.users = self._users

    def reset(self) -> None:
        with self._lock:
            self._groups.clear()

    # Reads.

    def rows(self, kind: Kind) -> list[tuple[str, str, Json]]:
        """Groups as both APIs that have them show them."""
        with self._lock:
            found = list(self._groups.values())
            show = self._shown if kind.collection == "instanceGroupManagers" else form.shown_unmanaged
            return [(f"zones/{each.path.zone}", each.path.id, show(each)) for each in found]

    def list_managed(self, scope: Scope, name: str, _query: Json) -> Json:
        """In one page, as by default."""
        with self._lock:
            group = self._existing(scope, name)
            found = form.shown_members(group, self._there(group))
        return {"managedInstances": found} if found else {}

    def list_instances(self, scope: Scope, name: str, query: Json) -> Json:
        """The instances of the group that a managed one stands on."""
        with self._lock:
            there = self._there(self._existing(scope, name))
        rows = [
            (each, {"instance": data["selfLink"], "status": data["status"]}) for each, data in there.items()
        ]
        here = f"projects/{self._project}/{scope}/instanceGroups/{name}/listInstances"
        return {"kind": "compute#instanceGroupsListInstances", "id": here, **page_of(rows, query, "items")}

    def list_errors(self, scope: Scope, name: str, _query: Json) -> Json:
        """What went wrong with members, newest first."""
        with self._lock:
            found = self._existing(scope, name).errors[::-1]
        return {"items": found} if found else {}

    def _shown(self, group: Group) -> Json:
        return form.shown_group(group, self._there(group))

    def _there(self, group: Group) -> Mapping[str, Json]:
        """The members that exist, by name."""
        found = {name: self._instances.find(group.path.zone, name) for name in group.members}
        return {name: each.data for name, each in found.items() if each is not None}

    def _existing(self, scope: Scope, name: str) -> Group:
        path = f"projects/{self._project}/{scope}/instanceGroupManagers/{name}"
        if path not in self._groups:
            raise absent(path)
        return self._groups[path]

    def _users(self, path: str) -> list[str]:
        """The groups that use a template or a policy."""
        url = f"{ROOT}/{path}"
        return [
            each.resource
            for each in self._groups.values()
            if url
            in (each.data["instanceTemplate"], each.data.get("resourcePolicies", {}).get("workloadPolicy"))
        ]

    # Calls.

    def insert(self, kind: Kind, scope: Scope, body: Json, planned: Planned) -> Json:
        """The operation of a new group, which ends before its members are there."""
        if scope.kind != "zones":
            raise unknown_method("regional groups of instances")
        name = check_body(kind, body)
        form.check_inputs(body)
        with self._lock:
            template, properties = find_template(self._state, self._project, scope, form.template_of(body))
            policy, topology = find_policy(self._state, self._project, scope, form.policy_of(body))
            path = target(self._project, kind, scope, name)
            creator = f"projects/{PROJECT_NUMBER}/{scope}/instanceGroupManagers/{name}"
            facts = GroupOfInstances(name, topology or None, created_by=creator)
            group = Group(path, self._data(kind, scope, body, template, policy), facts)
            group.machine_type = str(properties["machineType"])
            group.reserved = bool(reservation_of(properties))
            group.model = str(properties["scheduling"]["provisioningModel"])
            if group.resource in self._groups:
                raise already_there(group.resource)
            size = int(body["targetSize"])
            error = planned.error or self._misfit(group, size)
            planned = replace(planned, error=error)
            operation = self._state.operations.begin(kind.operation_type("insert"), scope, group.data, planned)
            if error is None:
                self._groups[group.resource] = group
                self._grow(group, size)
                self._try_in(group, operation["_ends"] - self._world.clock.now())
        return operation

    def change(self, verb: str, kind: Kind, scope: Scope, name: str, body: Json, planned: Planned) -> Json:
        """Its operation ends before what it schedules is done."""
        with self._lock:
            group = self._existing(scope, name)
            if group.deletion is not None:
                raise not_ready(group.resource)
            doomed: list[str] = []
            error = planned.error or self._refused(verb, group, body)
            if error is None:
                doomed = self._apply(verb, group, body)
            planned = replace(planned, error=error)
            operation = self._state.operations.begin(kind.operation_type(verb), scope, group.data, planned)
        self._remove(group, doomed)
        return operation

    def _refused(self, verb: str, group: Group, body: Json) -> ApiError | None:
        """Why a change fails. Raises ApiError for one that is not even taken."""
        size = group.size
        if verb == "resize":
            size = int(body.get("size") or 0)
            form.check_size(size)
        elif verb == "patch":
            if body.get("fingerprint") not in (None, "", group.data["fingerprint"]):
                raise outdated("Invalid fingerprint.")
            for key, value in body.items():
                same = value == group.data.get(key)
                if key not in (*form.CHANGEABLE, "name", "fingerprint", "targetSize") and not same:
                    raise unknown_method(f"a patch of '{key}' of groups of instances")
            size = int(body.get("targetSize", size))
        else:
            named = form.named(body)
            strangers = [each for each in named if each not in group.members]
            if strangers or not named:
                text = "The instance is not a member of the group."
                raise invalid("instances", ", ".join(strangers), text)
            size -= len(named) if verb == "deleteInstances" else 0
        return self._misfit(group, size)

    def _apply(self, verb: str, group: Group, body: Json) -> list[str]:
        """Changes the group; the names of members that must go now."""
        if verb == "recreateInstances":
            for name in form.named(body):
                group.members[name].action = "RECREATING"
            return form.named(body)
        if verb == "patch":
            group.data.update(form.changed(body))
            group.data["fingerprint"] = fingerprint({"body": str(sorted(body.items()))})
        doomed = form.named(body) if verb == "deleteInstances" else []
        if verb != "deleteInstances":
            size = int(body.get("size", body.get("targetSize", group.size)) or 0)
            doomed = sorted(name for name, each in group.members.items() if each.action != "DELETING")[size:]
            self._grow(group, size - group.size)
            self._try_in(group, 0.0)
        for name in doomed:
            group.members[name].action = "DELETING"
        return doomed

    def delete(self, kind: Kind, scope: Scope, name: str, planned: Planned) -> Json:
        """The operation ends when all members are gone."""
        with self._lock:
            group = self._existing(scope, name)
            if group.deletion is not None:
                raise not_ready(group.resource)
            verb, held = kind.operation_type("delete"), planned.error is None
            operation = self._state.operations.begin(verb, scope, group.data, planned, held=held)
            if not held:
                return operation
            group.deletion = operation
            for member in group.members.values():
                member.action = "DELETING"
        self._remove(group, list(group.members))
        return operation

    def _remove(self, group: Group, names: Sequence[str]) -> None:
        """Members that are not there are forgotten at once."""
        for name in names:
            self._instances.remove(group.path.zone, name)
        self._settle(group)

    # What a group is made from.

    def _data(self, kind: Kind, scope: Scope, body: Json, template: str, policy: str) -> Json:
        base, name = f"{ROOT}/projects/{self._project}", str(body["name"])
        asked = {**body, "resourcePolicies": {"workloadPolicy": policy} if policy else None}
        return {
            **skeleton(base, kind, scope, name, self._state.new_id(), pacific(self._world.clock.now())),
            "fingerprint": fingerprint({"name": name}),
            **form.filled(asked, template, f"{base}/{scope}"),
        }

    def _misfit(self, group: Group, size: int) -> ApiError | None:
        if group.facts.topology is None:
            return None
        return form.misfit(group.facts.topology, group.machine_type, size)

    def _properties(self, group: Group) -> Json:
        at, scope = form.template_of(group.data), Scope("zones", group.path.zone)
        return find_template(self._state, self._project, scope, at)[1]

    # Its members.

    def _grow(self, group: Group, count: int) -> None:
        """So many more members, which are still to be made. Expects the lock to be held."""
        for name in form.new_names(group, max(0, count), self._suffixes(group)):
            group.members[name] = Member(name)
        group.facts.members[:] = form.worker_order(list(group.members))

    def _suffixes(self, group: Group) -> Iterator[str]:
        """Random ends of names that no member has."""
        while True:
            end = "".join(self._random.choices(string.ascii_lowercase + string.digits, k=4))
            if f"{group.data['baseInstanceName']}-{end}" not in group.members:
                yield end

    def _try_in(self, group: Group, seconds: float) -> None:
        group.tries = True
        self._world.kernel.schedule.after(seconds, lambda: self._try(group))

    def _try(self, group: Group) -> None:
        """Makes the members that are missing: all or none of a group in BULK mode."""
        with self._lock:
            if self._groups.get(group.resource) is not group or group.deletion is not None:
                return
            there = self._there(group)
            waiting = ("CREATING", "RECREATING")
            missing = [m for m in group.members.values() if m.action in waiting and m.name not in there]
            properties = self._properties(group)
        lots = [missing] if group.bulk else [[each] for each in missing]
        errors = [self._make(group, lot, properties) for lot in lots if lot]
        with self._lock:
            group.tries = any(errors)
            if group.tries:
                delay_s = self._world.delays.group_retry / self._world.options.speed
                self._try_in(group, max(RETRY_LEAST_S, delay_s))

    def _make(self, group: Group, members: Sequence[Member], properties: Json) -> ApiError | None:
        """All of these, or none and the reason."""
        error, made = self._no_room(group, members), []
        for member in members if error is None else ():
            body = form.member_body(group, member.name, properties)
            try:
                _, operation = self._instances.create(group.path.zone, body, group=group.facts)
                error = operation["_error"]
            except ApiError as refusal:
                error = refusal
            if error is not None:
                break
            made.append(member.name)
        with self._lock:
            self._note(group, members, error)
        for name in made if error is not None else ():
            self._instances.remove(group.path.zone, name)
        return error

    def _no_room(self, group: Group, members: Sequence[Member]) -> ApiError | None:
        """Why Compute Engine cannot make them now: a fault planned for one or for all, or too few chips."""
        for name in (group.path.id, *(each.name for each in members)):
            path = replace(group.path, collection="instances", id=name)
            fault = self._world.faults.take(FaultKind.ERROR, "instances.insert", path, in_operation=True)
            if fault is not None:
                return ApiError(fault.code, fault.text(path))
        machine = TPU_MACHINES.get(group.machine_type)
        if machine is None or group.reserved:
            return None
        with self._lock:
            return lack_of_room(self._world.kernel, group.path.zone, machine, len(members), group.model)

    def _note(self, group: Group, members: Sequence[Member], error: ApiError | None) -> None:
        """What came of a try."""
        now = pacific(self._world.clock.now())
        if group.bulk:
            found = {} if error is None else {"error": {"errors": [error_row(error)]}}
            group.checked = {"timestamp": now, **found}
        for member in members:
            member.errors = [] if error is None else [error_row(error)]
            if error is None:
                member.action = "NONE"
                continue
            row = error_row(error)
            url = f"{group.data['zone']}/instances/{member.name}"
            details: Json = {"action": member.action, "instance": url}
            details["version"] = {"instanceTemplate": group.data["instanceTemplate"]}
            shown = {"code": row["code"], "message": row["message"]}
            group.errors.append({"error": shown, "instanceActionDetails": details, "timestamp": now})
        del group.errors[:-KEPT_ERRORS]

    def _changed(self, instance: Instance) -> None:
        """A member runs, ended or is gone."""
        with self._lock:
            group = next((each for each in self._groups.values() if each.facts is instance.group), None)
            member = group.members.get(instance.path.id) if group else None
            if group is None or member is None:
                return
            found = self._instances.find(group.path.zone, member.name)
            lost = found is None or found.data["status"] == "TERMINATED"
            repaired = lost and member.action == "NONE" and group.repairs and group.deletion is None
            if repaired:
                member.action = "RECREATING"
            again = member.action == "RECREATING" and found is None
            if again and not group.tries:
                self._try_in(group, 0.0)
        if repaired and found is not None:
            self._instances.remove(group.path.zone, member.name)
        self._settle(group)

    def _settle(self, group: Group) -> None:
        """Members that are gone for good are none any more; with the last one goes a group that is deleted."""
        with self._lock:
            there = self._there(group)
            for name, member in list(group.members.items()):
                if member.action == "DELETING" and name not in there:
                    del group.members[name]
            if self._groups.get(group.resource) is not group:
                return
            group.facts.members[:] = [name for name in group.facts.members if name in group.members]
            operation = group.deletion
            if operation is None or there:
                return
            self._state.operations.release(operation, None)
            left_s = operation["_ends"] - self._world.clock.now()
        self._world.kernel.schedule.after(max(0.0, left_s), lambda: self._forget(group))

    def _forget(self, group: Group) -> None:
        with self._lock:
            if self._groups.get(group.resource) is group:
                del self._groups[group.resource]
