"""Follow a run in the foreground: its output, its slice, its restarts."""

from __future__ import annotations

from tpuctl.engine.events import WorkerOutput
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.model import timeouts
from tpuctl.model.records import AttemptPhase, Desired, RunRecord, SliceRecord, SliceState
from tpuctl.model.verdict import Blind, Blocked, Done, Wait
from tpuctl.runs.attempt import AttemptHosts, attempt_hosts
from tpuctl.runs.reconcile import advance_run
from tpuctl.slices.observe import SliceLook, look_at_slice
from tpuctl.slices.plan import plan_slice
from tpuctl.slices.probing import Reach
from tpuctl.slices.reconcile import advance_slice
from tpuctl.slices.states import SliceEvent
from tpuctl.state.repository import Loaded, find_slice, get_run, get_slice


def step_run_and_slice(
    services: Services, run_id: str, reach: Reach | None = None, seen: SliceLook | None = None
) -> Outcome:
    """One pass over a run and the slice under it; what a watchdog does for them, too.

    `seen` is what the lists of this very pass show of the slice. While the record is the same, that asks for
    nothing to be done, and the run is not in trouble, the slice is not read once more.
    """
    reach = reach or Reach(services)
    run = get_run(services, run_id).record
    look: SliceLook | None = None
    loaded = find_slice(services, run.slice_name)
    if loaded is not None:
        calm = run.attempt is None or run.attempt.suspect_since is None
        outcome, look = _step_slice(services, loaded, reach, seen if calm else None)
        if outcome.acted:
            return outcome
        if not run.state.final and isinstance(outcome.verdict, Blocked | Blind):
            return _blocked(services, run_id, look, outcome)
        if get_slice(services, run.slice_name).record.last_incarnation != look.record.last_incarnation:
            # This process slept: what it saw says nothing about an attempt that others began since.
            return Outcome(Wait("another look at its slice"), acted=True)
    result = advance_run(services, run_id, look, reach)
    return _prefer_slice_wait(result, look)


def _step_slice(
    services: Services, loaded: Loaded[SliceRecord], reach: Reach, seen: SliceLook | None
) -> tuple[Outcome, SliceLook]:
    if seen is not None and seen.loaded.generation == loaded.generation:
        plan = plan_slice(seen.record, seen.sighting, services.store.now())
        if plan.effect is None and plan.state is seen.record.state:
            return Outcome(plan.verdict, acted=False), seen
    return advance_slice(services, loaded.record.name, reach)


def _blocked(services: Services, run_id: str, look: SliceLook, outcome: Outcome) -> Outcome:
    """The slice needs a person; the run may still have its last attempt to end."""
    result = advance_run(services, run_id, look)
    return result if result.acted else outcome


def _prefer_slice_wait(result: Outcome, look: SliceLook | None) -> Outcome:
    """While the slice is on its way, say what the cloud shows rather than that the run waits for it."""
    waiting = isinstance(result.verdict, Wait) and look is not None
    if waiting and look is not None and look.record.state is not SliceState.READY and not result.acted:
        return Outcome(Wait(f"slice {look.record.name} ({look.sighting.why})"), acted=False)
    return result


def follow_run(services: Services, run_id: str, *, deadline: float | None = None) -> RunRecord:
    """Steps and streams a run until it is over (and until a slice that goes with it is gone)."""

    def step() -> Outcome:
        outcome = step_run_and_slice(services, run_id)
        if not outcome.acted and not isinstance(outcome.verdict, Done):
            began = services.clock.now()
            if _stream_if_running(services, run_id):
                # A stream that ends at once is no reason to look again at once.
                return Outcome(outcome.verdict, acted=services.clock.now() - began > 1.0)
        return outcome

    converge(services, run_id, step, deadline=deadline)
    run = get_run(services, run_id).record
    _wait_for_owned_slice(services, run)
    return run


def start_run(services: Services, run_id: str, *, deadline: float | None = None) -> RunRecord:
    """Steps a run until every worker runs it, or it is over already."""

    def step() -> Outcome:
        outcome = step_run_and_slice(services, run_id)
        run = get_run(services, run_id).record
        begun = run.attempt is not None and run.attempt.state is AttemptPhase.RUNNING
        return Outcome(Done("started"), acted=False) if begun or run.state.final else outcome

    converge(services, run_id, step, deadline=deadline)
    return get_run(services, run_id).record


def _wait_for_owned_slice(services: Services, run: RunRecord) -> None:
    loaded = find_slice(services, run.slice_name)
    if loaded is None or not run.owns_slice or loaded.record.desired is Desired.UP:
        return
    converge(services, run.slice_name, lambda: advance_slice(services, run.slice_name)[0])


def _stream_if_running(services: Services, run_id: str) -> bool:
    """Streams the workers' output until something needs a decision. False when there is nothing to stream."""
    run = get_run(services, run_id).record
    loaded = find_slice(services, run.slice_name)
    hosts = attempt_hosts(services, run, loaded.record if loaded else None)
    attempt = run.attempt
    if hosts is None or attempt is None or attempt.state is not AttemptPhase.RUNNING:
        return False
    if attempt.suspect_since is not None or run.stop_asked:
        return False
    watch = _Watch(services, run_id, hosts)

    def sink(worker: int, stream: str, data: bytes) -> None:
        hosts.keep_output(worker, stream, data)
        services.emit(WorkerOutput(run.slice_name, worker, stream, data, len(attempt.workers)))

    hosts.agent.follow(hosts.targets, hosts.follow_request, sink, should_stop=watch.needs_decision)
    return True


class _Watch:
    """Tells while output is streamed whether the loop is needed: a worker ended badly, a stop was asked for, or
    the slice changed."""

    def __init__(self, services: Services, run_id: str, hosts: AttemptHosts) -> None:
        self._services = services
        self._run_id = run_id
        self._hosts = hosts
        now = services.clock.now()
        self._next_status = now + timeouts.FOLLOW_STATUS_S
        self._next_cloud = now + timeouts.FOLLOW_CLOUD_S

    def needs_decision(self) -> bool:
        now = self._services.clock.now()
        if now >= self._next_cloud:
            self._next_cloud = now + timeouts.FOLLOW_CLOUD_S
            if self._slice_changed():
                return True
        if now >= self._next_status:
            self._next_status = now + timeouts.FOLLOW_STATUS_S
            return self._workers_changed()
        return False

    def _slice_changed(self) -> bool:
        run = get_run(self._services, self._run_id).record
        if run.stop_asked or run.state.final:
            return True
        look = look_at_slice(self._services, run.slice_name)
        return look.record.state is not SliceState.READY or look.sighting.event is not SliceEvent.NODE_READY

    def _workers_changed(self) -> bool:
        if get_run(self._services, self._run_id).record.stop_asked:
            return True
        return any(not (view.healthy or view.succeeded) for view in self._hosts.look())
