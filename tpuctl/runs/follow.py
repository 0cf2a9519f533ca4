"""Follow a run in the foreground: its output, its slice, its restarts."""

from __future__ import annotations

from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.model import timeouts
from tpuctl.model.attempts import AttemptPhase
from tpuctl.model.records import Desired, RunRecord, SliceRecord, SliceState
from tpuctl.model.verdict import Blind, Blocked, Done, Wait, wait_for
from tpuctl.runs.attempt import AttemptHosts, find_hosts
from tpuctl.runs.last_sign import note_sign
from tpuctl.runs.log_archive import restore_logs
from tpuctl.runs.plan import RunObservation, plan_run
from tpuctl.runs.reconcile import advance_run
from tpuctl.runs.request import request_stop
from tpuctl.runs.states import RunEvent
from tpuctl.slices.observe import Observation, observe_slice
from tpuctl.slices.plan import plan_slice
from tpuctl.slices.probing import PartitionCheck
from tpuctl.slices.reconcile import advance_slice
from tpuctl.slices.states import SliceEvent
from tpuctl.slices.things import lost_buckets
from tpuctl.state.repository import Versioned, find_slice, get_run, get_slice, readable_runs


def step_run_and_slice(
    services: Services,
    run_id: str,
    partition: PartitionCheck | None = None,
    seen: Observation | None = None,
    *,
    may_connect: bool = True,
) -> Outcome:
    """One pass over a run and the slice under it; what a watchdog does for them, too.

    `seen` is what the lists of this very pass show of the slice. While the record is the same, that asks for
    nothing to be done, and the run is not in trouble, the slice is not read once more. `may_connect` is that
    of `advance_slice`.
    """
    partition = partition or PartitionCheck(services)
    run = get_run(services, run_id).record
    observation: Observation | None = None
    stored = find_slice(services, run.slice_name)
    if stored is not None:
        calm = run.attempt is None or run.attempt.suspect_since is None
        outcome, observation = _step_slice(services, stored, partition, seen if calm else None, may_connect)
        if outcome.acted:
            return outcome
        if not run.state.final and isinstance(outcome.verdict, Blocked | Blind):
            # The slice needs a person; the run may still have its last attempt to end.
            result = advance_run(services, run_id, observation)
            return result if result.acted else outcome
        if get_slice(services, run.slice_name).record.last_incarnation != observation.record.last_incarnation:
            # This process slept: what it saw says nothing about an attempt that others began since.
            return Outcome(wait_for("another read of its slice"), acted=True)
    result = advance_run(services, run_id, observation, partition)
    return _prefer_slice_wait(result, observation)


def _step_slice(
    services: Services,
    stored: Versioned[SliceRecord],
    partition: PartitionCheck,
    seen: Observation | None,
    may_connect: bool,
) -> tuple[Outcome, Observation]:
    if seen is not None and seen.stored.generation == stored.generation:
        plan = plan_slice(seen.record, seen.observed, services.store.now())
        if not plan.moves(seen.record) and not seen.record.rivals:
            return Outcome(plan.verdict, acted=False), seen
    return advance_slice(services, stored.record.name, partition, may_connect=may_connect)


def _prefer_slice_wait(result: Outcome, observation: Observation | None) -> Outcome:
    """While the slice is on its way, say what the cloud shows rather than that the run waits for it."""
    waits = isinstance(result.verdict, Wait) and not result.acted
    if waits and observation is not None and observation.record.state is not SliceState.READY:
        return Outcome(wait_for(f"slice {observation.record.name} ({observation.observed.why})"), acted=False)
    return result


def follow_run(services: Services, run_id: str, *, deadline: float | None = None) -> RunRecord:
    """Steps and streams a run until it is over (and until a slice that goes with it is gone)."""

    def step() -> Outcome:
        ran = _runs(services, run_id)
        outcome = step_run_and_slice(services, run_id)
        if outcome.acted and not ran and _runs(services, run_id):
            # Every worker has just said that it runs.
            _stream_if_running(services, run_id, deadline)
        elif not outcome.acted and not isinstance(outcome.verdict, Done):
            began = services.clock.now()
            if _stream_if_running(services, run_id, deadline):
                # A stream that ends at once is no reason to look again at once.
                return Outcome(outcome.verdict, acted=services.clock.now() - began > 1.0)
        return outcome

    converge(services, run_id, step, deadline=deadline)
    run = get_run(services, run_id).record
    stored = find_slice(services, run.slice_name)
    if stored is not None and run.spec.owns_slice and stored.record.desired is not Desired.UP:
        converge(services, run.slice_name, lambda: advance_slice(services, run.slice_name)[0])
    return run


def _runs(services: Services, run_id: str) -> bool:
    attempt = get_run(services, run_id).record.attempt
    return attempt is not None and attempt.state is AttemptPhase.RUNNING


def is_first_to_restart(services: Services, run: RunRecord) -> bool:
    """Whether a run may be started again and is the first of its owner on its slice: what makes that possible
    is then said, once."""
    if run.state.final or not run.spec.policy.restarts:
        return False
    before = [each for each in readable_runs(services)[0] if each.created_at < run.created_at]
    return not any((each.slice_name, each.owner) == (run.slice_name, run.owner) for each in before)


def stop_run(
    services: Services, run_id: str, *, grace_s: float | None = None, deadline: float | None = None
) -> RunRecord:
    """Asks for the end of a run and waits for it."""
    request_stop(services, run_id, grace_s=grace_s)
    return follow_run(services, run_id, deadline=deadline)


def start_run(services: Services, run_id: str, *, deadline: float | None = None) -> RunRecord:
    """Steps a run until every worker runs it, or it is over already."""

    def step() -> Outcome:
        outcome = step_run_and_slice(services, run_id)
        run = get_run(services, run_id).record
        over = run.state.final
        return Outcome(Done("started"), acted=False) if over or _runs(services, run_id) else outcome

    converge(services, run_id, step, deadline=deadline)
    return get_run(services, run_id).record


def _stream_if_running(services: Services, run_id: str, deadline: float | None) -> bool:
    """Streams the workers' output until something needs a decision or the time is up. False: there is nothing
    to stream."""
    run = get_run(services, run_id).record
    hosts, attempt = find_hosts(services, run), run.attempt
    if hosts is None or attempt is None or attempt.state is not AttemptPhase.RUNNING:
        return False
    if attempt.suspect_since is not None or run.stop_asked:
        return False
    if not services.logs.has(run_id, attempt.number):
        restore_logs(services, run_id, attempt.number)
    watch = _Watch(services, run_id, hosts, deadline)

    def sink(worker: int, stream: str, data: bytes) -> None:
        hosts.keep_output(worker, stream, data)
        hosts.emit_output(worker, stream, data)

    if attempt.processes > 1:  # a connection has one output for each stream, and these are several
        while not (watch.needs_decision() or watch.ended):
            hosts.fetch_logs(emit=True)
            services.clock.sleep(timeouts.FOLLOW_STATUS_S)
    else:
        hosts.agent.stream(hosts.targets, hosts.follow_request, sink, should_stop=watch.needs_decision)
    if watch.behind:
        hosts.fetch_logs(emit=True)
    return True


STREAMS_ON = frozenset({RunEvent.RUNS, RunEvent.SUCCEEDED, RunEvent.MOUNT_DEAD, RunEvent.MOUNT_SICK})
"""Events at which output is followed further: nothing is to be decided, or the end of the output comes by
itself."""


class _Watch:
    """Whether the loop is needed while output streams: a worker ended badly or took its devices, a stop was
    asked for, the slice changed, or the time is up."""

    def __init__(self, services: Services, run_id: str, hosts: AttemptHosts, deadline: float | None) -> None:
        self._services = services
        self._run_id = run_id
        self._hosts = hosts
        self._deadline = deadline
        now = services.clock.now()
        self._next_status = now + timeouts.FOLLOW_STATUS_S
        self._next_cloud = now + timeouts.FOLLOW_CLOUD_S
        self._next_buckets = self._next_times = now
        self._lost: tuple[str, ...] = ()
        self.behind = False
        self.ended = False
        """Every worker has ended, and writes nothing any more."""

    def needs_decision(self) -> bool:
        now = self._services.clock.now()
        if self._deadline is not None and now >= self._deadline:
            return True
        if now >= self._next_cloud:
            self._next_cloud = now + timeouts.FOLLOW_CLOUD_S
            if self._slice_changed():
                return True
        if now >= self._next_status:
            least_s = timeouts.FOLLOW_PER_HOST_S * len(self._hosts.targets)
            self._next_status = now + max(timeouts.FOLLOW_STATUS_S, least_s)
            return self._workers_changed()
        return False

    def _slice_changed(self) -> bool:
        run = get_run(self._services, self._run_id).record
        if run.stop_asked or run.state.final:
            return True
        observation = observe_slice(self._services, run.slice_name)
        note_sign(self._services, run, observation)
        return (
            observation.record.state is not SliceState.READY
            or observation.observed.event is not SliceEvent.NODE_READY
        )

    def _workers_changed(self) -> bool:
        run = get_run(self._services, self._run_id).record
        if run.stop_asked:
            return True
        workers = self._hosts.observe()
        note_sign(self._services, run, None, workers)
        self.behind = self._hosts.behind(workers)
        self.ended = all(worker.over for worker in workers)
        if self.behind:
            return True
        if self._services.clock.now() >= self._next_times:
            self._next_times = self._services.clock.now() + timeouts.FOLLOW_TIMES_S
            self._hosts.fetch_times()
        stored = find_slice(self._services, run.slice_name)
        record = stored.record if stored else None
        seen = RunObservation(
            run, record, None, workers, self._services.store.now(), self._lost_buckets(record)
        )
        return plan_run(seen).event not in STREAMS_ON

    def _lost_buckets(self, record: SliceRecord | None) -> tuple[str, ...]:
        """Buckets are asked for now and then: each question costs an operation."""
        if record is None or not record.spec.mounts:
            return ()
        now = self._services.clock.now()
        if now >= self._next_buckets:
            self._next_buckets = now + timeouts.FOLLOW_BUCKETS_S
            self._lost = lost_buckets(self._services, record)
        return self._lost
