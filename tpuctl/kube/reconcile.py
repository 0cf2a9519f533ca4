"""One step of a run on a cluster: look, plan, act. Nothing there is changed but its own JobSet.

Commands that were typed act; passes of the watchdog only look, and write down what they saw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.events import Note
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, DeniedError, InvalidRequestError, UsageError
from tpuctl.kube.capacity import region_of_cluster
from tpuctl.kube.client import Cluster, Object, connect
from tpuctl.kube.end import end_attempt, finish, hosts_of, moment, open_attempt, with_chips
from tpuctl.kube.jobset import RECORD_ANNOTATION
from tpuctl.kube.observe import JOBSET_LABEL, NOTHING, ClusterRunObservation, observe
from tpuctl.kube.plan import ClusterPlan, plan_cluster_run, restart_cause
from tpuctl.kube.pod_logs import fetch_logs
from tpuctl.kube.queues import is_waiting, owner_name, waiting_rows
from tpuctl.kube.states import ClusterEffect, ClusterPhase, phase_of
from tpuctl.lib.codec import parse_json
from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.clusters import ClusterRun
from tpuctl.model.records import RunRecord, RunState
from tpuctl.model.verdict import Done, Wait, wait_for
from tpuctl.runs.charge import worker_ends
from tpuctl.runs.context import RunContext
from tpuctl.runs.request import request_stop
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_run

STEPS_MAX = 20
"""A look goes on while steps succeed at once, but never for ever."""


class ClusterStep(Struct, frozen=True):
    """What an effect is given."""

    context: RunContext
    cluster: Cluster
    here: ClusterRun
    seen: ClusterRunObservation
    plan: ClusterPlan


def cluster_of(run: RunRecord) -> ClusterRun:
    """Where a run is. Raises UsageError for one on a slice."""
    if run.cluster is None:
        raise UsageError(f"run {run.id} is on a slice", hint=f"tpuctl attach {run.id}")
    return run.cluster


def look(cluster: Cluster, here: ClusterRun) -> ClusterRunObservation:
    """What there is of a run. Reads only."""
    jobset = cluster.get("JobSet", here.name)
    if jobset is None:
        return NOTHING
    if (jobset["metadata"].get("annotations") or {}).get(RECORD_ANNOTATION) != here.record:
        return ClusterRunObservation(there=True)  # of another record, whatever its labels say
    workloads: list[Object] = cluster.list("Workload") if here.queue else []
    own = next((each for each in workloads if owner_name(each) == here.name and is_waiting(each)), None)
    position = _position(cluster, here.name) if own is not None else None
    return observe(here, jobset, workloads, position, cluster.list("Pod", f"{JOBSET_LABEL}={here.name}"))


def _position(cluster: Cluster, name: str) -> int | None:
    """Its place in the queue, among all that wait there as far as this account may see them."""
    try:
        workloads = cluster.list("Workload", everywhere=True)
        queues = cluster.list("LocalQueue", everywhere=True)
    except DeniedError:
        workloads, queues = cluster.list("Workload"), cluster.list("LocalQueue")
    rows = waiting_rows(workloads, queues)
    return next((row.position for row in rows if (row.namespace, row.name) == (cluster.namespace, name)), None)


def step_cluster_run(services: Services, cluster: Cluster, run_id: str, *, acts: bool = True) -> Outcome:
    """One step; without `acts` one that changes nothing on the cluster."""
    stored = get_run(services, run_id)
    run = stored.record
    here = cluster_of(run)
    if run.state.final:
        return Outcome(Done(run.reason), acted=False)
    seen = look(cluster, here)
    open_ = run.attempt is not None and run.attempt.state is not AttemptPhase.ENDED
    if open_ and seen.there and seen.uid == here.uid and seen.restarts == here.restarts:
        fetch_logs(services, cluster, run, here, seen)
    plan = plan_cluster_run(run, here, seen)
    if plan.effect is None:
        return Outcome(plan.verdict, acted=False)
    if not acts and plan.effect in CHANGES:
        return Outcome(Wait(f"{plan.why}; `tpuctl attach {run_id}` goes on with it"), acted=False)
    with take_lease(services, run.key) as lease:
        if get_run(services, run_id).generation != stored.generation:
            return Outcome(wait_for("another read"), acted=True)
        context = RunContext(services, stored, None, seen.workers, lease.fence, 0.0)
        return EFFECTS[plan.effect](ClusterStep(context, cluster, here, seen, plan))


def _apply(step: ClusterStep) -> Outcome:
    """All documents of the run, the JobSet last. What the cluster refuses ends it. A JobSet of the run that is
    there was made before a crash: it is whole."""
    context, here, uid = step.context, step.here, step.seen.uid
    context.journal("apply", f"JobSet {here.name} to {here.place}")
    if not step.seen.there:
        *volumes, jobset = parse_json(context.services.store.get_blob(here.documents))
        try:
            for volume in volumes:
                step.cluster.apply(volume)
            made = step.cluster.create(jobset)
        except (InvalidRequestError, DeniedError, ConflictError) as error:
            finish(step.context, replace(step.plan, why=error.message), step.seen, Cause.NOT_SET_UP)
            raise
        if made is None:
            return Outcome(wait_for("another read"), acted=False)
        uid = str(made["metadata"]["uid"])
    context.save(replace(context.run, cluster=replace(here, uid=uid)))
    return Outcome(wait_for("admission" if here.queue else "its pods"), acted=True)


def _delete(step: ClusterStep) -> Outcome:
    context, here = step.context, step.here
    if context.run.state is not RunState.STOPPING:
        context.save(replace(context.run, state=RunState.STOPPING))
    context.journal("delete", f"JobSet {here.name} of {here.place}: {step.plan.why}")
    step.cluster.delete("JobSet", here.name, step.seen.uid)
    return Outcome(Wait(f"JobSet {here.name} is being deleted; its pods have their grace"), acted=True)


def _give_up(step: ClusterStep) -> Outcome:
    """It can never begin: that is its end, and nothing of it stays."""
    why = step.plan.why
    attempt = replace(
        step.context.attempt,
        state=AttemptPhase.ENDING,
        cause=Cause.NOT_SET_UP,
        suspect_why=why,
        ending_since=step.context.services.store.now(),
    )
    step.context.journal("give-up", why)
    step.context.save_attempt(attempt, state=RunState.STOPPING, reason=why)
    return Outcome(Wait(why), acted=True)


def _note(step: ClusterStep) -> Outcome:
    """What is new while nothing is to be done: why it waits, and how pods ended that a restart will remove."""
    context, run = step.context, step.context.run
    running = phase_of(run) is ClusterPhase.RUNNING
    begins = phase_of(run) is ClusterPhase.STARTING and not step.seen.stuck  # nothing is in its way
    why = "" if running or begins else step.plan.why
    attempt = run.attempt
    if attempt is not None and attempt.state is not AttemptPhase.ENDED:
        attempt = with_chips(context, attempt, step.seen)
    ends = worker_ends([each for each in step.seen.workers if each.state.final])
    if running and attempt is not None and ends and attempt.ends != ends:
        attempt = replace(attempt, ends=ends)
    changed = replace(run, reason=why, attempt=attempt, cluster=replace(step.here, waits_for=why))
    if changed == run:
        return Outcome(step.plan.verdict, acted=False)
    context.save(changed)
    return Outcome(step.plan.verdict, acted=False, changed=True)


def _begin_attempt(step: ClusterStep) -> Outcome:
    open_attempt(step.context, step.here, step.seen)
    return Outcome(Wait("its pods begin"), acted=True)


def _mark_running(step: ClusterStep) -> Outcome:
    context = step.context
    context.journal("running", f"attempt {context.attempt.number}: every worker runs")
    held = with_chips(context, context.attempt, step.seen)
    attempt = replace(
        held,
        state=AttemptPhase.RUNNING,
        started_at=moment(context, step.seen.began_at, held.created_at),
        hosts=hosts_of(step.seen.pods),
        timeline=(*context.attempt.timeline, context.entry("running")),
    )
    here = replace(step.here, waits_for="", region=step.here.region or _region(step))
    context.save_attempt(attempt, state=RunState.RUNNING, reason="", cluster=here)
    context.services.emit(Note(context.run.id, f"attempt {attempt.number}: every worker runs"))
    return Outcome(Wait("it runs"), acted=True)


def _region(step: ClusterStep) -> str:
    """Of the cluster, by a node that runs a pod of it; empty for who may not see nodes."""
    try:
        node = step.cluster.get("Node", step.seen.pods[0].node) or {"metadata": {}}
    except DeniedError:
        return ""
    return region_of_cluster(step.cluster.place, (), (node,))


def _next_attempt(step: ClusterStep) -> Outcome:
    """JobSet has restarted it: one attempt has ended, the next one is there."""
    end_attempt(step.context, step.here, step.seen, restart_cause(step.here, step.seen), step.plan.why)
    open_attempt(step.context, step.here, step.seen)
    return Outcome(Wait(step.plan.why), acted=True)


def _evict(step: ClusterStep) -> Outcome:
    """Kueue took its quota back; it waits for admission again."""
    why = f"Kueue evicted it: {step.plan.why}"
    end_attempt(step.context, step.here, step.seen, Cause.PREEMPTED, why)
    return Outcome(wait_for(f"admission ({step.plan.why})"), acted=True)


def _finish(step: ClusterStep) -> Outcome:
    finish(step.context, step.plan, step.seen)
    return Outcome(Done(step.context.run.reason), acted=True)


EFFECTS: Mapping[ClusterEffect, Callable[[ClusterStep], Outcome]] = {
    ClusterEffect.APPLY: _apply,
    ClusterEffect.DELETE: _delete,
    ClusterEffect.GIVE_UP: _give_up,
    ClusterEffect.NOTE: _note,
    ClusterEffect.BEGIN_ATTEMPT: _begin_attempt,
    ClusterEffect.MARK_RUNNING: _mark_running,
    ClusterEffect.NEXT_ATTEMPT: _next_attempt,
    ClusterEffect.END_ATTEMPT: _evict,
    ClusterEffect.FINISH: _finish,
}
CHANGES = frozenset({ClusterEffect.APPLY, ClusterEffect.DELETE, ClusterEffect.GIVE_UP})
"""What changes something on the cluster, or is about to."""


def look_again(services: Services, run: RunRecord) -> RunRecord:
    """The run as its cluster shows it now; nothing is changed there."""
    cluster = connect(cluster_of(run).place)
    for _ in range(STEPS_MAX):
        if not step_cluster_run(services, cluster, run.id, acts=False).acted:
            break
    return get_run(services, run.id).record


def follow_cluster_run(services: Services, run: RunRecord, *, deadline: float | None = None) -> RunRecord:
    """Steps a run until it is over, and tells what it writes."""
    cluster, run_id = connect(cluster_of(run).place), run.id
    converge(services, run_id, lambda: step_cluster_run(services, cluster, run_id), deadline=deadline)
    return get_run(services, run_id).record


def start_cluster_run(services: Services, run: RunRecord, *, deadline: float | None = None) -> RunRecord:
    """Steps a run until its JobSet is there: Kueue and JobSet do the rest."""
    cluster, run_id = connect(cluster_of(run).place), run.id

    def step() -> Outcome:
        outcome = step_cluster_run(services, cluster, run_id)
        there = phase_of(get_run(services, run_id).record) is not ClusterPhase.ASKED
        return Outcome(Done("applied"), acted=False) if there else outcome

    converge(services, run_id, step, deadline=deadline)
    return get_run(services, run_id).record


def stop_cluster_run(services: Services, run: RunRecord, *, deadline: float | None = None) -> RunRecord:
    """Asks for the end of a run, and waits until its pods are gone."""
    return follow_cluster_run(services, request_stop(services, run.id), deadline=deadline)
