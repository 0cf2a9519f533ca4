"""What is wrong with the workers of an attempt, in words, and whose fault it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.hosts.protocol import HostEvent, WorkerState, WorkerStatus
from tpuctl.lib.text import fold_workers
from tpuctl.model import timeouts
from tpuctl.model.records import Cause


def describe_trouble(workers: Sequence[WorkerStatus]) -> str:
    """The workers that are not well, in words; those with the same trouble are named together."""
    groups: dict[str, list[int]] = {}
    for worker in workers:
        if not (worker.healthy or worker.succeeded):
            groups.setdefault(_trouble(worker), []).append(worker.worker)
    ordered = sorted(groups.items(), key=lambda group: group[0] not in _EVENTS.values())
    words = [
        f"worker{'' if len(members) == 1 else 's'} {fold_workers(members)} {_many(what, members)}"
        for what, members in ordered
    ]
    more = f" and {len(words) - 3} more" if len(words) > 3 else ""
    return ", ".join(words[:3]) + more


_EVENTS = {
    HostEvent.SHUT_DOWN: "was shut down with its host",
    HostEvent.REBOOTED: "lost its host to a reboot",
    HostEvent.MAINTENANCE: "lost its host to maintenance",
    HostEvent.PREEMPTED: "was told that its host is preempted",
}


_PLURAL = {"was": "were", "does": "do", "is": "are", "its": "their"}


def _many(what: str, members: Sequence[int]) -> str:
    """`what` a worker does, for as many as do it."""
    return what if len(members) == 1 else " ".join(_PLURAL.get(word, word) for word in what.split(" "))


def _trouble(worker: WorkerStatus) -> str:
    if worker.event is not HostEvent.NONE:
        return _EVENTS[worker.event]
    if worker.state is WorkerState.EXITED:
        if worker.signal is not None:
            return f"was killed by signal {worker.signal}{_aside(worker)}"
        return f"exited with {worker.exit_status}{_aside(worker)}"
    if worker.state is WorkerState.UNREACHABLE:
        return "does not answer"
    if worker.state is WorkerState.CLOSED:
        return f"is closed to this machine ({worker.detail})" if worker.detail else "is closed to this machine"
    if worker.state is WorkerState.PREPARED:
        return "is prepared but not started"
    return "lost its supervisor" if worker.state is WorkerState.LOST else "does not know the attempt"


def _aside(worker: WorkerStatus) -> str:
    return f" ({worker.why})" if worker.why else ""


def cause_of_hosts(workers: Sequence[WorkerStatus]) -> Cause | None:
    """The cloud's doing, where a host says so: it beats the exit statuses of those whose peer went away."""
    events = {w.event for w in workers} - {HostEvent.NONE}
    if HostEvent.PREEMPTED in events:
        return Cause.PREEMPTED
    return Cause.HOST_LOST if events else None


def cause_of(failed: Sequence[WorkerStatus], workers: Sequence[WorkerStatus]) -> Cause:
    """Whose fault it was, the node being alive: what happened to hosts beats exit statuses, these beat losses,
    and 75 asks for a restart."""
    of_hosts = cause_of_hosts(workers)
    if of_hosts is not None:
        return of_hosts
    own = [w for w in failed if w.state is WorkerState.EXITED]
    if not own:
        return Cause.HOST_LOST
    if all(w.exit_status == timeouts.EXIT_RESTART for w in own):
        return Cause.RESTART_ASKED
    return Cause.FAILED
