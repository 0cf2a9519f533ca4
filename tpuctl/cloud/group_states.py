"""What the hosts of a slice of Compute Engine amount to, as the state of one node.

A slice is as whole as its worst host. How stopped and missing hosts ended is proved by Compute Engine's own
operations; without such a proof nothing counts as preempted. Pure: `group_state` is total, and a test walks the
product of what it can be given.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum

from msgspec import Struct

from tpuctl.cloud import wire
from tpuctl.cloud.wire import Json
from tpuctl.lib.text import counted
from tpuctl.model.cloud import NodeState


class HostState(IntEnum):
    """What a host is in, from the best to the worst."""

    RUNNING = 0
    COMING = 1
    REPAIRING = 2
    UNKNOWN = 3
    STOPPED = 4
    MISSING = 5


class Action(StrEnum):
    """What a group is at work on."""

    NONE = "none"
    CREATING = "creating"
    RESTARTING = "restarting"
    DELETING = "deleting"


class HostEnd(StrEnum):
    """How hosts ended that do not run any more; of several, what stands last here counts."""

    UNPROVEN = "unproven"
    SHUT_DOWN = "shut down"
    BY_HAND = "by hand"
    TIME_OVER = "time over"
    MAINTENANCE = "maintenance"
    HOST_ERROR = "host error"
    PREEMPTED = "preempted"


HOST_STATES: Mapping[str, HostState] = {
    "RUNNING": HostState.RUNNING,
    "PENDING": HostState.COMING,
    "PROVISIONING": HostState.COMING,
    "STAGING": HostState.COMING,
    "REPAIRING": HostState.REPAIRING,
    "PENDING_STOP": HostState.STOPPED,
    "STOPPING": HostState.STOPPED,
    "STOPPED": HostState.STOPPED,
    "SUSPENDING": HostState.STOPPED,
    "SUSPENDED": HostState.STOPPED,
    "TERMINATED": HostState.STOPPED,
    "DEPROVISIONING": HostState.STOPPED,
}
"""`Instance.status`; all else is UNKNOWN (https://cloud.google.com/compute/docs/instances/instance-lifecycle)."""

ENDS: Mapping[str, HostEnd] = {
    "compute.instances.preempted": HostEnd.PREEMPTED,
    "compute.instances.hostError": HostEnd.HOST_ERROR,
    "compute.instances.terminateOnHostMaintenance": HostEnd.MAINTENANCE,
    "compute.instances.guestTerminate": HostEnd.SHUT_DOWN,
    "compute.instances.deferredStop": HostEnd.TIME_OVER,
    "compute.instances.deferredDelete": HostEnd.TIME_OVER,
    "stop": HostEnd.BY_HAND,
    "suspend": HostEnd.BY_HAND,
    "delete": HostEnd.BY_HAND,
}
"""Types of operations that end an instance. Those with dots are Compute Engine's own: preemption, faults and
maintenance of the machine below, a stop from inside, be it by a fault there or by a person's `poweroff`
(https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-reboots), and the end of `maxRunDuration`
with the termination action STOP or DELETE, as users saw them in their lists of operations."""


def ends_filter(since: float = 0.0) -> str:
    """Selects them in a list of operations, from about the time `since` on: a day earlier, so that it is right
    whether times are compared as such or as the text that Compute Engine shows, which is not in UTC."""
    kinds = " OR ".join(f'(operationType="{each}")' for each in ENDS)
    if since <= 0:
        return kinds
    day = datetime.fromtimestamp(since, UTC) - timedelta(days=1)
    return f'({kinds}) AND (insertTime>="{day:%Y-%m-%dT%H:%M:%SZ}")'


class GroupStatus(Struct, frozen=True):
    """The hosts of a slice: how many it is to have, and the status of each that is there."""

    target: int
    statuses: tuple[str, ...] = ()
    action: Action = Action.NONE
    end: HostEnd = HostEnd.UNPROVEN

    @property
    def worst(self) -> HostState:
        if len(self.statuses) < self.target:
            return HostState.MISSING
        return max(
            (HOST_STATES.get(each, HostState.UNKNOWN) for each in self.statuses), default=HostState.STOPPED
        )


_H, _A, _N = HostState, Action, NodeState

STATES: Mapping[tuple[HostState, Action], NodeState] = {
    **{(host, _A.DELETING): _N.DELETING for host in _H},
    (_H.RUNNING, _A.NONE): _N.READY,
    (_H.RUNNING, _A.CREATING): _N.CREATING,
    (_H.RUNNING, _A.RESTARTING): _N.RESTARTING,
    (_H.COMING, _A.NONE): _N.CREATING,
    (_H.COMING, _A.CREATING): _N.CREATING,
    (_H.COMING, _A.RESTARTING): _N.RESTARTING,
    (_H.REPAIRING, _A.NONE): _N.REPAIRING,
    (_H.REPAIRING, _A.CREATING): _N.REPAIRING,
    (_H.REPAIRING, _A.RESTARTING): _N.REPAIRING,
    **{(_H.UNKNOWN, action): _N.UNKNOWN for action in _A if action is not _A.DELETING},
    (_H.STOPPED, _A.NONE): _N.UNKNOWN,
    (_H.STOPPED, _A.CREATING): _N.CREATING,
    (_H.STOPPED, _A.RESTARTING): _N.RESTARTING,
    (_H.MISSING, _A.NONE): _N.UNKNOWN,
    (_H.MISSING, _A.CREATING): _N.CREATING,
    (_H.MISSING, _A.RESTARTING): _N.RESTARTING,
}
"""By the worst host and what the group is at work on, where nothing is proved of how hosts ended: the proof may
come late, so a stop is a person's only once that is proved."""

ENDED: Mapping[HostEnd, NodeState] = {
    HostEnd.PREEMPTED: _N.PREEMPTED,
    HostEnd.HOST_ERROR: _N.PREEMPTED,
    HostEnd.MAINTENANCE: _N.PREEMPTED,
    HostEnd.SHUT_DOWN: _N.PREEMPTED,
    HostEnd.TIME_OVER: _N.TERMINATED,
    HostEnd.BY_HAND: _N.STOPPED,
}
"""Where hosts are stopped or missing and it is proved how they ended: a group that starts some of them anew
does not bring back what was in their memory. Whatever took hosts away that nobody stopped is met like a
preemption."""


def group_state(seen: GroupStatus) -> tuple[NodeState, str]:
    """The state of a slice, and why in words."""
    worst = seen.worst
    end = seen.end if seen.target else HostEnd.BY_HAND  # a group without hosts is what somebody made of it
    ended = worst in (HostState.STOPPED, HostState.MISSING) and end is not HostEnd.UNPROVEN
    by_proof = ended and seen.action is not Action.DELETING
    if by_proof:
        return ENDED[end], f"{_why(seen)}: {_HOW[end]}"
    state = STATES[worst, seen.action]
    unclear = f", {_UNCLEAR.get(worst, 'nothing proves yet how they ended')}" if state is _N.UNKNOWN else ""
    return state, _why(seen) + unclear


_UNCLEAR = {HostState.UNKNOWN: "which this tpuctl does not know"}
_HOW = {
    HostEnd.PREEMPTED: "Compute Engine preempted them",
    HostEnd.HOST_ERROR: "the machines below them failed",
    HostEnd.MAINTENANCE: "Compute Engine stopped them for maintenance",
    HostEnd.SHUT_DOWN: "they were stopped from inside",
    HostEnd.TIME_OVER: "their time is over",
    HostEnd.BY_HAND: "somebody stopped or deleted them",
}


def _why(seen: GroupStatus) -> str:
    running = sum(each == "RUNNING" for each in seen.statuses)
    if running == seen.target and seen.target:
        return "all of its hosts run"
    others = Counter(sorted(each for each in seen.statuses if each != "RUNNING"))
    missing = seen.target - len(seen.statuses)
    parts = [f"{running} of {counted(seen.target, 'host')} run"]
    parts += [f"{count} {'is' if count == 1 else 'are'} {status}" for status, count in others.items()]
    if missing > 0:
        parts.append(f"{missing} not there")
    return ", ".join(parts)


class Lost(Struct, frozen=True):
    """Hosts whose end is looked for: `stopped` ones by id, with the time of their last start, and all missing
    ones, whose names match the pattern `members` and are not among those `there`, from the time `since` on."""

    stopped: Mapping[str, float] = {}
    members: str = ""
    there: Collection[str] = ()
    since: float = 0.0

    @property
    def earliest(self) -> float:
        """The time before which none of them ended."""
        return min((*self.stopped.values(), *((self.since,) if self.members else ())), default=0.0)

    def concerns(self, operation: Json) -> bool:
        """Whether it ended one of them."""
        at = wire.moment(operation.get("insertTime"))
        started = self.stopped.get(wire.text(operation.get("targetId")))
        if started is not None:
            return at >= started
        name = wire.text(operation.get("targetLink")).rsplit("/", 1)[-1]
        missing = bool(re.fullmatch(self.members, name)) and name not in self.there
        return bool(self.members) and missing and at >= self.since


def how_ended(operations: Iterable[Json], lost: Lost) -> HostEnd:
    """What operations prove of hosts that do not run; the worst of several."""
    ends = (
        ENDS.get(wire.text(each.get("operationType")), HostEnd.UNPROVEN)
        for each in operations
        if not each.get("error") and lost.concerns(each)
    )
    return max(ends, key=list(HostEnd).index, default=HostEnd.UNPROVEN)
