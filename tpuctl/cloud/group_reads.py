"""What Compute Engine shows of slices: instances, groups, and the templates and policies that these need.

Reads alone, by REST. One slice costs two rounds of calls at the same time, and a third only where its hosts are
not all running; all slices together cost four lists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from urllib.parse import quote

from google.auth.credentials import Credentials
from msgspec.structs import replace

from tpuctl.cloud import wire
from tpuctl.cloud.compute_errors import API
from tpuctl.cloud.group_nodes import GroupParts, host_filter, hosts_of, parse_parts
from tpuctl.cloud.group_states import ENDED, Lost, ends_filter, how_ended
from tpuctl.cloud.instances import Instance, is_tpu, parse_instance
from tpuctl.cloud.rest import EVERYWHERE, RestClient, last_part
from tpuctl.cloud.wire import Json
from tpuctl.errors import NotFoundError
from tpuctl.lib.names import region_of
from tpuctl.model.cloud import Listing, NodeInfo, NodeState
from tpuctl.model.resources import ZONE_MARK
from tpuctl.model.shipped_files import load_accelerators

GROUPS, INSTANCES, TEMPLATES, POLICIES = (
    "instanceGroupManagers",
    "instances",
    "instanceTemplates",
    "resourcePolicies",
)
LIST_TIMEOUT_S = 60.0
"""A list over all zones asks every zone of the world."""


class GroupReads:
    """Reads of one project."""

    def __init__(self, project: str, endpoint: str, credentials: Credentials) -> None:
        self.rest = RestClient(endpoint, credentials)
        self._base = f"{API}projects/{project}"

    def path(self, place: str, collection: str, name: str = "") -> str:
        """`place` is a zone, a region, or `-` for all."""
        parts = place.split("-")
        kind = "aggregated" if place == "-" else f"{'regions' if len(parts) == 2 else 'zones'}/{quote(place)}"
        return f"{self._base}/{kind}/{collection}" + (f"/{quote(name)}" if name else "")

    def find_parts(self, zone: str, name: str) -> GroupParts | None:
        """All that there is of one slice; None where the API says of each part that it is not there."""
        region = region_of(zone)
        paths = [
            self.path(zone, GROUPS, name),
            self.path(zone, INSTANCES, name),
            self.path(region, TEMPLATES, name),
            self.path(region, POLICIES, name),
        ]
        group, single, template, policy = self.rest.find_each(paths, f"read {name} in {zone}")
        if group is None:
            hosts = (parse_instance(single),) if single else ()
            found = (
                GroupParts(name, zone, hosts=hosts) if hosts else GroupParts(name, zone, None, template, policy)
            )
            return self._with_ends([found])[0] if found.exists else None
        own = _Objects(*([each] if each else [] for each in (template, policy)))
        parts = own.parts_of(group, ())
        what, filtered = f"list the hosts of {name} in {zone}", {"filter": host_filter(parts)}
        listed = self.rest.listing(self.path(zone, INSTANCES), INSTANCES, what, parse_instance, filtered)
        linked = self._linked([replace(parts, hosts=hosts_of(parts, listed.items))])
        return self._with_ends(self._with_attempts(linked))[0]

    def find_slice(self, zone: str, name: str) -> NodeInfo | None:
        """One slice, seen as a node."""
        parts = self.find_parts(zone, name)
        return None if parts is None else parse_parts(parts, load_accelerators())

    def find_end(self, zone: str, uid: str) -> NodeState | None:
        """How an instance that is gone ended, as the operations on that id prove it."""
        return ENDED.get(how_ended(self._ends(self.rest, zone), Lost({uid: 0.0})))

    def list_slices(self, zone: str) -> Listing[NodeInfo]:
        """All slices with chips of a zone, or of all with `-`; also what is left of those of tpuctl."""
        places = dict.fromkeys((GROUPS, INSTANCES), zone)
        places |= {kind: zone if zone == "-" else region_of(zone) for kind in (TEMPLATES, POLICIES)}
        calls = [partial(self._list, place=place, collection=kind) for kind, place in places.items()]
        groups, instances, templates, policies = self.rest.together(calls)
        hosts = tuple(parse_instance(each) for each in instances.items)
        own = _Objects(templates.items, policies.items)
        found = self._linked([own.parts_of(each, hosts) for each in groups.items])
        found = [each for each in found if each.of_tpus]
        alone = (each for each in hosts if not each.group and is_tpu(each.machine_type))
        found += [GroupParts(each.name, each.zone, hosts=(each,)) for each in alone]
        found = self._with_ends(self._with_attempts(found))
        found += own.half_made(zone, {(each.zone, each.name) for each in found})
        catalog = load_accelerators()
        dark = _dark(zone, (groups, instances), (templates, policies))
        return Listing(tuple(parse_parts(each, catalog) for each in found), dark)

    def _list(self, client: RestClient, place: str, collection: str) -> Listing[Json]:
        where = "all zones" if place == "-" else place
        params = EVERYWHERE if place == "-" else None
        what, path = f"list {collection} of {where}", self.path(place, collection)
        return client.listing(path, collection, what, dict, params, timeout_s=LIST_TIMEOUT_S)

    def _linked(self, found: Sequence[GroupParts]) -> list[GroupParts]:
        """With the templates and policies that groups name, where these are called otherwise than the group."""
        links = sorted({link for each in found for link in _unread(each)})
        paths = [API + link for link in links]
        read = self.rest.find_each(paths, "read the templates and policies of groups")
        answers = dict(zip(links, read, strict=True))
        return [
            replace(
                each, template=each.template or answers.get(template), policy=each.policy or answers.get(policy)
            )
            for each in found
            for template, policy in [_links(each)]
        ]

    def _with_attempts(self, found: Sequence[GroupParts]) -> list[GroupParts]:
        """With the last attempts to make hosts, of groups that are at work."""
        at_work = [each for each in found if each.group is not None and not each.stable]
        answers = self.rest.together([partial(self._managed, parts=each) for each in at_work])
        tried = dict(zip([(each.zone, each.name) for each in at_work], answers, strict=True))
        return [replace(each, attempts=tried.get((each.zone, each.name), ())) for each in found]

    def _managed(self, client: RestClient, parts: GroupParts) -> tuple[Json, ...]:
        """A POST that changes nothing: asked again like any read. None of a group that was just deleted."""
        path = self.path(parts.zone, GROUPS, parts.name) + "/listManagedInstances"
        what = f"list the hosts of group {parts.name} in {parts.zone}"
        try:
            answer = client.read(what, lambda: client.change("POST", path, what))
        except NotFoundError:
            return ()
        return wire.messages(answer.get("managedInstances"))

    def _with_ends(self, found: Sequence[GroupParts]) -> list[GroupParts]:
        """With the operations that may prove how hosts ended, of zones where some do not run."""
        since: dict[str, float] = {}
        for each, lost in ((each, each.lost()) for each in found):
            if lost is not None:
                since[each.zone] = min(lost.earliest, since.get(each.zone, lost.earliest))
        calls = [partial(self._ends, zone=zone, since=earliest) for zone, earliest in since.items()]
        ended = dict(zip(since, self.rest.together(calls), strict=True))
        return [replace(each, operations=ended.get(each.zone, ())) for each in found]

    def _ends(self, client: RestClient, zone: str, since: float = 0.0) -> tuple[Json, ...]:
        path, what = self.path(zone, "operations"), f"list the ends of instances in {zone}"
        return client.listing(path, "operations", what, dict, {"filter": ends_filter(since)}).items


def _links(parts: GroupParts) -> tuple[str, str]:
    """The paths of the template and of the policy that a group names; empty where it names none."""
    group = parts.group or {}
    template = group.get("instanceTemplate") or wire.first(group.get("versions")).get("instanceTemplate")
    policy = wire.message(group.get("resourcePolicies")).get("workloadPolicy")
    return _path_of(wire.text(template)), _path_of(wire.text(policy))


def _path_of(link: str) -> str:
    return link[link.find("projects/") :] if "projects/" in link else ""


def _unread(parts: GroupParts) -> tuple[str, ...]:
    template, policy = _links(parts)
    missing = (template if parts.template is None else "", policy if parts.policy is None else "")
    return tuple(each for each in missing if each)


def _place(found: Json) -> tuple[str, str]:
    """Region and name; `global` for what is of none."""
    return last_part(wire.text(found.get("region"))) or "global", wire.text(found.get("name"))


def _place_of(path: str) -> tuple[str, str]:
    parts = path.split("/")
    return ("global" if "global" in parts else parts[-3] if len(parts) > 2 else ""), parts[-1]


class _Objects:
    """Templates and policies as they were listed, by region and name."""

    def __init__(self, templates: Iterable[Json], policies: Iterable[Json]) -> None:
        self.templates = {_place(each): each for each in templates}
        self.policies = {_place(each): each for each in policies if each.get("workloadPolicy")}

    def parts_of(self, group: Json, hosts: tuple[Instance, ...]) -> GroupParts:
        """A group with what of it was read."""
        parts = GroupParts(wire.text(group.get("name")), last_part(wire.text(group.get("zone"))), group)
        template, policy = (_place_of(link) for link in _links(parts))
        return replace(
            parts,
            template=self.templates.get(template),
            policy=self.policies.get(policy),
            hosts=hosts_of(parts, hosts),
        )

    def half_made(self, zone: str, whole: Collection[tuple[str, str]]) -> list[GroupParts]:
        """What is left of slices of tpuctl that have no hosts, in their zones."""
        found = []
        for place in sorted({*self.templates, *self.policies}):
            template, policy = self.templates.get(place), self.policies.get(place)
            parts = GroupParts(place[1], "", template=template, policy=policy)
            parts = replace(parts, zone=parts.marks.get(ZONE_MARK, ""))
            if parts.is_half_made and zone in ("-", parts.zone) and (parts.zone, parts.name) not in whole:
                found.append(parts)
        return found


def _dark(zone: str, zonal: Sequence[Listing[Json]], regional: Sequence[Listing[Json]]) -> frozenset[str]:
    """The zones that were not read. Of a region whose templates or policies were not, nothing is certain."""
    regions = {region for each in regional for region in each.unreachable}
    known = {last_part(wire.text(item.get("zone"))) for each in zonal for item in each.items} | {zone}
    zones = {place for each in zonal for place in each.unreachable}
    return frozenset(zones | regions | {each for each in known if region_of(each) in regions})
