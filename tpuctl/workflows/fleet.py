"""One stateless pass over everything desired, and taking slices down with all that is on them."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.core.plan import Blocked, Done, Failed
from tpuctl.core.records import SliceRecord, SliceState
from tpuctl.errors import LeaseHeldError, StaleRecordError, TpuctlError
from tpuctl.workflows.documents import find_slice, list_runs, list_slices
from tpuctl.workflows.follow import step_run_and_slice
from tpuctl.workflows.intents import request_down
from tpuctl.workflows.loop import Outcome, converge
from tpuctl.workflows.runs import active_run, attempt_hosts, request_stop
from tpuctl.workflows.services import Services
from tpuctl.workflows.slices import advance_slice, wait_until_gone

STEPS_PER_PASS = 20
"""A pass goes on with one subject while steps succeed at once, but never for ever."""


@dataclass(frozen=True)
class PassLine:
    """What one pass did for one subject: "done", "waiting", "blocked", "busy" or "failed", and why."""

    subject: str
    result: str
    why: str
    acted: bool


def run_pass(services: Services) -> list[PassLine]:
    """Looks at every slice and run that is not at rest and does what is ready to be done.

    One subject's trouble does not keep the others from their turn.
    """
    lines = []
    runs = [run for run in list_runs(services) if not run.state.final]
    with_run = {run.slice_name for run in runs}
    for run in runs:
        lines.append(_pass_over(services, run.id, is_run=True))
    for record in list_slices(services):
        resting = record.state in {SliceState.GONE, SliceState.REMOVED, SliceState.REFUSED}
        if record.name not in with_run and not resting:
            lines.append(_pass_over(services, record.name, is_run=False))
    return lines


def _pass_over(services: Services, subject: str, *, is_run: bool) -> PassLine:
    acted = False
    try:
        for _ in range(STEPS_PER_PASS):
            outcome = step_run_and_slice(services, subject) if is_run else advance_slice(services, subject)[0]
            acted = acted or outcome.acted
            if not outcome.acted:
                break
        if is_run:
            _keep_logs(services, subject)
    except (LeaseHeldError, StaleRecordError) as error:
        return PassLine(subject, "busy", error.message, acted)
    except TpuctlError as error:
        return PassLine(subject, "failed", error.message, acted)
    return _line(subject, outcome, acted)


def _line(subject: str, outcome: Outcome, acted: bool) -> PassLine:
    verdict = outcome.verdict
    if isinstance(verdict, Failed):
        return PassLine(subject, "failed", verdict.error.message, acted)
    word = "done" if isinstance(verdict, Done) else "blocked" if isinstance(verdict, Blocked) else "waiting"
    return PassLine(subject, word, verdict.why, acted)


def _keep_logs(services: Services, run_id: str) -> None:
    """One round of output of a running attempt, so that logs outlive a preemption up to the last pass."""
    for run in list_runs(services):
        if run.id != run_id or run.state.final:
            continue
        loaded = find_slice(services, run.slice_name)
        hosts = attempt_hosts(services, run, loaded.record if loaded else None)
        if hosts is not None and run.attempt is not None and run.attempt.started_at is not None:
            hosts.fetch_logs()


def take_down(
    services: Services, name: str, *, wait: bool = True, deadline: float | None = None
) -> SliceRecord:
    """Stops the slice's run, keeps its logs, and deletes the slice until the cloud says not-found."""
    run = active_run(services, name)
    if run is not None:
        request_stop(services, run.id)
        _end_run_first(services, run.id, deadline)
    record = request_down(services, name)
    if wait:
        wait_until_gone(services, name, deadline=deadline)
    return record


def _end_run_first(services: Services, run_id: str, deadline: float | None) -> None:
    """A run that cannot be ended in order (hosts gone, API silent) does not keep its slice alive."""
    try:
        converge(services, run_id, lambda: step_run_and_slice(services, run_id), deadline=deadline)
    except LeaseHeldError:
        raise
    except TpuctlError:
        return
