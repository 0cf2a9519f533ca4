"""Steps a run that is written down through attempts until it is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.errors import PartialError, TpuctlError
from tpuctl.hosts.deadline import HOST_TIME_S, OBSERVE_TIME_S, WATCH_TIME_S
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.codec import to_data
from tpuctl.model import timeouts
from tpuctl.model.attempts import AttemptPhase
from tpuctl.model.records import RunRecord, RunState, SliceRecord, SliceState
from tpuctl.model.verdict import Blind, Blocked, Done, Wait, wait_for
from tpuctl.runs.attempt import attempt_hosts
from tpuctl.runs.context import RunContext
from tpuctl.runs.effects import apply_plan
from tpuctl.runs.last_sign import note_sign
from tpuctl.runs.plan import RunObservation, plan_run
from tpuctl.runs.states import RunEffect, RunPhase, phase_of
from tpuctl.runs.trouble import describe_trouble
from tpuctl.slices.enrollment import send_own_key, why_closed
from tpuctl.slices.heartbeats import check_liveness, describe_liveness
from tpuctl.slices.liveness import Liveness
from tpuctl.slices.observe import Observation, observe_slice
from tpuctl.slices.probing import PartitionCheck
from tpuctl.slices.replacement import find_replacement_limit
from tpuctl.slices.states import ObservedEvent, SliceEvent
from tpuctl.slices.things import lost_buckets
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import (
    Versioned,
    find_slice,
    get_run,
)

_ASKED_OF_HOSTS = {AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.ENDING}
"""Attempt states in which the workers' own word is asked for."""


def find_end(services: Services, run_id: str) -> RunRecord:
    """A run that nobody follows may be over on its hosts: notes that, within the time of a second read of one
    that failed. Begins and stops nothing."""
    give_up_at = services.clock.now() + 2 * timeouts.VERDICT_READ_GAP_S
    while True:
        run = get_run(services, run_id).record
        attempt = run.attempt
        if attempt is None or attempt.state not in {AttemptPhase.RUNNING, AttemptPhase.ENDING}:
            return run
        acted = advance_run(services, run_id).acted
        attempt = get_run(services, run_id).record.attempt
        in_trouble = attempt is not None and attempt.suspect_since is not None
        if not acted and (not in_trouble or services.clock.now() >= give_up_at):
            return get_run(services, run_id).record
        if not acted:
            services.clock.sleep(timeouts.POLL_FIRST_S)


def end_with_slice(services: Services, run_id: str) -> None:
    """Ends a run that waits for a slice which is no longer wanted; nothing is asked of the cloud."""
    run = get_run(services, run_id).record
    stored = find_slice(services, run.slice_name)
    if stored is not None and stored.record.state is SliceState.GONE:
        advance_run(services, run_id)


def advance_run(
    services: Services,
    run_id: str,
    observation: Observation | None = None,
    partition: PartitionCheck | None = None,
) -> Outcome:
    """One step of one run. `observation` is of its slice; `partition` says whether this machine is cut off."""
    stored = get_run(services, run_id)
    run = stored.record
    if run.state.final:
        return Outcome(Done(run.reason), acted=False)
    if observation is None and find_slice(services, run.slice_name) is not None:
        observation = observe_slice(services, run.slice_name)
    fresh = find_slice(services, run.slice_name)
    slice_ = fresh.record if fresh else None
    began = services.clock.now()
    until = began + HOST_TIME_S
    workers = _observe_workers(services, run, slice_, began)
    note_sign(services, run, observation, workers)
    closed = any(worker.state is WorkerState.CLOSED for worker in workers)
    key_sent = send_own_key(services, run.slice_name) if closed and slice_ is not None else ""
    if key_sent:
        return Outcome(Wait(key_sent), acted=False)
    seen = _judge_sight(services, run, slice_, observation, workers, partition, until)
    plan = plan_run(seen)
    if plan.effect is None:
        return Outcome(plan.verdict, acted=False)
    with take_lease(services, run.slice_name) as lease:
        if _moved(find_slice(services, run.slice_name), fresh) or _moved(get_run(services, run_id), stored):
            # Somebody acted between our observation and our lease: what was planned may no longer be right.
            return Outcome(wait_for("another read"), acted=True)
        context = RunContext(services, stored, slice_, workers, lease.fence, until)
        outcome = apply_plan(context, plan)
        decided = plan.effect is RunEffect.BEGIN_END and seen.unclear is None and workers
        if outcome.acted and (plan.effect is RunEffect.NEW_ATTEMPT or decided):
            # At once: hosts and cloud, asked again, would only repeat what was observed a moment ago.
            following = plan_run(replace(seen, run=context.run, now=services.store.now()))
            outcome = replace(apply_plan(context, following), changed=True)
    key_sent = send_own_key(services, run.slice_name) if isinstance(outcome.verdict, Blind) else ""
    return Outcome(Wait(key_sent), acted=False) if key_sent else outcome


def _judge_sight(
    services: Services,
    run: RunRecord,
    slice_: SliceRecord | None,
    observation: Observation | None,
    workers: Sequence[WorkerStatus],
    partition: PartitionCheck | None,
    until: float,
) -> RunObservation:
    """What was seen of a run, with what that is worth: whether this machine is cut off, and how long hosts may
    be silent."""
    observed = observation.observed if observation else None
    partition = partition or PartitionCheck(services)
    unclear = None if run.stop_asked else _unclear(services, workers, slice_, observed, partition, until)
    running = phase_of(run) is RunPhase.RUNNING
    limit_s = timeouts.UNREACHABLE_MAX_S
    if slice_ is not None and any(worker.state is WorkerState.UNREACHABLE for worker in workers):
        limit_s = find_replacement_limit(services, slice_, observation.info.node if observation else None)
    lost = lost_buckets(services, slice_) if running else ()
    return RunObservation(run, slice_, observed, workers, services.store.now(), lost, limit_s, unclear)


def _moved(now: Versioned[Any] | None, before: Versioned[Any] | None) -> bool:
    """Whether a record was written since it was read."""
    return (now.generation if now else 0) != (before.generation if before else 0)


def _observe_workers(
    services: Services, run: RunRecord, slice_: SliceRecord | None, began: float
) -> list[WorkerStatus]:
    attempt = run.attempt
    changing = attempt is not None and attempt.state is not AttemptPhase.RUNNING
    hosts = attempt_hosts(services, run, slice_, began + (OBSERVE_TIME_S if changing else WATCH_TIME_S))
    if attempt is None or hosts is None or attempt.state not in _ASKED_OF_HOSTS:
        return []
    return hosts.observe()


def _unclear(
    services: Services,
    workers: Sequence[WorkerStatus],
    slice_: SliceRecord | None,
    observed: ObservedEvent | None,
    partition: PartitionCheck,
    until: float,
) -> Blind | Blocked | None:
    """Why what this machine sees of the workers proves nothing; None where it does. Hosts of other slices are
    asked until `until`, by this machine's clock."""
    if slice_ is None or not workers or observed is None or observed.event is not SliceEvent.NODE_READY:
        return None
    closed = [worker for worker in workers if worker.state is WorkerState.CLOSED]
    if closed:
        partition.saw(slice_.name)
        return why_closed(services, slice_, describe_trouble(closed))
    silent = [worker for worker in workers if worker.state is WorkerState.UNREACHABLE]
    if len(silent) < len(workers):
        partition.saw(slice_.name)
    if not silent:
        return None
    left_s = max(1.0, until - services.clock.now())
    others = len(silent) < len(workers) or partition.another(slice_.name, left_s)
    liveness = check_liveness(services, slice_, [worker.worker for worker in silent], others_answer=others)
    failed = any(worker.over and not worker.succeeded for worker in workers)
    if liveness is Liveness.MOVING and not failed:
        return Blind(f"{describe_trouble(silent)}; {describe_liveness(liveness)}")
    if others or liveness is Liveness.STILL:
        return None
    return Blind("no worker answers this machine, and no other host does either")


def silence_is_proved(services: Services, run: RunRecord) -> bool:
    """Whether a machine that reaches no host can tell all the same, by the heartbeats of the run's hosts."""
    stored = find_slice(services, run.slice_name)
    if stored is None or run.attempt is None:
        return False
    liveness = check_liveness(services, stored.record, run.attempt.workers, others_answer=False)
    return liveness is Liveness.STILL


def run_error(run: RunRecord, log_hint: str) -> TpuctlError | None:
    """The error a finished run amounts to, or None when it succeeded or was stopped on request: PartialError
    where some workers ended well."""
    if run.state in {RunState.SUCCEEDED, RunState.STOPPED}:
        return None
    ends = run.attempt.ends if run.attempt else ()
    failed = [end for end in ends if end.exit_status != 0]
    failure = run.attempt.failure if run.attempt else None
    kind = PartialError if len(failed) < len(ends) else TpuctlError
    remedy = failure.remedy if failure is not None else ""
    nothing_written = run.attempt is not None and run.attempt.started_at is None
    told = (
        [remedy] if remedy and (nothing_written or log_hint in remedy) else [*filter(None, [remedy]), log_hint]
    )
    return kind(
        f"run {run.id} {run.state}: {run.reason}",
        hint="; ".join(told),
        details={
            "workers": [end.worker for end in failed],
            "exits": to_data(ends),
            "failure": to_data(failure) if failure is not None else None,
        },
    )
