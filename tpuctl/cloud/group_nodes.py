"""The objects of a slice of Compute Engine, seen as the one node that they stand for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.cloud import wire
from tpuctl.cloud.compute_errors import parse_errors
from tpuctl.cloud.group_states import HOST_STATES, Action, GroupStatus, HostState, Lost, group_state, how_ended
from tpuctl.cloud.instances import (
    Instance,
    chips_of,
    common,
    find_unsaid,
    is_tpu,
    parse_options,
    parse_tier,
    shared_disks,
    shown_metadata,
)
from tpuctl.cloud.rest import last_part
from tpuctl.cloud.wire import Json
from tpuctl.model.accelerators import Catalog
from tpuctl.model.cloud import Api, CloudErrorInfo, GroupHosts, NodeInfo, NodeState, ResourceKind, Tier
from tpuctl.model.resources import OWNER_LABEL, ZONE_MARK, CloudResource, parse_marks, without_marks


class GroupParts(Struct, frozen=True):
    """What there is of a slice, as the API shows it, with its hosts in the order of their names. `attempts` are
    the managed instances of a group that is at work, `operations` those that may prove how hosts ended."""

    name: str
    zone: str
    group: Json | None = None
    template: Json | None = None
    policy: Json | None = None
    hosts: tuple[Instance, ...] = ()
    attempts: tuple[Json, ...] = ()
    operations: tuple[Json, ...] = ()

    @property
    def exists(self) -> bool:
        return bool(self.group or self.hosts or self.template or self.policy)

    @property
    def properties(self) -> Json:
        return wire.message((self.template or {}).get("properties"))

    @property
    def machine_type(self) -> str:
        return self.hosts[0].machine_type if self.hosts else wire.text(self.properties.get("machineType"))

    @property
    def topology(self) -> str:
        return wire.text(wire.message((self.policy or {}).get("workloadPolicy")).get("acceleratorTopology"))

    @property
    def target(self) -> int:
        """How many hosts it is to have."""
        return wire.integer(self.group.get("targetSize")) if self.group else 1

    @property
    def of_tpus(self) -> bool:
        """Whether its hosts have chips, as far as can be seen."""
        return is_tpu(self.machine_type) or (bool(self.topology) and not self.machine_type)

    def has(self, collection: str) -> bool:
        """Whether that object of the slice is there, by the API's name for its kind."""
        return (
            bool(self._object(collection)) if collection != "instances" else not self.group and bool(self.hosts)
        )

    def marks_of(self, collection: str) -> Mapping[str, str]:
        """What that object says of whose it is."""
        if collection == "instances":
            return self.hosts[0].labels if self.hosts else {}
        return parse_marks(wire.text((self._object(collection) or {}).get("description")))

    def uid_of(self, collection: str) -> str:
        """The id of that object."""
        if collection == "instances":
            return self.hosts[0].uid if self.hosts else ""
        return wire.text((self._object(collection) or {}).get("id"))

    def _object(self, collection: str) -> Json | None:
        return {
            "instanceGroupManagers": self.group,
            "instanceTemplates": self.template,
            "resourcePolicies": self.policy,
        }[collection]

    @property
    def marks(self) -> dict[str, str]:
        """The marks of its topmost object."""
        top = self.group or self.template or self.policy or {}
        return parse_marks(wire.text(top.get("description")))

    @property
    def held(self) -> tuple[str, ...]:
        """The ids of its template and its policy, where these are of the same slice of tpuctl: one that a
        person made may serve other groups, too."""
        return tuple(wire.text(each.get("id")) for _, each in self._serving() if self._is_own(each))

    @property
    def stays(self) -> tuple[CloudResource, ...]:
        """The template and the policy that somebody else made: nothing of tpuctl deletes them."""
        return tuple(
            CloudResource(kind, wire.text(each.get("name")), self.zone if each.get("region") else "global")
            for kind, each in self._serving()
            if not self._is_own(each)
        )

    def _serving(self) -> list[tuple[ResourceKind, Json]]:
        parts = ((ResourceKind.TEMPLATE, self.template), (ResourceKind.POLICY, self.policy))
        return [(kind, each) for kind, each in parts if self.group and each]

    def _is_own(self, part: Json) -> bool:
        marks = parse_marks(wire.text(part.get("description")))
        return wire.text(part.get("name")) == self.name and OWNER_LABEL in marks

    @property
    def is_half_made(self) -> bool:
        """Whether it is tpuctl's by its marks, and of this zone."""
        return OWNER_LABEL in self.marks and self.marks.get(ZONE_MARK) == self.zone

    @property
    def prefix(self) -> str:
        """How the names of its hosts begin."""
        base = wire.text((self.group or {}).get("baseInstanceName"))
        return re.sub(r"-?#+(\[[0-9]+\])?$", "", base) + "-" if base else ""

    @property
    def members(self) -> str:
        """The pattern of its hosts' names: a digit for each `#` or more, else four letters of Google's."""
        base = wire.text((self.group or {}).get("baseInstanceName"))
        numbered = re.search(r"#+(?=(\[[0-9]+\])?$)", base)
        ending = f"[0-9]{{{len(numbered[0])},}}" if numbered else "[a-z0-9]{4}"
        return re.escape(self.prefix) + ending if base else ""

    @property
    def stable(self) -> bool:
        return wire.message((self.group or {}).get("status")).get("isStable") is not False

    def lost(self) -> Lost | None:
        """The hosts whose end has to be proved; None where all run or are on their way."""
        stopped = [each for each in self.hosts if HOST_STATES.get(each.status) is HostState.STOPPED]
        missing = len(self.hosts) < self.target
        if not stopped and (not missing or self.group is None):
            return None
        return Lost(
            {each.uid: wire.moment(each.started) for each in stopped},
            self.members if missing else "",
            {each.name for each in self.hosts},
            wire.moment((self.group or {}).get("creationTimestamp")),
        )


def host_filter(parts: GroupParts) -> str:
    """Selects the hosts of a group in a list of instances, beside others whose names begin alike."""
    return f'name eq "{parts.prefix}.*"'


def hosts_of(parts: GroupParts, found: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """Those instances that the group made, by their names."""
    own = (each for each in found if each.group == parts.name and each.zone == parts.zone)
    return tuple(sorted(own, key=lambda each: each.name))


def owner_labels(parts: GroupParts) -> dict[str, str]:
    """The labels of a slice: those that all its hosts have, over the marks of its group, which stay as they
    were written. What is left without a group has the marks of one of this zone, or none."""
    shown = parts.group is not None or (not parts.hosts and parts.is_half_made)
    marks = {key: value for key, value in parts.marks.items() if shown and key != ZONE_MARK}
    return {**marks, **common(each.labels for each in parts.hosts)}


def parse_parts(parts: GroupParts, catalog: Catalog) -> NodeInfo:
    """One node for all of it."""
    if parts.group is None and not parts.hosts:
        return _half_made(parts, catalog)
    state, why = group_state(_seen(parts))
    error = last_error(parts)
    top = parts.group or {}
    first = parts.hosts[0] if parts.hosts else None
    options = first.options if first else parse_options(parts.properties)
    description = wire.text(top.get("description")) if parts.group else options.description or ""
    metadata = common(shown_metadata(each.metadata) for each in parts.hosts)
    well = state in (NodeState.READY, NodeState.CREATING) and error is None
    return NodeInfo(
        name=parts.name,
        zone=parts.zone,
        uid=wire.text(top.get("id")) if parts.group else first.uid if first else "",
        state=state,
        accelerator_type=accelerator_name(parts, catalog),
        runtime_version=_image(parts),
        tier=first.tier if first else parse_tier(parts.properties),
        health="" if well else "NOT_WHOLE",
        health_description="" if well else _said(why, error),
        endpoints=tuple(each.endpoint for each in parts.hosts) if len(parts.hosts) == parts.target else (),
        labels=owner_labels(parts),
        metadata=metadata if parts.hosts else options.metadata,
        create_time=wire.text(top.get("creationTimestamp")) if parts.group else first.created if first else "",
        data_disks=shared_disks(parts.hosts),
        options=replace(options, description=without_marks(description) or None, metadata=metadata),
        tags=first.tags if first else (),
        unsaid=first.unsaid if first else find_unsaid(parts.properties),
        api=Api.COMPUTE,
        kind=ResourceKind.GROUP if parts.group else ResourceKind.INSTANCE,
        machine_type=parts.machine_type,
        holds=parts.held,
        stays=parts.stays,
        error=error,
        hosts=_hosts(parts),
        ends_at=min((wire.moment(each.ends) for each in parts.hosts if each.ends), default=None),
    )


def _hosts(parts: GroupParts) -> GroupHosts:
    running = (each for each in parts.hosts if HOST_STATES.get(each.status) is not HostState.STOPPED)
    there = tuple(each.name for each in parts.hosts)
    return GroupHosts(parts.target, there, tuple(each.name for each in running))


def _said(why: str, error: CloudErrorInfo | None) -> str:
    return why if error is None else f"{why}: {error.message}"


def _half_made(parts: GroupParts, catalog: Catalog) -> NodeInfo:
    top = parts.template or parts.policy or {}
    return NodeInfo(
        name=parts.name,
        zone=parts.zone,
        uid=wire.text(top.get("id")),
        state=NodeState.HALF_MADE,
        accelerator_type=accelerator_name(parts, catalog),
        runtime_version=_image(parts),
        tier=parse_tier(parts.properties) if parts.template else Tier.ON_DEMAND,
        labels=owner_labels(parts),
        create_time=wire.text(top.get("creationTimestamp")),
        api=Api.COMPUTE,
        kind=ResourceKind.TEMPLATE if parts.template else ResourceKind.POLICY,
        machine_type=parts.machine_type,
    )


def _seen(parts: GroupParts) -> GroupStatus:
    lost = parts.lost()
    ended = how_ended(parts.operations, lost) if lost else GroupStatus(0).end
    return GroupStatus(parts.target, tuple(each.status for each in parts.hosts), _action(parts), ended)


_ACTIONS: Mapping[str, Action] = {
    "creating": Action.CREATING,
    "creatingWithoutRetries": Action.CREATING,
    "recreating": Action.CREATING,
    "verifying": Action.CREATING,
    "refreshing": Action.RESTARTING,
    "restarting": Action.RESTARTING,
    "resuming": Action.RESTARTING,
    "starting": Action.RESTARTING,
}
"""`currentActions` of a group, the most important first."""


def _action(parts: GroupParts) -> Action:
    """A group is being deleted where all of its hosts are; the deletion of a few is somebody's."""
    if parts.group is None:
        return Action.NONE
    counts = {
        key: wire.integer(value) for key, value in wire.message(parts.group.get("currentActions")).items()
    }
    deleting = counts.get("deleting", 0)
    if deleting and deleting >= max(parts.target, len(parts.hosts)):
        return Action.DELETING
    found = next((action for key, action in _ACTIONS.items() if counts.get(key)), Action.NONE)
    waits = found is Action.NONE and not parts.stable and len(parts.hosts) < parts.target
    return Action.CREATING if waits else found


def last_error(parts: GroupParts) -> CloudErrorInfo | None:
    """Why hosts could not be made when that was tried last: of all together, where they are made so, else of
    the first that says it."""
    together = wire.message(wire.message((parts.group or {}).get("status")).get("bulkInstanceOperation"))
    tries = [wire.message(wire.message(together.get("lastProgressCheck")).get("error"))]
    tries += [wire.message(wire.message(each.get("lastAttempt")).get("errors")) for each in parts.attempts]
    waiting = parts.group is not None and not parts.stable
    return next((found for each in tries if waiting and (found := parse_errors(each)) is not None), None)


def _image(parts: GroupParts) -> str:
    """The image family or the image of the boot disk, in short where it is Google's."""
    disks = wire.messages(parts.properties.get("disks"))
    boot = next((each for each in disks if each.get("boot")), {})
    return last_part(wire.text(wire.message(boot.get("initializeParams")).get("sourceImage")))


def accelerator_name(parts: GroupParts, catalog: Catalog) -> str:
    """As tpuctl calls it: by machine type and topology, or how many hosts there are to be; the machine type
    itself where no table has that, and the topology where a policy is all that there is."""
    generation = catalog.of_machines(parts.machine_type)
    chips = chips_of(parts.machine_type) * parts.target
    if generation is None:
        return parts.machine_type or parts.topology
    types = [each for each in catalog.types.values() if each.generation == generation.name]
    shaped = catalog.shaped(generation, parts.topology) if parts.topology else None
    found = shaped or next((each for each in types if each.chips == chips and not parts.topology), None)
    return found.name if found else parts.machine_type
