"""Which TPUs of a project are ours and unwanted, decided from labels and intents alone.

Only what carries the label of this store can be unwanted, and only where its own intent says so. A name proves
nothing: what merely looks like ours is named and left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from tpuctl.lib.names import label_value, parse_cloud_name
from tpuctl.lib.text import parse_number
from tpuctl.model.cloud import (
    INCARNATION_LABEL,
    OWNER_LABEL,
    STORE_LABEL,
    CloudResource,
    Listing,
    NodeInfo,
    NodeState,
    QueuedInfo,
    ResourceKind,
)
from tpuctl.model.disks import DataDisk, DiskMode
from tpuctl.model.records import Desired, SliceRecord, SliceState


class Fate(StrEnum):
    """What is to be done with a TPU."""

    DELETE = "delete"
    WANTED = "wanted"
    OTHER_USER = "other-user"
    OTHER_FLEET = "other-fleet"
    LOOKALIKE = "looks-like-ours"
    UNMANAGED = "unmanaged"
    UNKNOWN = "unknown"
    """Its zone could not be read whole."""


class Judged(Struct, frozen=True):
    """A TPU, its fate and the reason in words. `writes`: the disks that its hosts can write, which nobody asks
    before it is reaped."""

    found: CloudResource
    fate: Fate
    why: str
    writes: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What deletes it, where nobody wants it."""
        return "tpuctl reap --force" if self.writes else "tpuctl reap"


class Caller(Struct, frozen=True):
    """Who asks: the store's id, the user, whether all users' TPUs are meant, and whether what their hosts wrote
    may be lost."""

    store_id: str
    user: str
    all_users: bool = False
    may_lose: bool = False


_NO_HOSTS = frozenset(
    {
        NodeState.PREEMPTED,
        NodeState.TERMINATED,
        NodeState.STOPPED,
        NodeState.HIDDEN,
        NodeState.DELETING,
        NodeState.HALF_MADE,
    }
)


def written_disks(node: NodeInfo) -> tuple[str, ...]:
    """The disks that the hosts of a node, or of those that it stands for, can write."""
    parts = [part for part in (node.parts or (node,)) if part.state not in _NO_HOSTS or part.runs_in_part]
    disks = (disk for part in parts for disk in part.data_disks if _is_used(part, disk))
    return tuple(dict.fromkeys(disk.name for disk in disks if disk.mode is DiskMode.READ_WRITE))


def _is_used(node: NodeInfo, disk: DataDisk) -> bool:
    """Whether a host that runs has it, where not all do."""
    names = node.hosts.there if node.hosts is not None else ()
    having = [names[int(each)] for each in disk.workers if names]
    return not having or not all(has_ended(node, each) for each in having)


def has_ended(node: NodeInfo | None, instance: str) -> bool:
    """Whether that host of a slice of Compute Engine does not run any more, while others do."""
    if node is None or node.hosts is None:
        return False
    return node.runs_in_part and instance not in node.hosts.running


def listed_nodes(found: CloudResource, nodes: Iterable[NodeInfo]) -> list[NodeInfo]:
    """Those of `nodes` that go with a TPU."""
    queued = found.kind is ResourceKind.QUEUED
    of_zone = (node for node in nodes if node.zone == found.location)
    return [node for node in of_zone if found.name == (node.queued_resource if queued else node.name)]


def is_left_of(found: CloudResource, gone: CloudResource) -> bool:
    """Whether `found` is what is left of the same slice in Compute Engine, by its marks."""
    marks = (OWNER_LABEL, INCARNATION_LABEL, STORE_LABEL)
    return found.state == NodeState.HALF_MADE and all(found.labels.get(m) == gone.labels.get(m) for m in marks)


def unseen_nodes(missing: Iterable[str], listed: Listing[NodeInfo], zone: str) -> tuple[str, ...]:
    """Those of some nodes that were not found which a second, different read does not call gone."""
    return tuple(name for name in missing if not listed.absent(zone, name))


def gather(nodes: Iterable[NodeInfo], queued: Iterable[QueuedInfo]) -> list[CloudResource]:
    """Everything that is deleted by itself: a node goes with its queued resource, if that is there."""
    requests = list(queued)
    existing = {(request.zone, request.name) for request in requests}
    direct = [node for node in nodes if (node.zone, node.queued_resource) not in existing]
    found = [*(request.resource for request in requests), *(node.resource for node in direct)]
    return sorted(found, key=lambda each: each.place)


def judge(found: CloudResource, records: Mapping[str, SliceRecord], caller: Caller) -> Judged:
    """The fate of one TPU. `records` must have been read after it: an intent is written before its create."""
    store, name = found.labels.get(STORE_LABEL), found.slice_name
    adopter = next((each for each in records.values() if _adopted(each, found)), None)
    if adopter is not None:
        return Judged(found, Fate.WANTED, f"adopted as {adopter.name}; goes with tpuctl down {adopter.name}")
    if not store or not name:
        return _judge_unlabelled(found, records)
    if store != caller.store_id:
        return Judged(found, Fate.OTHER_FLEET, f"belongs to the fleet {store}")
    kept = _wanted(found, records.get(name))
    if kept:
        return Judged(found, Fate.WANTED, kept)
    if found.user != label_value(caller.user) and not caller.all_users:
        return Judged(found, Fate.OTHER_USER, f"unwanted, but it is {found.user or 'nobody'}'s")
    return Judged(found, Fate.DELETE, _unwanted(found, records.get(name)))


def _adopted(record: SliceRecord, found: CloudResource) -> bool:
    incarnation = record.incarnation
    if incarnation is None or record.state is SliceState.GONE or record.spec.zone != found.location:
        return False
    known = (*incarnation.adopted_uid.split(","), incarnation.adopted_request)
    return bool(found.uid) and found.uid in known


def _judge_unlabelled(found: CloudResource, records: Mapping[str, SliceRecord]) -> Judged:
    parsed = parse_cloud_name(found.name)
    record = records.get(parsed[0]) if parsed else None
    if parsed is not None and record is not None and parsed[1] <= record.last_incarnation:
        why = f"named like incarnation {parsed[1]} of {record.name}, but without labels"
        return Judged(found, Fate.LOOKALIKE, why)
    return Judged(found, Fate.UNMANAGED, "made without tpuctl")


def _number(found: CloudResource) -> int | None:
    return parse_number(found.labels.get(INCARNATION_LABEL, ""))


def _wanted(found: CloudResource, record: SliceRecord | None) -> str:
    """Why this must stay, or an empty string. Whatever is not clear stays."""
    number = _number(found)
    if number is None:
        return f"its label {INCARNATION_LABEL} is not a number"
    if record is None:
        return ""
    if number > record.last_incarnation:
        return f"incarnation {number} is newer than the record of {record.name} ({record.last_incarnation})"
    if record.desired is Desired.DOWN or record.state is SliceState.GONE:
        return ""
    if record.wants(number):
        return f"{record.name} is wanted ({record.state})"
    return ""


def _unwanted(found: CloudResource, record: SliceRecord | None) -> str:
    if record is None:
        return f"no intent for a slice {found.slice_name} in this store"
    if record.desired is Desired.DOWN or record.state is SliceState.GONE:
        return f"{record.name} was taken down ({record.state})"
    return f"incarnation {_number(found)} of {record.name}, which is at {record.last_incarnation}"
