"""From what was seen of a run on a cluster to what is done. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.kube.observe import ClusterRunObservation
from tpuctl.kube.states import TRANSITIONS, ClusterEffect, ClusterEvent, ClusterPhase, phase_of
from tpuctl.lib.text import fold_workers
from tpuctl.model.attempts import Cause
from tpuctl.model.clusters import ClusterRun
from tpuctl.model.records import RunRecord
from tpuctl.model.verdict import Done, Verdict, Wait, wait_for


class ClusterPlan(Struct, frozen=True):
    """What is done next, because of `event`, and where that leaves the run."""

    event: ClusterEvent
    why: str
    effect: ClusterEffect | None
    verdict: Verdict


def plan_cluster_run(run: RunRecord, cluster: ClusterRun, seen: ClusterRunObservation) -> ClusterPlan:
    """The next step. What the table ignores is a wait."""
    phase = phase_of(run)
    event, why = classify(run, cluster, seen, phase)
    to = TRANSITIONS.get((phase, event))
    over = phase is ClusterPhase.OVER
    return ClusterPlan(
        event, why, to.effect if to is not None else None, Done(why) if over else _wait(event, why)
    )


def _wait(event: ClusterEvent, why: str) -> Wait:
    return wait_for(f"admission ({why})") if event is ClusterEvent.WAITS else Wait(why)


def classify(
    run: RunRecord, cluster: ClusterRun, seen: ClusterRunObservation, phase: ClusterPhase
) -> tuple[ClusterEvent, str]:
    """The most important thing that was seen, with the reason in words."""
    name = f"JobSet {cluster.name}"
    if phase is ClusterPhase.OVER:
        return ClusterEvent.OVER, run.reason
    mine = seen.there and seen.run == run.id and cluster.uid in ("", seen.uid)
    if phase is ClusterPhase.ENDING:
        if not mine:
            return ClusterEvent.GONE, f"{name} is gone"
        if seen.leaving:
            return ClusterEvent.LEAVING, f"{name} is being deleted; its pods have their grace"
        return ClusterEvent.TO_BE_DELETED, "a stop was asked for" if run.stop_asked else run.reason
    if not mine:
        return _not_mine(cluster, seen, name)
    if seen.leaving:
        return ClusterEvent.LEAVING, f"somebody deletes {name}"
    return _of_life(cluster, seen, phase)


def _not_mine(cluster: ClusterRun, seen: ClusterRunObservation, name: str) -> tuple[ClusterEvent, str]:
    if cluster.uid:
        return ClusterEvent.REMOVED, f"{name} was deleted by somebody else, or after its time to live"
    if seen.there:
        return ClusterEvent.TAKEN, f"there is another {name} in {cluster.place}, which is not of this run"
    return ClusterEvent.ABSENT, f"{name} is not there yet"


def _of_life(cluster: ClusterRun, seen: ClusterRunObservation, phase: ClusterPhase) -> tuple[ClusterEvent, str]:
    if seen.restarts > cluster.restarts:
        return ClusterEvent.RESTARTED, restart_reason(cluster, seen)
    if seen.ended == "Completed":
        return ClusterEvent.COMPLETED, "every worker exited with 0"
    if seen.ended:
        return ClusterEvent.FAILED, seen.said or "JobSet gave it up"
    if seen.suspended or seen.waits_for:
        why = seen.waits_for or "somebody suspended it"
        open_ = phase in (ClusterPhase.STARTING, ClusterPhase.RUNNING)
        return (ClusterEvent.EVICTED if open_ else ClusterEvent.WAITS), why
    if any(pod.hopeless for pod in seen.pods):
        return ClusterEvent.HOPELESS, seen.stuck
    begun = sum(pod.began for pod in seen.pods)
    if begun == cluster.workers:
        return ClusterEvent.RUNS, "it runs"
    counted = f"{begun} of {cluster.workers} workers have begun"
    return ClusterEvent.STARTS, f"{counted}; {seen.stuck}" if seen.stuck else counted


def restart_cause(cluster: ClusterRun, seen: ClusterRunObservation) -> Cause:
    """Whose fault a restart of the JobSet was: what it does not count are lost hosts."""
    return Cause.FAILED if seen.counted > cluster.counted else Cause.PREEMPTED


def restart_reason(cluster: ClusterRun, seen: ClusterRunObservation) -> str:
    """Why a JobSet was restarted, as it counts."""
    if restart_cause(cluster, seen) is Cause.FAILED:
        return f"a worker failed: JobSet restarts it, {seen.counted} of its failures"
    return "a host was lost: JobSet restarts it, and does not count that"


def end_cause(event: ClusterEvent, run: RunRecord) -> Cause:
    """How the last attempt of a run ended."""
    if run.attempt is not None and run.attempt.cause is not None:
        return run.attempt.cause
    if event is ClusterEvent.COMPLETED:
        return Cause.SUCCEEDED
    if event is ClusterEvent.FAILED:
        return Cause.FAILED
    return Cause.NOT_SET_UP if event is ClusterEvent.TAKEN else Cause.STOPPED


def end_reason(why: str, workers: Sequence[WorkerStatus]) -> str:
    """How workers ended, in words, for the record of an attempt that failed."""
    failed = [each for each in workers if each.state is WorkerState.EXITED and each.exit_status != 0]
    if not failed:
        return why
    first = failed[0]
    how = f"signal {first.signal}" if first.signal else f"status {first.exit_status}"
    return f"worker {fold_workers(each.worker for each in failed)} ended with {how}"
