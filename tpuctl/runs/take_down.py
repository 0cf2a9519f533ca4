"""Taking a slice down with its runs: they end in order first, if that can be.

`take_down` does all of it for a command. `end_slice` is one step, for a loop over many slices.
"""

from __future__ import annotations

from contextlib import suppress

from tpuctl.engine.events import Warn
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import LeaseHeldError, StaleRecordError, TpuctlError
from tpuctl.model.records import Desired, RunRecord, SliceRecord
from tpuctl.model.verdict import Wait, wait_for
from tpuctl.runs.follow import step_run_and_slice
from tpuctl.runs.request import request_stop
from tpuctl.slices.desired import goes_after_run, request_down, withdraw_if_unsent
from tpuctl.slices.reconcile import advance_slice, wait_until_gone
from tpuctl.slices.vacate import refuse_if_silent
from tpuctl.state.repository import active_runs, get_run, get_slice


def take_down(
    services: Services,
    name: str,
    *,
    wait: bool = True,
    deadline: float | None = None,
    all_users: bool = False,
    may_lose: bool = False,
) -> SliceRecord:
    """Stops the slice's runs, keeps their logs, and deletes the slice until the cloud says not-found.

    `all_users`: it goes even where its TPUs carry the label of another user than the record's owner;
    `may_lose`: also where its hosts cannot bring what they wrote to its disks. Else UnreachableError or
    ConflictError say what may be lost, and it stays.
    """
    runs = active_runs(services, name)
    unsent = f"down, asked for by {services.user}; nothing had been sent"
    withdrawn = withdraw_if_unsent(services, name, unsent)
    if runs:
        if not withdrawn and not may_lose:
            refuse_if_silent(services, name)
        for run in runs:
            request_stop(services, run.id)
        if not withdrawn:
            # Before its runs end: what is lost meanwhile must not be asked for again.
            request_down(services, name, all_users=all_users, run_first=True, may_lose=may_lose)
        for run in runs:
            with suppress(TpuctlError):  # said where it is waited for: each may take its grace, all at once
                step_run_and_slice(services, run.id)
        for run in runs:
            _end_run_first(services, run.id, deadline)
    if withdrawn or withdraw_if_unsent(services, name, unsent):
        return get_slice(services, name).record
    record = request_down(services, name, all_users=all_users, may_lose=may_lose)
    if wait:
        wait_until_gone(services, name, deadline=deadline)
    return record


def _end_run_first(services: Services, run_id: str, deadline: float | None) -> None:
    """A run that cannot be ended in order (hosts gone, API silent) does not keep its slice alive."""
    try:
        converge(services, run_id, lambda: step_run_and_slice(services, run_id), deadline=deadline)
    except LeaseHeldError:
        raise
    except TpuctlError as error:
        services.emit(
            Warn(run_id, f"could not be stopped in order: {error.message}; its slice is deleted all the same")
        )


def end_slice(services: Services, name: str, why: str, *, may_lose: bool = False) -> Outcome:
    """One step of taking a slice down with its runs: they end in order first, if that can be. The journal
    keeps `why`. `may_lose` as of take_down."""
    record = get_slice(services, name).record
    if record.desired is Desired.UP or goes_after_run(record):
        runs = active_runs(services, name)
        if runs and record.desired is Desired.UP and not may_lose:
            refuse_if_silent(services, name)
        request_down(services, name, why=why, run_first=bool(runs), may_lose=may_lose)
        going = [run.id for run in runs if _keeps_slice(services, run)]
        if going:
            return Outcome(wait_for(f"run {', '.join(going)} to end"), acted=False)
        request_down(services, name, why=why, may_lose=may_lose)
        return Outcome(wait_for(f"{name} to be gone"), acted=True)
    return advance_slice(services, name, person=True)[0]


def _keeps_slice(services: Services, run: RunRecord) -> bool:
    """Whether a run that is to stop still needs its slice. One that cannot be ended in order does not."""
    request_stop(services, run.id)
    try:
        outcome = step_run_and_slice(services, run.id)
    except (LeaseHeldError, StaleRecordError):
        return True
    except TpuctlError:
        return False
    if isinstance(outcome.verdict, Wait) or outcome.acted:
        return not get_run(services, run.id).record.state.final
    return False
