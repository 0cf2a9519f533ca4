"""Attempts of a run on a cluster: they are opened, they end, and the last one ends the run."""

from __future__ import annotations

from msgspec.structs import replace

from tpuctl.engine.events import Note
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.kube.observe import NOTHING, ClusterRunObservation, PodSeen
from tpuctl.kube.plan import ClusterPlan, end_cause, end_reason
from tpuctl.kube.states import ClusterEvent
from tpuctl.model.attempts import Attempt, AttemptPhase, Cause
from tpuctl.model.clusters import ClusterRun
from tpuctl.model.records import RunState
from tpuctl.provenance.parts import add_attempt, seal_manifest
from tpuctl.runs.charge import worker_ends
from tpuctl.runs.context import RunContext
from tpuctl.runs.end_attempt import find_failure
from tpuctl.runs.failure import describe_failure
from tpuctl.runs.log_archive import archive_logs
from tpuctl.state.repository import save_attempt_history

FINAL = {Cause.SUCCEEDED: RunState.SUCCEEDED, Cause.STOPPED: RunState.STOPPED}
"""The state of a run by the cause of its last attempt; FAILED by all others."""


def moment(context: RunContext, at: float | None, floor: float) -> float:
    """A time of the cluster by the store's clock: not before `floor`, nor after now, which stands for none."""
    now = context.services.store.now()
    return now if at is None else min(max(at, floor), now)


def with_chips(context: RunContext, attempt: Attempt, seen: ClusterRunObservation) -> Attempt:
    """The attempt with the time from which on it holds chips, once it does: it begins then."""
    if attempt.provisioned_at is not None or seen.held_since is None:
        return attempt
    at = moment(context, seen.held_since, context.run.created_at)
    return replace(attempt, created_at=at, provisioned_at=at)


def open_attempt(context: RunContext, here: ClusterRun, seen: ClusterRunObservation) -> None:
    """The attempt that JobSet is at; of those that nobody saw, the numbers are left out."""
    run, restarts = context.run, seen.restarts - here.restarts
    counted = seen.counted - here.counted
    # A restart has ended the attempt before it; each further one is an attempt that nobody saw.
    number = restarts + 1 if run.attempt is None else run.attempt.number + max(1, restarts)
    context.journal("attempt", f"attempt {number} of {here.workers} workers")
    before = run.attempt.ended_at if run.attempt is not None else None
    at = moment(context, seen.held_since, before or run.created_at)
    attempt = Attempt(
        number=number,
        incarnation=seen.restarts + 1,
        fence=context.fence,
        state=AttemptPhase.PREPARING,
        created_at=at,
        workers=tuple(range(here.workers)),
        slices=here.slices,
        processes=len(here.containers),
        requested_at=run.created_at,
        provisioned_at=at if seen.held_since is not None else None,
        node_uid=here.uid,
        timeline=(context.entry("attempt", "admitted"),),
    )
    context.save(
        replace(
            run,
            attempt=attempt,
            state=RunState.PREPARING,
            reason="",
            failures=run.failures + counted,
            preemptions=run.preemptions + restarts - counted,
            cluster=replace(here, restarts=seen.restarts, counted=seen.counted, waits_for=""),
        )
    )


def end_attempt(
    context: RunContext, here: ClusterRun, seen: ClusterRunObservation, cause: Cause, why: str
) -> Attempt:
    """Writes down how the attempt ended that JobSet or Kueue took the pods of, and that the run waits."""
    run = context.run
    gone = seen.restarts != here.restarts
    attempt = _ended(context, NOTHING if gone else seen, cause, why, seen.made_at if gone else seen.left_at)
    add_attempt(context.services, run, None, attempt)
    save_attempt_history(context.services, run, attempt)
    context.journal("ended", f"attempt {attempt.number}: {cause} ({why})")
    context.services.emit(Note(run.id, f"attempt {attempt.number} ended: {why}"))
    evicted = 0 if gone else 1
    context.save_attempt(attempt, state=RunState.WAITING, reason=why, preemptions=run.preemptions + evicted)
    return attempt


def finish(
    context: RunContext, plan: ClusterPlan, seen: ClusterRunObservation, cause: Cause | None = None
) -> None:
    """Writes down how the run ended: the attempt, its manifest, then its record. A repeat writes the same."""
    services, run = context.services, context.run
    cause = cause or end_cause(plan.event, run)
    state = FINAL.get(cause, RunState.FAILED)
    why = run.reason if run.attempt is not None and run.attempt.cause is not None else plan.why
    if state is RunState.STOPPED:
        why = "stopped" if plan.event is ClusterEvent.GONE else f"stopped: {why}"
    reason, ended_at = why, services.store.now()
    if run.attempt is not None and run.attempt.state is not AttemptPhase.ENDED:
        attempt = _ended(context, seen, cause, why, seen.left_at)
        ended_at = attempt.ended_at or ended_at
        if attempt.failure is not None and cause is Cause.FAILED:
            reason = f"{attempt.suspect_why}; {describe_failure(attempt.failure)}"
        run = replace(run, attempt=attempt, failures=run.failures + (cause is Cause.FAILED))
        add_attempt(services, run, None, attempt)
        save_attempt_history(services, run, attempt)
    run = replace(run, state=state, reason=reason, ended_at=ended_at)
    context.journal_end(run)
    context.save(replace(run, totals=seal_manifest(services, run, None)))


def hosts_of(pods: tuple[PodSeen, ...]) -> tuple[dict[str, str], ...]:
    """Where workers are, for the record of an attempt."""
    return tuple({"worker": str(each.status.worker), "hostname": each.node, "pod": each.pod} for each in pods)


def _ended(
    context: RunContext, seen_last: ClusterRunObservation, cause: Cause, why: str, at: float | None
) -> Attempt:
    """The open attempt, ended at a time of the cluster. What was noted of ends before counts where pods are
    gone; where nobody saw it run, pods say when it began."""
    services, run = context.services, context.run
    before = with_chips(context, context.attempt, seen_last)
    over = [each.status for each in seen_last.pods if each.status.state.final]
    begun = [each.started_at for each in over if each.started_at is not None]
    noted = [
        WorkerStatus(end.worker, WorkerState.EXITED, exit_status=end.exit_status, signal=end.signal)
        for end in before.ends
    ]
    seen = over or noted
    said = end_reason(why, seen) if cause is Cause.FAILED else why
    attempt = replace(before, cause=cause, suspect_why=said, ends=worker_ends(over) or before.ends)
    archive_logs(services, run, attempt)
    ended_at = moment(context, at, before.created_at)
    began = before.started_at
    if began is None and begun:
        began = min(moment(context, min(begun), before.created_at), ended_at)
    held = before.provisioned_at is not None  # else it never held chips, as far as anybody saw
    return replace(
        attempt,
        state=AttemptPhase.ENDED,
        created_at=before.created_at if held else ended_at,
        provisioned_at=before.provisioned_at if held else ended_at,
        started_at=began,
        hosts=before.hosts or hosts_of(seen_last.pods),
        failure=find_failure(services, run, attempt, seen, merged=True),
        ended_at=ended_at,
        timeline=(*before.timeline, replace(context.entry("ended", why), at=ended_at)),
    )
