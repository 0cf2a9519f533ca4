"""What it means that hosts cannot be prepared or do not start, and how long that may last. Pure."""

from __future__ import annotations

from tpuctl.errors import PartialError
from tpuctl.model import timeouts
from tpuctl.model.records import Attempt, Cause, RunRecord
from tpuctl.model.verdict import Wait
from tpuctl.runs.states import RunEvent, RunFinding


def refused_until(run: RunRecord, attempt: Attempt, cause: Cause, now: float, *, lasts: bool) -> float:
    """Until when an attempt whose workers refuse to prepare or start is tried, before it ends with `cause`.

    `lasts`: trying again is in vain. Hosts that came up during the run get time all the same where they differ:
    their clock may not be set yet, nor a startup script be through.
    """
    since = attempt.suspect_since if attempt.suspect_since is not None else now
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
    since, lost = attempt.suspect_since, bool(details.get("unreached"))
    cause = Cause.HOST_LOST if lost else Cause.DRIFTED if details.get("differences") else Cause.FAILED
    until = refused_until(run, attempt, cause, now, lasts=error.hint is not None)
    if since is None and (now < until or cause is not Cause.DRIFTED):
        changes = {"suspect_since": now, "suspect_why": why}
        return RunFinding(RunEvent.REFUSED, why, changes=changes, is_suspicion=lost)
    return (
        RunFinding(RunEvent.REFUSED, why, Wait(why, until)) if now < until else RunFinding(RunEvent(cause), why)
    )


def judge_lack(attempt: Attempt, why: str, mend: str, now: float, *, may_pass: bool) -> RunFinding:
    """The project lacks something, which the command `mend` mends. The run is over once that is found again,
    after another look at the slice, and before it has cost anything; what ran before, and what may pass, is
    tried for a while, as a network may come up after its hosts. Suspicion of something else does not count."""
    since = attempt.suspect_since if attempt.mend == mend else None
    if since is None:
        return RunFinding(
            RunEvent.REFUSED, why, changes={"suspect_since": now, "suspect_why": why, "mend": mend}
        )
    patience_s = timeouts.VERDICT_MAX_S if attempt.number > 1 or may_pass else timeouts.POLL_FIRST_S
    if now < since + patience_s:
        return RunFinding(RunEvent.REFUSED, why)
    return RunFinding(RunEvent.NOT_SET_UP, why, changes={"mend": mend})
