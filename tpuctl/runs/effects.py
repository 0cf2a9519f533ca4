"""What is done for a run: one function for each effect of its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from tpuctl.engine.events import Note, StepDone, StepStarted, Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.hosts.protocol import WorkerState
from tpuctl.lib.text import counted
from tpuctl.lib.time import render_span
from tpuctl.model.attempts import Attempt, AttemptPhase, Cause
from tpuctl.model.records import RunState
from tpuctl.model.verdict import Wait, wait_for
from tpuctl.provenance.parts import seal_manifest
from tpuctl.runs.attempt import AttemptHosts
from tpuctl.runs.context import RunContext
from tpuctl.runs.end_attempt import end_attempt, release_slice
from tpuctl.runs.mounts import mounts_now, troubled_mounts
from tpuctl.runs.plan import RunPlan, plan_event
from tpuctl.runs.prepare import prepare
from tpuctl.runs.provisioning import mend_mounts
from tpuctl.runs.stacks import examine, keep_stacks
from tpuctl.runs.states import RunEffect, RunFinding
from tpuctl.runs.triage import HangCause
from tpuctl.slices.replacement import find_replacement_limit

_OF_THE_PROGRAM = frozenset({Cause.FAILED, Cause.RESTART_ASKED, Cause.NOT_JOINED})
"""Ends for which a mount that died may be the reason."""


def apply_plan(context: RunContext, plan: RunPlan) -> Outcome:
    """Does what the plan of a run says, under the lease of its slice."""
    if plan.effect is None:
        return Outcome(plan.verdict, acted=False)
    return EFFECTS[plan.effect](context, plan)


def _apply_event(context: RunContext, found: RunFinding) -> Outcome:
    """Does what the table says of an event that hosts have just reported."""
    return apply_plan(context, plan_event(context.run, found))


def _new_attempt(context: RunContext, plan: RunPlan) -> Outcome:
    run, slice_ = context.run, context.slice
    if slice_ is None or slice_.incarnation is None:
        return Outcome(plan.verdict, acted=False)
    number = 1 if run.attempt is None else run.attempt.number + 1
    everybody = tuple(range(len(slice_.incarnation.workers)))
    attempt = Attempt(
        number=number,
        incarnation=slice_.incarnation.number,
        fence=context.fence,
        state=AttemptPhase(plan.to.phase),
        created_at=context.services.store.now(),
        workers=run.spec.workers or everybody,
        slices=slice_.spec.slices if run.spec.workers in ((), everybody) else 1,
        processes=1 if run.spec.per == "host" else max(1, slice_.spec.chips // max(1, slice_.spec.hosts)),
        node_uid=slice_.incarnation.node_uid,
        zone=slice_.spec.zone,
        requested_at=slice_.incarnation.requested_at,
        provisioned_at=slice_.incarnation.cloud_ready_at,
        ready_at=slice_.incarnation.ready_at,
        timeline=(context.entry("attempt", f"on {slice_.incarnation.cloud_name}"),),
    )
    context.journal("attempt", f"attempt {number}: {plan.why}")
    context.services.emit(StepStarted(run.id, f"attempt {number}", plan.why))
    context.save_attempt(attempt, state=RunState.PREPARING)
    return Outcome(wait_for("the workers"), acted=True)


def _prepare(context: RunContext, _: RunPlan) -> Outcome:
    hosts = context.hosts()
    return _NO_HOSTS if hosts is None else _apply_event(context, prepare(hosts))


def _mark_prepared(context: RunContext, plan: RunPlan) -> Outcome:
    _write_down(context, plan)
    _tell_done(context, "prepare", "code and environment on {}")
    # At once: to ask every worker whether it is prepared would only repeat what each has just said. By the
    # attempt as it is now: it has the coordinator's address and the environment of each worker.
    hosts = context.hosts()
    if hosts is not None and hosts.late():
        return Outcome(wait_for("slow workers"), acted=True)
    return _start_workers(context, hosts, plan.why)


def _start(context: RunContext, plan: RunPlan) -> Outcome:
    return _start_workers(context, context.hosts(), plan.why)


def _start_workers(context: RunContext, hosts: AttemptHosts | None, why: str) -> Outcome:
    if hosts is None:
        return _NO_HOSTS
    context.journal("start", why)
    return _apply_event(context, hosts.start())


def _mark_running(context: RunContext, plan: RunPlan) -> Outcome:
    """Where the answer to the start was lost, hosts are asked again: they start nothing twice and tell the
    variables. If they do not, every worker runs all the same; only the record has less."""
    changes, attempt = plan.found.changes, context.attempt
    hosts = context.hosts() if not attempt.variables and "variables" not in changes else None
    if hosts is not None:
        changes = hosts.start().changes
    variables = changes.get("variables", attempt.variables)
    _save(
        context,
        plan,
        RunState.RUNNING,
        timeline=context.tell(("started", plan.why)),
        started_at=context.services.store.now(),
        variables=variables,
        suspect_since=None,
        suspect_reads=0,
    )
    _tell_done(context, f"attempt {attempt.number}", "runs on {}")
    return Outcome(wait_for("the run"), acted=True)


def _record(context: RunContext, plan: RunPlan) -> Outcome:
    _write_down(context, plan)
    return Outcome(plan.verdict, acted=True)


def _record_stall(context: RunContext, plan: RunPlan) -> Outcome:
    """The evidence first: it says which worker keeps the others, and is what a restart would destroy."""
    cause = _examine(context)
    if cause is None:
        return _record(context, plan)
    found = plan.found
    why = f"{found.why}; {cause.said}"
    news = tuple(replace(each, detail=why, said=f"{why}: `{cause.next}`") for each in found.news)
    changes = {**found.changes, "stalled_by": cause.said}
    return _record(context, replace(plan, found=replace(found, why=why, news=news, changes=changes)))


def _doubt(context: RunContext, plan: RunPlan) -> Outcome:
    _write_down(context, plan)
    if plan.found.is_suspicion:
        _tell_suspicion(context, plan.why)
    return Outcome(plan.verdict, acted=False)


def _mend_mounts(context: RunContext, plan: RunPlan) -> Outcome:
    """Mounts what nothing on its host keeps any more. The program goes on, if it can."""
    hosts = context.hosts()
    why = mend_mounts(hosts) if hosts is not None else ""
    return Outcome(Wait(f"the run; {why or plan.why}"), acted=False)


def _begin_end(context: RunContext, plan: RunPlan) -> Outcome:
    cause, why = plan.to.cause or Cause.FAILED, plan.why
    # What others wait for says something once a program has ended. Of a start that was refused none has.
    ended = any(each.state is WorkerState.EXITED for each in context.workers)
    if cause is Cause.STALLED:
        keeper = _examine(context)
        why = f"{why}; {keeper.said}" if keeper is not None else why
    elif cause is Cause.NOT_JOINED or (cause is Cause.FAILED and ended):
        _keep_stacks(context, {w.worker for w in context.workers if w.state is WorkerState.RUNNING})
    if cause in _OF_THE_PROGRAM:
        now = (*context.attempt.mounts, *mounts_now(context.attempt, context.slice, context.workers))
        said = troubled_mounts({(each.worker, each.path): each for each in now}.values())
        why = f"{why}; {said}" if said else why
    _save(
        context,
        plan,
        RunState.STOPPING if cause is Cause.STOPPED else None,
        timeline=context.tell((cause, why)),
        cause=cause,
        ending_since=context.services.store.now(),
        suspect_why=why,
        mend=plan.found.changes.get("mend", ""),
    )
    return Outcome(wait_for("the attempt to end"), acted=True)


def _stop_workers(context: RunContext, _: RunPlan) -> Outcome:
    hosts = context.hosts()
    if hosts is not None:
        hosts.stop(context.run.spec.policy.grace_s)
    return Outcome(wait_for("workers to stop"), acted=False)


def _finish(context: RunContext, plan: RunPlan) -> Outcome:
    now = context.services.store.now()
    run = replace(context.run, state=RunState.STOPPED, reason=plan.why, ended_at=now)
    context.journal_end(run)
    run = replace(run, totals=seal_manifest(context.services, run, context.slice))
    release_slice(context, run)
    context.save(run)
    return Outcome(wait_for("the end"), acted=True)


EFFECTS: Mapping[RunEffect, Callable[[RunContext, RunPlan], Outcome]] = {
    RunEffect.NEW_ATTEMPT: _new_attempt,
    RunEffect.PREPARE: _prepare,
    RunEffect.MARK_PREPARED: _mark_prepared,
    RunEffect.START: _start,
    RunEffect.MARK_RUNNING: _mark_running,
    RunEffect.RECORD: _record,
    RunEffect.RECORD_STALL: _record_stall,
    RunEffect.DOUBT: _doubt,
    RunEffect.MEND_MOUNTS: _mend_mounts,
    RunEffect.BEGIN_END: _begin_end,
    RunEffect.STOP_WORKERS: _stop_workers,
    RunEffect.END_ATTEMPT: end_attempt,
    RunEffect.FINISH: _finish,
}
_NO_HOSTS = Outcome(wait_for("its slice"), acted=False)


def _write_down(context: RunContext, plan: RunPlan) -> None:
    """What was found: in the journal, in the record of the attempt, and for whoever watches."""
    found = plan.found
    if found.journal:
        context.journal(found.journal, found.reason or found.why)
    if found.changes or found.news:
        timeline = context.tell(*((each.event, each.detail) for each in found.news))
        _save(context, plan, timeline=timeline, **found.changes)
    for each in found.news:
        if each.said:
            event = Warn if each.warns else Note
            context.services.emit(event(context.run.id, each.said))


def _save(context: RunContext, plan: RunPlan, state: RunState | None = None, **changes: Any) -> None:
    """The attempt in the phase that the table says, and the run in another state where one is given."""
    attempt = replace(context.attempt, state=AttemptPhase(plan.to.phase), **changes)
    # Why it had to be tried again is in the journal and in its last attempt, and is over when this one runs.
    over = {"reason": ""} if state is RunState.RUNNING else {}
    context.save_attempt(attempt, state=state or context.run.state, **over)


def _tell_done(context: RunContext, step: str, what: str) -> None:
    attempt = context.attempt
    done = what.format(counted(len(attempt.workers), "worker"))
    took_s = context.services.store.now() - attempt.created_at
    context.services.emit(StepDone(context.run.id, step, done, took_s))


def _tell_suspicion(context: RunContext, why: str) -> None:
    silent = any(worker.state is WorkerState.UNREACHABLE for worker in context.workers)
    if silent and context.slice is not None:
        limit_s = find_replacement_limit(context.services, context.slice)
        why = f"{why}; hosts that stay silent are given up after {render_span(limit_s)}"
    context.journal("suspect", why)
    context.services.emit(Note(context.run.id, f"{why}; looking whether the slice is still there"))


def _keep_stacks(context: RunContext, workers: set[int]) -> None:
    hosts = context.hosts() if workers else None
    if hosts is not None:
        keep_stacks(hosts, workers)


def _examine(context: RunContext) -> HangCause | None:
    """What all workers do and their chips, kept beside the logs; which of them keeps the others."""
    hosts = context.hosts()
    return None if hosts is None else examine(hosts, context.workers).cause
