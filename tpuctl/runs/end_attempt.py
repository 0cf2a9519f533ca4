"""The end of an attempt: what is collected of it, what it means, and what becomes of its run and its slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from msgspec.structs import replace

from tpuctl.engine.events import Note, Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.hosts.protocol import SILENT, WorkerState
from tpuctl.hosts.worker_status import HostEvent, WorkerStatus
from tpuctl.model import timeouts
from tpuctl.model.attempts import Attempt, AttemptPhase, Cause, Failure, Fault
from tpuctl.model.processes import LOG_STREAMS, stream_of
from tpuctl.model.records import Desired, Doubt, RunRecord, RunState, SliceState
from tpuctl.model.shipped_files import load_failure_table, load_secret_patterns
from tpuctl.model.verdict import wait_for
from tpuctl.provenance.parts import add_attempt, seal_manifest
from tpuctl.runs.attempt import AttemptHosts
from tpuctl.runs.charge import charge, worker_ends
from tpuctl.runs.compiles import compiles_of
from tpuctl.runs.context import RunContext
from tpuctl.runs.failure import (
    Signature,
    WorkerLog,
    describe_failure,
    failed_workers,
    name_failure,
    parse_signatures,
)
from tpuctl.runs.hang import furthest, step_rate
from tpuctl.runs.last_sign import find_alive_until
from tpuctl.runs.log_archive import archive_logs
from tpuctl.runs.plan import RunPlan
from tpuctl.runs.progress import weigh_progress
from tpuctl.slices.desired import goes_after_run, request_down
from tpuctl.slices.loss import give_up_incarnation
from tpuctl.slices.things import things_for_manifest
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import active_runs, find_slice, list_attempts, save, save_attempt_history

TAIL_BYTES = 64 << 10
"""Of each log of a worker that failed, to find out why."""


@cache
def _signatures() -> tuple[Signature, ...]:
    return parse_signatures(load_failure_table())


def _is_hardware(failure: Failure) -> bool:
    return any(row.hardware for row in _signatures() if row.id == failure.signature)


def end_attempt(context: RunContext, plan: RunPlan) -> Outcome:
    """Collects the rest of the logs, finds out what the end means, and charges a budget for it."""
    hosts = context.hosts()
    if hosts is not None and context.attempt.started_at is None:
        hosts.stop_preparations()
    if hosts is not None and not _collect(context, hosts):
        return Outcome(wait_for("the rest of the logs"), acted=True)
    archive_logs(context.services, context.run, context.attempt)
    failure = find_failure(context.services, context.run, context.attempt, context.workers)
    cause = context.attempt.cause
    if cause is Cause.HOST_LOST and failure is not None and not failure.retry:
        cause = Cause.FAILED  # a bug is no preemption, whatever happened to other hosts
    ahead, ended_at, alive_at = furthest(context.workers), context.services.store.now(), None
    if hosts is None and context.attempt.cause is Cause.PREEMPTED:
        # It was over when its slice was seen gone, and that had been so since the last sign of it.
        ended_at = context.attempt.ending_since or ended_at
        alive_at = find_alive_until(context.services, context.run, context.attempt, ended_at)
    unseen = [WorkerStatus(worker, WorkerState.UNREACHABLE) for worker in context.attempt.workers]
    attempt = replace(
        context.attempt,
        state=AttemptPhase.ENDED,
        cause=cause,
        failure=failure,
        step=ahead.step if ahead is not None else None,
        steps=ahead.steps if ahead is not None else None,
        steps_per_s=step_rate(ahead) if ahead is not None else None,
        ended_at=ended_at,
        alive_at=alive_at,
        hosts=_with_reports(context.run, context.workers, checked=_is_checked(context)),
        ends=worker_ends(context.workers or unseen),
        timeline=(*context.attempt.timeline, context.entry("ended", plan.why)),
    )
    if _is_checked(context) and all(row.get("weights") == NOT_LOOKED_AT for row in attempt.hosts):
        context.services.emit(Warn(context.run.id, f"--check: its parameters were {NOT_LOOKED_AT}"))
    run = charge(context.run, attempt, context.services.store.now())
    _emit_end(context, run, attempt, _keep_diagnosis(context, hosts, failure))
    run = weigh_progress(context.services, run, attempt)
    things = things_for_manifest(context.services, context.slice, attempt.hosts)
    add_attempt(context.services, run, context.slice, attempt, **things)
    save_attempt_history(context.services, run, attempt)
    said = f" ({describe_failure(failure)})" if failure is not None else ""
    context.journal("ended", f"attempt {attempt.number}: {attempt.cause}{said}; run is {run.state}")
    if context.attempt.cause in {Cause.HOST_LOST, Cause.PREEMPTED}:
        _doubt_slice(context, attempt)
    _replace_hardware(context, run, attempt)
    if run.state.final:
        # Before the run is final: a crash in between must not leave a slice that nobody releases.
        run = replace(run, totals=seal_manifest(context.services, run, context.slice))
        release_slice(context, run)
    if run.state in {RunState.FAILED, RunState.GAVE_UP}:
        context.journal_end(run)
    context.save(run)
    return Outcome(wait_for("the next attempt"), acted=True)


def find_failure(
    services: Services,
    run: RunRecord,
    attempt: Attempt,
    workers: Sequence[WorkerStatus],
    *,
    merged: bool = False,
) -> Failure | None:
    """What the failure of the attempt means, by what its workers wrote last. `merged`: both streams of each are
    in one log."""
    logs = {}
    for worker in failed_workers(workers):
        out, err = (
            services.logs.tail(run.id, attempt.number, worker.worker, stream, TAIL_BYTES).decode(
                errors="replace"
            )
            for stream in (stream_of(worker.process, kind) for kind in LOG_STREAMS)
        )
        logs[worker.worker] = WorkerLog(out, out if merged else err)
    failure = name_failure(_signatures(), run, attempt, workers, logs)
    if failure is None:
        return None
    redact = load_secret_patterns().redact  # a record may be shared, as a log is not
    evidence = redact(failure.evidence)
    return replace(failure, evidence=evidence, meaning=redact(failure.meaning), remedy=redact(failure.remedy))


def _keep_diagnosis(context: RunContext, hosts: AttemptHosts | None, failure: Failure | None) -> str:
    """Has the host of the worker with the cause say how it stands; where on this machine that is."""
    if hosts is None or failure is None or failure.worker is None:
        return ""
    if failure.whose is Fault.CODE and not failure.retry:
        return ""  # its host has no part in it
    hosts.keep_diagnosis({failure.worker})
    path = context.services.logs.path(context.run.id, context.attempt.number, failure.worker, "host")
    return f"; how its host stood: {path}"


def _emit_end(context: RunContext, run: RunRecord, attempt: Attempt, diagnosis: str) -> None:
    """Says how the attempt ended: below what its workers wrote, such as a traceback."""
    if attempt.cause in {Cause.SUCCEEDED, Cause.STOPPED}:
        return
    said = f"attempt {attempt.number} ended ({attempt.cause})"
    if attempt.cause in {Cause.DRIFTED, Cause.NOT_SET_UP}:
        context.services.emit(Note(run.id, said))  # why is what the run ends with
        return
    said = f"{said}: {attempt.suspect_why}"
    failure = attempt.failure
    if failure is not None:
        again = "not tried again" if run.state.final else "tried again"
        said = f"{said}; {describe_failure(failure)}; {again}{diagnosis}"
    context.services.emit(Note(run.id, said))


def _replace_hardware(context: RunContext, run: RunRecord, attempt: Attempt) -> None:
    """Asks for another slice after the second failure of the hardware of one worker of this one, unless other
    runs have chips of it: they go on, and this one until its failures are counted."""
    now, slice_ = attempt.failure, context.slice
    if now is None or slice_ is None or run.state.final or not _is_hardware(now) or _neighbours(context, run):
        return
    before = [
        each.failure
        for each in list_attempts(context.services, run.id)
        if each.number < attempt.number and each.incarnation == attempt.incarnation
    ]
    if any(each is not None and each.worker == now.worker and _is_hardware(each) for each in before):
        why = f"worker {now.worker} failed twice: {now.meaning} ({now.signature})"
        give_up_incarnation(context.services, run.slice_name, attempt.incarnation, why, fence=context.fence)


def _collect(context: RunContext, hosts: AttemptHosts) -> bool:
    """What the workers wrote and nobody followed. False when there is more than one step may fetch: also
    where the time was up before a worker answered that says that it lives, for a while."""
    while True:
        fetched = hosts.fetch_logs(emit=True)
        if not fetched.more:
            answering = {info.worker for info in context.workers if info.state not in SILENT}
            since = context.attempt.ending_since
            patient = since is not None and context.services.store.now() < since + timeouts.VERDICT_MAX_S
            return not (patient and answering.intersection(fetched.unread))
        if context.services.clock.now() >= context.until:
            return False


def _doubt_slice(context: RunContext, attempt: Attempt) -> None:
    """Hosts were lost while the cloud showed the node alive: the slice is ready again when all answer."""
    stored = find_slice(context.services, context.run.slice_name)
    record = stored.record if stored else None
    if stored is None or record is None or record.state is not SliceState.READY:
        return
    if record.incarnation is None or record.incarnation.number != attempt.incarnation:
        return
    silent = any(worker.state is WorkerState.UNREACHABLE for worker in context.workers)
    # What a host told came before another was silent: nobody knows for how long that one has been.
    began = attempt.suspect_since if silent else None
    if began is not None and any(_came_first(worker, began) for worker in context.workers):
        began = None
    # Silence goes on: it does not begin anew, unless all hosts have answered since, perhaps another machine.
    since = context.services.store.now() if began is None else max(began, record.incarnation.ready_at or began)
    doubt = Doubt(since, attempt.suspect_why)
    doubted = replace(record.incarnation, doubt=doubt)
    record_decision(context.services, record.key, "doubt", attempt.suspect_why, fence=context.fence)
    save(context.services, stored, replace(record, state=SliceState.BOOTING, incarnation=doubted))


def _came_first(worker: WorkerStatus, suspect_since: float) -> bool:
    """Whether what a host told of itself, or the end of its program, may have begun the suspicion. Programs
    that lose a host that is silent end after that."""
    ended_at = worker.failed_at if worker.over and not worker.succeeded else None
    return worker.event is not HostEvent.NONE or (ended_at is not None and ended_at <= suspect_since)


def release_slice(context: RunContext, run: RunRecord) -> None:
    """A slice made for this run goes with it, and one that is to go waited for its end."""
    stored = find_slice(context.services, run.slice_name)
    if stored is not None and goes_after_run(stored.record):
        if not _neighbours(context, run):
            request_down(context.services, run.slice_name)
        return
    if not run.spec.owns_slice or run.spec.keep_slice or context.slice is None:
        return
    if context.slice.desired is Desired.UP and context.slice.run_id == run.id:
        request_down(context.services, run.slice_name, why=f"run {run.id}, for which it was made, is over")


def _neighbours(context: RunContext, run: RunRecord) -> list[RunRecord]:
    """Other runs that are not over on its slice."""
    return [other for other in active_runs(context.services, run.slice_name) if other.id != run.id]


NOT_LOOKED_AT = (
    "not looked at: no optimizer of PyTorch took a step, and no TrainState or nnx.Optimizer of Flax was made "
    "outside of jit"
)


def _is_checked(context: RunContext) -> bool:
    return context.run.spec.check != "off" and context.attempt.started_at is not None


def _with_reports(
    run: RunRecord, workers: Sequence[WorkerStatus], *, checked: bool
) -> tuple[Mapping[str, str], ...]:
    """The rows of its hosts, with what their programs compiled and have for parameters, where they said; of
    parameters that are to be `checked`, also that nobody saw them."""
    said = {
        str(worker.worker): {
            **compiles_of(run, worker),
            "weights": "; ".join(dict.fromkeys(r.weights for r in worker.join if r.weights))
            or (NOT_LOOKED_AT if checked else ""),
        }
        for worker in workers
    }
    return tuple(
        {**row, **{name: text for name, text in said.get(row["worker"], {}).items() if text}}
        for row in (run.attempt.hosts if run.attempt is not None else ())
    )
