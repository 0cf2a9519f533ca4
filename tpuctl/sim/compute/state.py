"""How calls change the disks, snapshots, images, addresses, firewall rules and the like of the project.

Firewall rules that allow something can be made: every port of a host is reached anyway. Boot disks of TPU VMs
are not here: they belong to the TPU service's own project, as in the real cloud.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from tpuctl.errors import TpuctlError
from tpuctl.sim.compute.bodies import check_body, fingerprint, last_part, set_labels
from tpuctl.sim.compute.catalog import GLOBAL, KINDS, ROOT, Kind, Scope, skeleton
from tpuctl.sim.compute.details import (
    address_details,
    firewall_details,
    policy_details,
    reservation_details,
    reserved_chips,
)
from tpuctl.sim.compute.disks import (
    Rates,
    Source,
    check_access_change,
    check_resize,
    check_throughput_change,
    copy_details,
    disk_details,
    quota_of,
)
from tpuctl.sim.compute.operations import ComputeOperations, Planned
from tpuctl.sim.compute.records import Record, Records
from tpuctl.sim.compute.refusals import already_there, in_use, not_ready
from tpuctl.sim.compute.templates import template_details
from tpuctl.sim.wire.payload import snake
from tpuctl.sim.wire.status import ApiError, Code, Json
from tpuctl.sim.wire.timestamps import pacific
from tpuctl.sim.world.quotas import exceeded
from tpuctl.sim.world.reservations import set_aside
from tpuctl.sim.world.state import Ids, Reservation
from tpuctl.sim.world.world import World

log = logging.getLogger(__name__)

MAX_RESOURCES = 10_000
"""Of each project: far beyond what anybody has, and memory is bounded."""
_DETAILS: Mapping[str, Callable[[Scope, Json], Json]] = {
    "reservations": reservation_details,
    "resourcePolicies": policy_details,
}
"""What new resources of a collection show besides their names."""


class ComputeState(Records):
    """`firewalls` are the rules with which the project begins. Hosts keep the content of disks and their
    copies."""

    def __init__(
        self,
        world: World,
        attached: Callable[[], Mapping[tuple[str, str], Json]],
        firewalls: Callable[[], Sequence[Json]],
    ) -> None:
        super().__init__(world, attached)
        self._addresses = count(1)
        self._firewalls = firewalls
        self._base = f"{ROOT}/projects/{self._project}"
        self._ids = Ids(2)
        self._rates = Rates(world.options.speed)
        self.users: Callable[[str], list[str]] = lambda _path: []
        """The groups that use a template or policy (`projects/…`), relative to the root."""
        self.operations = ComputeOperations(
            self._project, self._now, self._ids, lambda: self._wait_s(world.delays.compute_operation)
        )
        self._begin()

    def reset(self) -> None:
        with self._lock:
            for record in self._found.values():
                self._hosts.drop_disk(str(record.data["id"]))
            self._rates.taken.clear()
            self._found.clear()
            self._going.clear()
            self._begin()
        self.operations.reset()

    def new_id(self) -> str:
        """For a resource that is kept elsewhere."""
        return self._ids.node_id()

    def _wait_s(self, delay_s: float) -> float:
        return delay_s / self._world.options.speed

    def create_snapshot(self, scope: Scope, disk: str, body: Json, planned: Planned) -> Json:
        """Makes a snapshot by an operation on its disk."""
        kind = KINDS["disks"]
        with self._lock:
            self._purge()
            about = ("createSnapshot", scope, self._existing(kind, scope, disk).data)
        asked = {**body, "sourceDisk": self._path(kind, scope, disk)}
        return self.insert(KINDS["snapshots"], Scope(GLOBAL), asked, planned, about)

    def insert(
        self,
        kind: Kind,
        scope: Scope,
        body: Json,
        planned: Planned,
        about: tuple[str, Scope, Json] | None = None,
    ) -> Json:
        """Makes a resource; the operation. `about`: its verb and target, if not the insertion's own."""
        name = check_body(kind, body)
        with self._lock:
            self._purge()
            source = self._source(kind, body)
            key = (kind.collection, str(scope), name)
            if key in self._found:
                raise already_there(self._path(kind, scope, name))
            if len(self._found) - self._given >= MAX_RESOURCES:
                raise exceeded(kind.collection.upper(), MAX_RESOURCES, "globally")
            data = self._data(kind, scope, body, source)
            verb, place_of, target_data = about or (kind.operation_type("insert"), scope, data)
            error = planned.error or self._over_quota(kind.collection, data)
            if kind.collection == "reservations" and error is None:
                set_aside(self._world.kernel, Reservation(name, scope.name, *reserved_chips(body)))
            if (source is not None and source.field != "sourceDisk") or kind.collection != "disks":
                error = error or self._too_often(source)
            delays, of_disk = self._world.delays, source is not None and source.field == "sourceDisk"
            begins_s = self._wait_s(delays.copy_begins) if of_disk else 0.0
            extra_s = begins_s + self._wait_s(delays.disk_copy) if source is not None else 0.0
            held = source is not None and error is None
            planned = replace(planned, error=error)
            operation = self.operations.begin(verb, place_of, target_data, planned, extra_s, held=held)
            record = Record(data, self._now(), math.inf, copied=source is not None)
            self._found[key] = record
            if error is not None:
                self._lose(key, operation["_ends"])
        if source is not None and error is None:
            if begins_s > 0:
                self._world.kernel.schedule.after(begins_s, lambda: self._copy(key, record, source, operation))
            else:
                self._copy(key, record, source, operation)
            return operation
        if kind.collection == "disks" and error is None:
            self._hosts.write_disk(data["id"], int(data["sizeGb"]))
        record.ready_at = operation["_ends"]
        if kind.collection == "firewalls":
            self._tell_firewall()
        return operation

    def _data(self, kind: Kind, scope: Scope, body: Json, source: Source | None) -> Json:
        """A new resource as it is shown."""
        name = body["name"]
        kept = {field: body[field] for field in ("description", "labels", "family") if body.get(field)}
        labels = {"labelFingerprint": fingerprint(body.get("labels") or {})} if kind.labelled else {}
        return {
            **skeleton(self._base, kind, scope, name, self._ids.node_id(), pacific(self._now())),
            **kept,
            **labels,
            **self._details(kind, scope, body, source),
        }

    # Disks that are made with a machine, without operations of their own. But for the last two, all expect the
    # lock to be held.

    def plan_disk(self, scope: Scope, body: Json) -> Json:
        """What a new disk would be. Raises ApiError where it cannot be."""
        kind, name = KINDS["disks"], check_body(KINDS["disks"], body)
        if (kind.collection, str(scope), name) in self._found:
            raise already_there(self._path(kind, scope, name))
        return self._data(kind, scope, body, None)

    def over_quota(self, disks: Sequence[Json]) -> ApiError | None:
        """Why so many more disks are too much."""
        for metric, region in dict.fromkeys(quota_of(each) for each in disks):
            need = sum(int(each["sizeGb"]) for each in disks if quota_of(each) == (metric, region))
            first = next(each for each in disks if quota_of(each) == (metric, region))
            error = self._over_quota("disks", first, need)
            if error is not None:
                return error
        return None

    def add_disks(self, disks: Sequence[Json]) -> None:
        """They are there; their content is made by `fill_disks`, without the lock."""
        for data in disks:
            scope = f"zones/{last_part(data['zone'])}"
            self._found["disks", scope, data["name"]] = Record(data, self._now(), -math.inf)

    def fill_disks(self, disks: Sequence[Json]) -> None:
        for data in disks:
            self._hosts.write_disk(data["id"], int(data["sizeGb"]))

    def remove_disk(self, zone: str, name: str) -> None:
        """At once, with its content; nothing happens where there is none, or something else uses it."""
        used = "users" in self._attached().get((zone, name), {})
        with self._lock:
            key = ("disks", f"zones/{zone}", name)
            if key in self._found and not used:
                self._lose(key, self._now())
                self._purge()

    def _tell_firewall(self) -> None:
        """Hosts obey the rules that there are. A call that changes some is obeyed at once, its operation ends
        later."""
        with self._lock:
            rules = [
                record.data
                for (collection, _, _), record in self._found.items()
                if collection == "firewalls" and math.isinf(record.gone_at)
            ]
        self._hosts.set_firewall(rules)

    def make_network(self, scope: Scope, data: Json, planned: Planned) -> Json:
        """The operation that makes one, without any rules."""
        with self._lock:
            operation = self.operations.begin("insert", scope, data, planned)
            for key in [key for key in self._found if key[0] == "firewalls" and planned.error is None]:
                del self._found[key]
        self._tell_firewall()
        return operation

    def _copy(self, key: tuple[str, str, str], record: Record, source: Source, operation: Json) -> None:
        """Takes the content of `source` as it is now; without the lock, as it may take a while. What cannot be
        copied fails the operation."""
        data = record.data
        error = None
        try:
            size = int(data.get("sizeGb") or data["diskSizeGb"])
            self._hosts.write_disk(data["id"], size, source.data["id"])
        except (TpuctlError, OSError) as problem:
            log.exception("copying %s failed", source.data["selfLink"])
            error = ApiError(Code.INTERNAL, f"Internal error. The disk could not be copied: {problem}")
        with self._lock:
            self.operations.release(operation, error)
            if error is not None and self._found.get(key) is record:
                self._lose(key, operation["_ends"])
            record.ready_at = operation["_ends"]

    def _too_often(self, source: Source | None) -> ApiError | None:
        if source is None:
            return None
        path = str(source.data["selfLink"]).removeprefix(f"{ROOT}/")
        return self._rates.refusal(path, self._now())

    def change(self, verb: str, kind: Kind, scope: Scope, name: str, body: Json, planned: Planned) -> Json:
        """`resize`, `setLabels`, `patch` of a firewall rule, or `update` of the access mode or throughput: at
        once, and the operation ends later."""
        attached, error = self._attached(), planned.error
        with self._lock:
            self._purge()
            record = self._existing(kind, scope, name)
            data = record.data
            change: Json = {}
            if verb == "resize":
                check_resize(data, int(body.get("sizeGb") or 0))
                change = {"sizeGb": str(body["sizeGb"])}
                more = int(body["sizeGb"]) - int(data["sizeGb"])
                error = error or self._over_quota("disks", data, more)
            elif verb == "setLabels":
                change = set_labels(data, body)
            elif verb == "patch":
                asked = {key: value for key, value in data.items() if key in kind.inputs}
                change = firewall_details(self._project, {**asked, **body})
            elif "provisionedThroughput" in body:
                rate = int(body["provisionedThroughput"])
                check_throughput_change(data, rate, self._now() - record.tuned_at, self._rates.speed)
                change = {"provisionedThroughput": str(rate)}
                record.tuned_at = self._now() if error is None else record.tuned_at
            else:
                users = self._shown(record, attached).get("users", [])
                check_access_change(data, str(body.get("accessMode") or ""), users)
                change = {"accessMode": body["accessMode"]}
            named = {"resize": "resizeDisk"}.get(verb, verb)
            operation = self.operations.begin(named, scope, data, replace(planned, error=error))
            if error is None:
                record.data = change if verb == "setLabels" else {**data, **change}
        if verb == "resize" and error is None:
            self._hosts.write_disk(data["id"], int(change["sizeGb"]))
        if verb == "patch":
            self._tell_firewall()
        return operation

    def delete(self, kind: Kind, scope: Scope, name: str, planned: Planned) -> Json:
        """Takes a resource away when the operation is done."""
        attached = self._attached()
        with self._lock:
            self._purge()
            path = self._path(kind, scope, name)
            record = self._existing(kind, scope, name)
            if not math.isinf(record.gone_at):
                raise not_ready(path)
            users = self._shown(record, attached).get("users") or self.users(path)
            if users:
                raise in_use(snake(kind.singular), path, users[0].removeprefix(f"{ROOT}/"))
            verb = kind.operation_type("delete")
            operation = self.operations.begin(verb, scope, record.data, planned)
            if planned.error is None:
                if kind.collection == "reservations":
                    set_aside(self._world.kernel, Reservation(name, scope.name, "", 0))
                self._lose((kind.collection, str(scope), name), operation["_ends"])
            self._purge()
        if kind.collection == "firewalls":
            self._tell_firewall()
        return operation

    def _begin(self) -> None:
        """With what every project has."""
        rules = self._firewalls()
        self._given = len(rules)
        for rule in rules:
            self._found["firewalls", GLOBAL, str(rule["name"])] = Record(rule, -math.inf, -math.inf)
        self._tell_firewall()

    def _details(self, kind: Kind, scope: Scope, body: Json, source: Source | None) -> Json:
        if kind.collection == "disks":
            return disk_details(self._base, scope, body, source)
        if kind.collection == "addresses":
            return address_details(next(self._addresses), body)
        if kind.collection == "firewalls":
            return firewall_details(self._project, body)
        if kind.collection == "instanceTemplates":
            return template_details(body, self.find_image)
        if kind.collection in _DETAILS:
            return _DETAILS[kind.collection](scope, body)
        return copy_details(body, source.data) if source else {}
