"""What is wrong with the workers of an attempt, in words, whose fault it is, and how long it may last. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.errors import PartialError
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import HostEvent, WorkerStatus
from tpuctl.lib.text import Place, fold_workers
from tpuctl.model import timeouts
from tpuctl.model.attempts import Attempt, Cause
from tpuctl.model.records import RunRecord
from tpuctl.model.verdict import Wait
from tpuctl.runs.states import RunEvent, RunFinding


def describe_trouble(workers: Sequence[WorkerStatus]) -> str:
    """The workers that are not well, in words; those with the same trouble are named together."""
    groups: dict[str, list[Place]] = {}
    for worker in workers:
        if not (worker.healthy or worker.succeeded):
            groups.setdefault(_trouble(worker), []).append(worker.place)
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


def _many(what: str, members: Sequence[Place]) -> str:
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


def suspected_since(attempt: Attempt, mend: str = "") -> float | None:
    """Since when an attempt that is prepared is suspected of what `mend` mends, without one of a refusal;
    suspicion of something else does not count."""
    return attempt.suspect_since if attempt.mend == mend else None


def refused_until(run: RunRecord, attempt: Attempt, cause: Cause, now: float, *, lasts: bool) -> float:
    """Until when an attempt whose workers refuse to prepare or start is tried, before it ends with `cause`.

    `lasts`: trying again is in vain. Hosts that came up during the run get time all the same where they differ:
    their clock may not be set yet, nor a startup script be through.
    """
    since = suspected_since(attempt)
    since = now if since is None else since
    fresh = attempt.ready_at is not None and attempt.ready_at > run.created_at
    if lasts and not (fresh and cause is Cause.DRIFTED):
        return since
    return since + (timeouts.VERDICT_MAX_S if cause is Cause.HOST_LOST else timeouts.ACKNOWLEDGE_MAX_S)


def judge_refusal(run: RunRecord, attempt: Attempt, error: PartialError, now: float) -> RunFinding:
    """A worker could not be prepared or started: time for the cloud to show a loss, then the end.

    Workers that did not answer are never the user's failure, and those that do not know this machine's key
    are nobody's. Hosts that differ do so until somebody mends them.
    """
    why, details = error.message, error.details
    if details.get("refused"):
        return RunFinding(RunEvent.CLOSED, why)
    if details.get("broken"):
        forgotten = {"hosts": (), "checks": ()}
        return RunFinding(RunEvent.PROMISE_BROKEN, why, changes=forgotten, journal="prepare again")
    since, lost = suspected_since(attempt), bool(details.get("unreached"))
    cause = Cause.HOST_LOST if lost else Cause.DRIFTED if details.get("differences") else Cause.FAILED
    until = refused_until(run, attempt, cause, now, lasts=error.hint is not None)
    if since is None and (now < until or cause is not Cause.DRIFTED):
        changes = {"suspect_since": now, "suspect_why": why, "mend": ""}
        return RunFinding(RunEvent.REFUSED, why, changes=changes, is_suspicion=lost)
    return (
        RunFinding(RunEvent.REFUSED, why, Wait(why, until)) if now < until else RunFinding(RunEvent(cause), why)
    )


def judge_lack(attempt: Attempt, why: str, mend: str, now: float, *, may_pass: bool) -> RunFinding:
    """The project lacks something, which the command `mend` mends. The run is over once that is found again,
    after another look at the slice, and before it has cost anything; what ran before, and what may pass, is
    tried for a while, as a network may come up after its hosts."""
    since = suspected_since(attempt, mend)
    if since is None:
        return RunFinding(
            RunEvent.REFUSED, why, changes={"suspect_since": now, "suspect_why": why, "mend": mend}
        )
    patience_s = timeouts.VERDICT_MAX_S if attempt.number > 1 or may_pass else timeouts.POLL_FIRST_S
    if now < since + patience_s:
        return RunFinding(RunEvent.REFUSED, why)
    return RunFinding(RunEvent.NOT_SET_UP, why, changes={"mend": mend})
