"""What one observation of the cloud means for a slice: the one event that `states.py` has a transition for.

Pure: the same look at the same record always means the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.inventory.ownership import owner_labels
from tpuctl.model.cloud import (
    Api,
    CloudErrorInfo,
    NodeInfo,
    NodeState,
    OperationInfo,
    QueuedInfo,
    QueuedState,
    Tier,
)
from tpuctl.model.records import WITH_HOSTS, Incarnation, SliceRecord, SliceState
from tpuctl.model.resources import KIND_WORDS
from tpuctl.slices.states import ObservedEvent, SliceEvent

_S, _E = SliceState, SliceEvent


class SliceInfo(Struct, frozen=True):
    """What the cloud shows of one incarnation: None means that the API said not-found; `unread` says what could
    not be read."""

    node: NodeInfo | None = None
    queued: QueuedInfo | None = None
    operation: OperationInfo | None = None
    unread: str = ""
    unanswered: bool = False
    """Whether it is unread because nothing answered: an API that answers with an error is there."""
    refused: bool = False
    """Whether nothing listens there."""

    ended: NodeState | None = None
    """How the node ended that is not there any more, as `Cloud.find_end` says it."""

    @property
    def failure(self) -> CloudErrorInfo | None:
        """Why the request failed after it was taken, as its operation or its queued resource says."""
        if self.queued is not None and self.queued.state is QueuedState.FAILED:
            return self.queued.error
        if self.operation is not None and self.operation.error is not None:
            return self.operation.error
        return self.node.error if self.node is not None else None


_NODE_EVENTS: Mapping[NodeState, SliceEvent] = {
    NodeState.READY: _E.NODE_READY,
    NodeState.PREEMPTED: _E.PREEMPTED,
    NodeState.TERMINATED: _E.PREEMPTED,
    NodeState.STOPPED: _E.STOPPED,
    NodeState.STOPPING: _E.STOPPED,
    NodeState.HIDING: _E.STOPPED,
    NodeState.HIDDEN: _E.STOPPED,
    NodeState.DELETING: _E.DELETING,
    NodeState.UNKNOWN: _E.UNCLEAR,
    NodeState.HALF_MADE: _E.HALF_MADE,
}
"""Everything else (CREATING, STARTING, REPAIRING, …) is on its way to READY."""

_ENDS: Mapping[NodeState, tuple[SliceEvent, str]] = {
    NodeState.PREEMPTED: (_E.PREEMPTED, "Compute Engine preempted it"),
    NodeState.TERMINATED: (_E.TIME_OVER, "its time is over"),
    NodeState.STOPPED: (_E.ABSENT, "somebody deleted it"),
}
"""What became of hosts that are not there any more, by how they ended."""

_CLEANING = frozenset({_S.LOST, _S.REFUSED, _S.DELETING})
_EXPECT_NODE = frozenset({_S.PROVISIONING, *WITH_HOSTS})

FINAL_CODES = frozenset({3, 5, 7, 11, 12, 16})
"""google.rpc codes in operations and failed requests after which asking again is in vain: what was asked for
is malformed, names something that is not there, is not allowed or not offered. All others are asked again: 8 is
a stockout or a quota, 9 a stockout or a state that passes, 13 what a queued resource that found no capacity
reports, 1 and 10 that something else was at work; 2, 15 and what is not known say nothing of the request."""

NO_CAPACITY = ("reservation not found",)
"""What Google says with code 5 to who asked for no reservation, in the place of "no capacity"."""


def classify_slice(record: SliceRecord, info: SliceInfo, store_id: str) -> ObservedEvent:
    """The event that `info` amounts to for the current incarnation; `store_id` tells ours from others'."""
    if info.unread:
        return ObservedEvent(_E.UNKNOWN, info.unread)
    incarnation = record.incarnation
    if incarnation is None:
        return ObservedEvent(_E.ABSENT, "never asked for")
    foreign = _foreign(incarnation, owner_labels(record, incarnation, store_id), info) or _other_node(
        incarnation, info
    )
    if foreign:
        return ObservedEvent(_E.FOREIGN, foreign)
    if info.node is not None and (info.queued is None or info.queued.state is not QueuedState.DELETING):
        event = _NODE_EVENTS.get(info.node.state, _E.CREATING)
        suspended = info.queued is not None and info.queued.state in {
            QueuedState.SUSPENDING,
            QueuedState.SUSPENDED,
        }
        if not suspended and info.node.api is Api.COMPUTE:
            return _classify_compute(record, info.node, info.operation, event)
        if not suspended:
            return ObservedEvent(event, f"node {info.node.name} is {info.node.state}{_health(info.node)}")
    if info.queued is not None:
        expects_node = record.state in _EXPECT_NODE
        coming = record.state in {_S.REQUESTED, _S.PROVISIONING}
        return _classify_queued(info.queued, record.spec.tier, expects_node=expects_node, coming=coming)
    if info.ended is not None:
        event, how = _ENDS[info.ended]
        return ObservedEvent(event, f"{incarnation.cloud_name} is gone: {how}")
    cleaning = record.state in _CLEANING
    if record.spec.queued and record.state is _S.PROVISIONING and incarnation.unseen_since is None:
        return ObservedEvent(_E.ENDED_BY_PERSON, f"queued resource {incarnation.cloud_name} is gone")
    return _classify_missing(incarnation, info.operation, record.spec.tier, cleaning=cleaning)


def _classify_compute(
    record: SliceRecord, node: NodeInfo, operation: OperationInfo | None, event: SliceEvent
) -> ObservedEvent:
    """What stands for a slice in Compute Engine. A group for whose hosts there is no capacity waits for it, as
    a queued resource does; what no waiting mends is given up."""
    incarnation, tier = record.incarnation, record.spec.tier
    kind = KIND_WORDS[node.kind]
    told = f" ({node.health_description})" if node.health_description and event is not _E.DELETING else ""
    why = f"{kind} {node.name} is {node.state}{told}"
    never_up = incarnation is not None and incarnation.cloud_ready_at is None
    coming = never_up and record.state not in _CLEANING
    if node.state is NodeState.HALF_MADE:
        half = ObservedEvent(event, f"{kind} {node.name} is there, without hosts", left=node.kind)
        if not coming or operation is None:
            return half
        missing = _classify_missing(incarnation, operation, tier, cleaning=False) if incarnation else half
        return half if missing.event is _E.ABSENT else replace(missing, left=node.kind)
    if node.state is NodeState.TERMINATED:
        return ObservedEvent(_E.TIME_OVER, f"{why}: its time is over")
    # Also of one that was refused, which would go on asking by itself.
    error = node.error if never_up and event is _E.CREATING else None
    if error is None:
        return ObservedEvent(event, why)
    if error.code in FINAL_CODES or _is_quota(error):
        return ObservedEvent(_failure(error, tier), why)
    return ObservedEvent(_E.QUEUED, why)


def _is_quota(error: CloudErrorInfo) -> bool:
    return any(detail.get("reason") == "QUOTA_EXCEEDED" for detail in error.details)


def _foreign(incarnation: Incarnation, ours: Mapping[str, str], info: SliceInfo) -> str:
    """Why the thing under our name is not ours, or an empty string.

    Another person's fleet in the same project may use the same slice names: all labels must agree. What was
    adopted is known by the server's id instead.
    """
    for found in (info.node, info.queued):
        if found is None or _adopted(incarnation, found):
            continue
        known = isinstance(found, NodeInfo) and _among(found.uid, incarnation.node_uid)
        for label, value in ours.items():
            there = found.labels.get(label)
            # A label that somebody took off does not make the node that we knew another's.
            if there != value and not (known and there is None):
                return f"{found.name} exists but carries no label {label}={value}"
    return ""


def _adopted(incarnation: Incarnation, found: NodeInfo | QueuedInfo) -> bool:
    if isinstance(found, NodeInfo):
        return _among(found.uid, incarnation.adopted_uid)
    return bool(incarnation.adopted_request) and found.create_time == incarnation.adopted_request


def _other_node(incarnation: Incarnation, info: SliceInfo) -> str:
    """Why the node is not the one that was ready: ids are the server's and never used again. Before a
    node is ready, a queued resource may try several. What is left of a group has ids of its own."""
    known = incarnation.node_uid if incarnation.cloud_ready_at is not None else None
    left = info.node is not None and info.node.state is NodeState.HALF_MADE
    if known and info.node is not None and not left and not _among(info.node.uid, known):
        return f"{info.node.name} has id {info.node.uid}, not {known}: it is another node of that name"
    return ""


def _among(found: str, known: str | None) -> bool:
    """Whether the ids of the nodes `found` are all among the `known` ones: while a multislice is deleted, some
    of its nodes are gone before the others."""
    return bool(found and known) and set(found.split(",")) <= set((known or "").split(","))


def _health(node: NodeInfo) -> str:
    """What the API says of a node's health, where that is not fine."""
    if not unhealthy(node):
        return ""
    return f", {node.health}" + (f" ({node.health_description})" if node.health_description else "")


def unhealthy(node: NodeInfo) -> bool:
    """Whether the API itself calls the node unhealthy (`Node.Health`; often stale, so never enough alone)."""
    return node.health not in {"", "HEALTHY", "HEALTH_UNSPECIFIED"}


def _classify_queued(queued: QueuedInfo, tier: Tier, *, expects_node: bool, coming: bool) -> ObservedEvent:
    """`expects_node`: it was up before, or ought to be. `coming`: nothing can be taken away from it yet."""
    state = queued.state
    why = f"queued resource {queued.name} is {state}"
    if state is QueuedState.FAILED:
        error = queued.error or CloudErrorInfo(13, "no reason given")
        return ObservedEvent(_failure(error, tier), f"{why}: {error.message}")
    if state in {QueuedState.SUSPENDING, QueuedState.SUSPENDED}:
        if queued.initiator == "USER":
            return ObservedEvent(_E.ENDED_BY_PERSON, f"{why} by a user")
        if state is QueuedState.SUSPENDING and coming:
            # On its way to FAILED, which then says why: no capacity, or a quota.
            return ObservedEvent(_E.CREATING, f"{why} by the service before it had a node")
        return ObservedEvent(_E.PREEMPTED, f"{why} by the service")
    if state is QueuedState.DELETING:
        return ObservedEvent(_E.DELETING, why)
    if state is QueuedState.UNKNOWN:
        return ObservedEvent(_E.UNCLEAR, why)
    if state is QueuedState.ACTIVE and expects_node:
        return ObservedEvent(_E.NODE_MISSING, f"{why}, but its node is not there")
    if state is QueuedState.PROVISIONING:
        return ObservedEvent(_E.CREATING, why)
    return ObservedEvent(_E.QUEUED, why)


def _failure(error: CloudErrorInfo, tier: Tier) -> SliceEvent:
    """By its words before its code."""
    if tier is not Tier.RESERVED and any(words in error.message.lower() for words in NO_CAPACITY):
        return _E.CREATE_FAILED
    return _E.CREATE_REFUSED if error.code in FINAL_CODES else _E.CREATE_FAILED


def _classify_missing(
    incarnation: Incarnation, operation: OperationInfo | None, tier: Tier, *, cleaning: bool
) -> ObservedEvent:
    """Neither node nor queued resource exists. A running create may still bring one, unless it was up already
    (some operations never end); a failed one matters only while the slice is being made."""
    if operation is not None and not operation.done and incarnation.cloud_ready_at is None:
        why = f"operation {operation.name.rsplit('/', 1)[-1]} is running"
        return ObservedEvent(_E.CREATING, why, pending=True)
    if operation is not None and operation.error is not None and not cleaning:
        error = operation.error
        return ObservedEvent(_failure(error, tier), f"create failed with code {error.code}: {error.message}")
    return ObservedEvent(_E.ABSENT, f"{incarnation.cloud_name} does not exist")
