"""Observations of slices in the cloud: one by one, or all at once with a handful of list calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from msgspec import Struct

from tpuctl.engine.services import Services, list_queued
from tpuctl.errors import DeniedError, NoAnswerError, RateLimitedError, TpuctlError, TransientError
from tpuctl.lib.names import node_names
from tpuctl.model import timeouts
from tpuctl.model.cloud import Api, Listing, NodeInfo, NodeState, OperationInfo, QueuedInfo
from tpuctl.model.records import WITH_HOSTS, SliceRecord, SliceState
from tpuctl.slices.classify import SliceInfo, classify_slice
from tpuctl.slices.multislice import combine_nodes
from tpuctl.slices.states import ObservedEvent, SliceEvent
from tpuctl.state.repository import Versioned, get_slice

Info = TypeVar("Info", NodeInfo, QueuedInfo)

_WILDCARD = "-"
"""All zones in one list; among those that could not be read, it stands for all that were not asked alone."""

_NEEDS_OPERATION = {
    SliceState.REQUESTED,
    SliceState.PROVISIONING,
    SliceState.LOST,
    SliceState.REFUSED,
    SliceState.DELETING,
}
"""States in which a running or failed create operation says more than the absence of its node."""

_HAD_A_NODE = {
    SliceState.PROVISIONING,
    *WITH_HOSTS,
    SliceState.LOST,
    SliceState.DELETING,
}
"""States in which the cloud has shown the slice before, so that its absence has to be proved."""


class Observation(Struct, frozen=True):
    """The record of one slice, what the cloud shows of it, and the event that this amounts to."""

    stored: Versioned[SliceRecord]
    observed: ObservedEvent
    info: SliceInfo

    @property
    def record(self) -> SliceRecord:
        return self.stored.record

    @property
    def shown(self) -> bool:
        """Whether the cloud shows something of ours."""
        something = self.info.node is not None or self.info.queued is not None
        return something and self.observed.event is not SliceEvent.FOREIGN


def observe_slice(services: Services, name: str) -> Observation:
    """Reads the record of one slice and what the cloud shows of it."""
    return observe_record(services, get_slice(services, name))


def observe_record(services: Services, stored: Versioned[SliceRecord]) -> Observation:
    """What the cloud shows now of the slice of a record."""
    info = _read_slice(services, stored.record)
    return Observation(stored, classify_slice(stored.record, info, services.store.identity()), info)


def _read_slice(services: Services, record: SliceRecord) -> SliceInfo:
    """What the cloud shows of the current incarnation; passing trouble makes it unread, never empty."""
    incarnation = record.incarnation
    if incarnation is None or record.state is SliceState.GONE:
        return SliceInfo()
    zone, queued = record.spec.zone, None
    try:
        if record.spec.queued:
            queued = services.cloud.find_queued(zone, incarnation.queued_name)
        node = find_slice_node(services, record)
        operation: OperationInfo | None = None
        half = node is not None and node.state is NodeState.HALF_MADE
        nothing = queued is None and (node is None or half)
        if nothing and incarnation.operation and record.state in _NEEDS_OPERATION:
            operation = services.tpus(record.spec.api).find_operation(incarnation.operation)
        if nothing and record.state in (WITH_HOSTS if half else _HAD_A_NODE):
            return _confirm_absence(services, record, operation, node)
    except (TransientError, RateLimitedError) as error:
        refused = bool(error.details.get("refused_connection"))
        return SliceInfo(unread=error.message, unanswered=isinstance(error, NoAnswerError), refused=refused)
    return SliceInfo(node=node, queued=queued, operation=operation)


def find_slice_node(services: Services, record: SliceRecord) -> NodeInfo | None:
    """The node of a slice, or one that stands for all of a multislice."""
    zone = record.spec.zone
    cloud = services.tpus(record.spec.api)
    return _one(record, [cloud.find_node(zone, name) for name in _node_names(record)])


def _node_names(record: SliceRecord) -> tuple[str, ...]:
    """What the nodes of the current incarnation are called."""
    return node_names(record.incarnation.cloud_name, record.spec.slices) if record.incarnation else ()


def _one(record: SliceRecord, found: list[NodeInfo | None]) -> NodeInfo | None:
    """The one node of a slice, or one that stands for all of a multislice."""
    if len(found) == 1:
        return found[0]
    return combine_nodes(found, was_whole=record.state in WITH_HOSTS)


def _confirm_absence(
    services: Services, record: SliceRecord, operation: OperationInfo | None, half: NodeInfo | None
) -> SliceInfo:
    """A second, different read before what was there counts as gone: one false answer proves nothing. `half` is
    what is there without its hosts."""
    api, zone = record.spec.api, record.spec.zone
    nodes, queued = services.tpus(api).list_nodes(zone), list_queued(services, api, zone)
    if zone in nodes.unreachable | queued.unreachable:
        return SliceInfo(unread=f"{zone} could not be read")
    whole = (node for node in nodes.items if half is None or node.state is not NodeState.HALF_MADE)
    names = {node.name for node in whole} | {request.name for request in queued.items}
    life = record.incarnation
    listed = names & {*((life.cloud_name, life.queued_name) if life else ()), *_node_names(record)}
    if listed:
        return SliceInfo(unread=f"{min(listed)} is listed but was not found")
    return SliceInfo(node=half, operation=operation, ended=_find_end(services, record))


def _find_end(services: Services, record: SliceRecord) -> NodeState | None:
    """How the hosts that the record knew ended."""
    life, zone = record.incarnation, record.spec.zone
    if life is None or not life.node_uid or record.state not in WITH_HOSTS:
        return None
    return services.tpus(record.spec.api).find_end(zone, life.node_uid)


class ApiInventory(Struct, frozen=True):
    """What one list call of each kind shows of all slices that one API makes, however many there are, by zone
    and name. `unread` says why nothing could be read; `refused`: it may not be called, and no slice uses it."""

    nodes: Mapping[tuple[str, str], NodeInfo] = {}
    queued: Mapping[tuple[str, str], QueuedInfo] = {}
    unreachable: frozenset[str] = frozenset()
    unread: str = ""
    refused: bool = False

    def absent(self, zone: str, name: str, asked: Collection[str]) -> bool:
        """Whether neither a node nor a request has this name, by lists that were read."""
        unread = bool(self.unread) or zone in self.unreachable
        if _WILDCARD in self.unreachable and zone not in asked:
            return False  # nobody has read it
        return not unread and (zone, name) not in self.nodes and (zone, name) not in self.queued


class CloudInventory(Struct, frozen=True):
    """The inventories of the APIs that were asked; `asked` are the zones for which they were."""

    apis: Mapping[Api, ApiInventory] = {}
    asked: Collection[str] = ()

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        return tuple(node for each in self.apis.values() for node in each.nodes.values())

    @property
    def queued(self) -> tuple[QueuedInfo, ...]:
        return tuple(request for each in self.apis.values() for request in each.queued.values())

    @property
    def unread(self) -> str:
        """Which APIs could not be read, and why; empty where all that slices use were."""
        dark = {api: each.unread for api, each in self.apis.items() if each.unread and not each.refused}
        said = "; ".join(dict.fromkeys(dark.values()))
        what = (
            "nothing in the cloud" if len(dark) == len(self.apis) else f"nothing by the API {min(dark or ' ')}"
        )
        return f"{what} could be read: {said}" if dark else ""

    @property
    def refused(self) -> str:
        """What an API says that may not be called, and that no slice uses; what is there is unknown."""
        return "; ".join(each.unread for each in self.apis.values() if each.refused)

    def observe(self, stored: Versioned[SliceRecord], store_id: str) -> Observation:
        """What the lists amount to for one record."""
        info = self._find_info(stored.record)
        return Observation(stored, classify_slice(stored.record, info, store_id), info)

    def absent(self, zone: str, name: str) -> bool:
        """Whether nothing has this name, by lists that were read."""
        return all(each.absent(zone, name, self.asked) for each in self.apis.values())

    def _find_info(self, record: SliceRecord) -> SliceInfo:
        incarnation, zone = record.incarnation, record.spec.zone
        if incarnation is None or record.state is SliceState.GONE:
            return SliceInfo()
        found = self.apis.get(record.spec.api, ApiInventory(unread="its API was not asked"))
        if found.unread:
            return SliceInfo(unread=found.unread)
        if zone in found.unreachable:
            return SliceInfo(unread=f"{zone} could not be read")
        return SliceInfo(
            node=_one(record, [found.nodes.get((zone, name)) for name in _node_names(record)]),
            queued=found.queued.get((zone, incarnation.queued_name)) if record.spec.queued else None,
        )


def list_inventory(
    services: Services, zones: Collection[str] = (), used: Collection[Api] = (Api.TPU,)
) -> CloudInventory:
    """What each API shows that slices have `used`, and that of TPUs, where something may be left of slices
    that nobody knows any more: list calls with the wildcard zone; where these leave some of `zones` out, or
    do not come to an end, one for each of them. Passing trouble makes all of an API unread, never empty; so
    does the refusal of one that no slice uses, as in projects where the TPU API is off."""
    apis = [api for api in Api if api is Api.TPU or api in used]
    return CloudInventory({api: _list_api(services, api, zones, used) for api in apis}, zones)


def _list_api(services: Services, api: Api, zones: Collection[str], used: Collection[Api]) -> ApiInventory:
    until = services.clock.now() + timeouts.ZONE_LISTS_S

    def late() -> bool:
        return services.clock.now() >= until

    try:
        nodes = _list_zones(services.tpus(api).list_nodes, zones, late)
        queued = _list_zones(partial(list_queued, services, api), zones, late)
    except (TransientError, RateLimitedError) as error:
        return ApiInventory(unread=error.message)
    except DeniedError as error:
        if api in used:
            raise
        return ApiInventory(unread=error.message, refused=True)
    return ApiInventory(
        {(item.zone, item.name): item for item in nodes.items},
        {(item.zone, item.name): item for item in queued.items},
        nodes.unreachable | queued.unreachable,
    )


def _list_zones(
    read: Callable[[str], Listing[Info]], zones: Collection[str], late: Callable[[], bool]
) -> Listing[Info]:
    """All that `read` lists until it is `late`. Raises TransientError when it lists nothing at all."""
    trouble: TransientError | None = None
    try:
        whole = read(_WILDCARD)
    except TransientError as error:
        trouble, whole = error, Listing((), frozenset({_WILDCARD, *zones}))
    items, dark = list(whole.items), set(whole.unreachable)
    for zone in sorted(dark & set(zones)):
        if late():
            break
        try:
            found = read(zone)
        except TpuctlError:
            continue  # stays unread, whatever the reason: one zone's trouble is not that of the others
        items += found.items
        dark -= {zone} - found.unreachable
    if trouble is not None and dark >= set(zones):
        raise trouble
    return Listing(tuple(items), frozenset(dark))
