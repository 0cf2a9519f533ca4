"""Runs: write down what is to run, then step it through attempts until it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, LeaseHeldError, PartialError, StaleRecordError, TpuctlError
from tpuctl.hosts.deadline import HOST_TIME_S, OBSERVE_TIME_S, WATCH_TIME_S
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.codec import to_data
from tpuctl.lib.names import check_run_id
from tpuctl.lib.retry import retry
from tpuctl.model import timeouts
from tpuctl.model.attempts import AttemptPhase
from tpuctl.model.records import RunRecord, RunState, SliceRecord, SliceState
from tpuctl.model.verdict import Blind, Blocked, Done, Wait, wait_for
from tpuctl.provenance.manifest import Row, SettingSection
from tpuctl.provenance.parts import begin_manifest
from tpuctl.runs.attempt import attempt_hosts
from tpuctl.runs.chips import ONE, claim_chips, describe_chips
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
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import Lease, is_unbroken, take_lease
from tpuctl.state.repository import (
    RUNS,
    Versioned,
    active_runs,
    find_run,
    find_slice,
    get_run,
    save,
)

_ASKED_OF_HOSTS = {AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.ENDING}
"""Attempt states in which the workers' own word is asked for."""
_REQUEST_TRIES = int(timeouts.LEASE_TTL_S / timeouts.POLL_FIRST_S)
"""So long another process may hold the lease of a slice."""


def request_run(
    services: Services,
    run: RunRecord,
    *,
    named: bool = False,
    configuration: Mapping[str, SettingSection] | None = None,
    checks: Sequence[Row] = (),
    why: str = "",
    start: Row | None = None,
) -> RunRecord:
    """Writes down a run. The same request while it is under way means that run, which is returned, unless
    somebody chose another id for this one (`named`). `configuration` and `checks` are for its manifest, or
    `start` is what that begins with; `why` is for its journal.

    Raises ConflictError while other runs have its chips. Under the slice's lease, because two requests at once
    are two documents, which nothing else would make collide.
    """

    def once() -> RunRecord:
        with take_lease(services, run.slice_name) as lease:
            return _request_run(services, lease, run, named, configuration or {}, checks, why, start)

    def ask() -> RunRecord:
        # Waits are counted, not hours: a laptop that was closed in between has not waited.
        return retry(
            once,
            (LeaseHeldError, StaleRecordError),
            tries=_REQUEST_TRIES,
            pause_s=timeouts.POLL_FIRST_S,
            growth=1.0,
            sleep=services.clock.sleep,
        )

    try:
        return ask()
    except ConflictError:
        if run.cluster is not None:
            raise
        others = [other for other in active_runs(services, run.slice_name) if other.id != run.id]
        # All of them: each that is over on its hosts is noted so.
        ends = [find_end(services, other.id).state.final for other in _claim(services, run, others)[1]]
        if not any(ends):
            raise
    return ask()


def _claim(
    services: Services, run: RunRecord, others: Sequence[RunRecord]
) -> tuple[tuple[int, ...], list[RunRecord]]:
    """As `claim_chips`."""
    stored = find_slice(services, run.slice_name)
    return claim_chips(run.spec, stored.record.spec if stored is not None else None, others)


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


def find_same(others: Sequence[RunRecord], run_id: str, digest: str, *, named: bool) -> RunRecord | None:
    """The run of `others` that a request of this fingerprint means: the one of its id, or any unless it is
    `named`."""
    for other in others:
        if (other.id == run_id or not named) and other.fingerprint == digest and not other.stop_asked:
            return other
    return None


def _request_run(
    services: Services,
    lease: Lease,
    run: RunRecord,
    named: bool,
    configuration: Mapping[str, SettingSection],
    checks: Sequence[Row],
    why: str,
    start: Row | None,
) -> RunRecord:
    others = active_runs(services, run.slice_name)
    same = find_same(others, run.id, run.fingerprint, named=named)
    if same is not None:
        _hand_slice_over(services, run.id, same)
        return same
    rest = [other for other in others if other.id != run.id]
    # Queues of a cluster say who has its chips.
    chips, in_the_way = _claim(services, run, rest) if run.cluster is None else ((), [])
    if in_the_way:
        one = replace(run, spec=replace(run.spec, chips=ONE, chip=None))
        raise _taken(run, in_the_way, free=bool(in_the_way[0].chips) and not _claim(services, one, rest)[1])
    run = replace(run, chips=chips)
    check_new_id(services, run.id, again=False)
    services.logs.set_aside(run.id)
    said = describe_chips(chips)
    why = why or f"asked for by {services.user}"
    record_decision(services, run.key, "run", f"{why}, on {said}" if said else why)
    stored = find_slice(services, run.slice_name)
    begin_manifest(services, run, stored.record if stored is not None else None, configuration, checks, start)
    saved = save(services, Versioned(run, 0), run)
    if not is_unbroken(services, lease):
        # This process slept: whoever took the lease meanwhile did not see this run, and may choose its chips.
        with suppress(StaleRecordError):
            RUNS.delete(services, run.id, saved.generation)
        raise LeaseHeldError(f"another tpuctl has begun to work on {run.slice_name} meanwhile")
    return saved.record


def _taken(run: RunRecord, in_the_way: Sequence[RunRecord], free: bool) -> ConflictError:
    """Says which runs have the chips, and what to type."""
    shared = any(each.chips for each in in_the_way)
    said = [
        f"run {each.id} is still {each.state}" + (f" on {describe_chips(each.chips)}" if shared else "")
        for each in in_the_way
    ]
    first = in_the_way[0].id
    beside = ", or `tpuctl run --chips 1` for a free chip" if free else ""
    return ConflictError(
        f"{', '.join(said)} {'of' if shared else 'on'} slice {run.slice_name}",
        hint=f"tpuctl attach {first}, or tpuctl stop {first}{beside}",
        details={"runs": [each.id for each in in_the_way]},
    )


def _hand_slice_over(services: Services, asked_for: str, run: RunRecord) -> None:
    """A slice that was wanted for run `asked_for` goes with `run`, which takes its place."""
    stored = find_slice(services, run.slice_name)
    if stored is not None and run.spec.owns_slice and stored.record.run_id == asked_for != run.id:
        save(services, stored, replace(stored.record, run_id=run.id))


def choose_run_id(services: Services, name: str | None) -> str:
    """The id of a new run: its `name`, or one that nobody has. Raises UsageError, and as `check_new_id`."""
    run_id = check_run_id(name or services.ids.new_id())
    check_new_id(services, run_id)
    return run_id


def check_new_id(services: Services, run_id: str, *, again: bool = True) -> None:
    """Raises ConflictError for the id of another run. `again`: one that is under way may be meant again."""
    stored = find_run(services, run_id)
    if stored is None or (again and not stored.record.state.final):
        return
    raise ConflictError(
        f"there is a run called {run_id} already; it is {stored.record.state}",
        hint=f"give the new one another --name, or none; tpuctl logs {run_id} shows the old one",
    )


def request_stop(services: Services, run_id: str, *, grace_s: float | None = None) -> RunRecord:
    """Writes down that a run is to stop; the loop does it. Final runs are left as they are."""
    stored = get_run(services, run_id)
    run = stored.record
    if run.state.final or run.stop_asked:
        return run
    record_decision(services, run.key, "stop", f"asked for by {services.user}")
    policy = run.spec.policy if grace_s is None else replace(run.spec.policy, grace_s=grace_s)
    return save(services, stored, replace(run, stop_asked=True, spec=replace(run.spec, policy=policy))).record


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
