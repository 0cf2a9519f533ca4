"""Whether a run that is over has ended on every worker, and what is done where that was not seen."""

from __future__ import annotations

from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import PartialError
from tpuctl.hosts.deadline import HOST_TIME_S
from tpuctl.hosts.protocol import ALIVE, SILENT
from tpuctl.lib.codec import to_data
from tpuctl.lib.text import fold_workers
from tpuctl.model import timeouts
from tpuctl.model.records import RunRecord
from tpuctl.runs.active import unproven_ends
from tpuctl.runs.attempt import AttemptHosts, find_hosts, kill_hint
from tpuctl.runs.charge import worker_ends
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import get_run, save


def stop_error(services: Services, run: RunRecord) -> PartialError | None:
    """What a stop could not end, such as root's processes, or could not see the end of; None when nothing
    outlived it."""
    ends = unproven_ends(run) if _hosts(services, run) is not None else []
    if not ends:
        return None
    first, workers = ends[0], [end.worker for end in ends]
    details = {"workers": workers, "exits": to_data(ends)}
    if all(end.note in SILENT for end in ends):
        return PartialError(
            f"run {run.id} is {run.state}, but worker {fold_workers(workers)} of {run.slice_name} did not "
            "answer: what it ran there may live on",
            hint=f"tpuctl stop {run.id}, again, ends it once they answer; tpuctl status {run.slice_name}",
            details=details,
        )
    named = "; ".join(f"worker {end.worker}: {end.note}" for end in ends)
    processes = f"tpuctl exec --worker {first.worker} {run.slice_name} -- ps -ef"
    return PartialError(
        f"run {run.id} is {run.state}, but processes of it live on: {named}",
        hint=kill_hint(run.slice_name, first.worker, first.survivors) if first.survivors else processes,
        details=details,
    )


def confirm_stop(services: Services, run_id: str) -> RunRecord:
    """Asks workers again that did not show the end of a run that is over, and ends what they run of it."""
    run = get_run(services, run_id).record
    give_up_at = services.clock.now() + run.spec.policy.grace_s + timeouts.STOP_MAX_S
    while True:
        run = confirm_stop_once(services, run)
        alive = any(end.note in ALIVE for end in unproven_ends(run))
        if not alive or services.clock.now() >= give_up_at:
            return run
        services.clock.sleep(timeouts.POLL_FIRST_S)


def confirm_stop_once(services: Services, run: RunRecord) -> RunRecord:
    """One read of `confirm_stop`."""
    hosts = _hosts(services, run)
    if hosts is None or not unproven_ends(run):
        return run
    hosts.stop(run.spec.policy.grace_s)
    stored = get_run(services, run.id)
    now = {end.worker: end for end in worker_ends(hosts.observe())}
    unproven = {end.worker for end in unproven_ends(stored.record)}
    attempt = stored.record.attempt
    if attempt is None or not stored.record.state.final:
        return stored.record
    ends = tuple(now[end.worker] if end.worker in unproven else end for end in attempt.ends)
    if ends == attempt.ends:
        return stored.record
    record_decision(
        services, run.key, "stop-confirmed", "; ".join(f"worker {end.worker}: {end.note}" for end in ends)
    )
    return save(services, stored, replace(stored.record, attempt=replace(attempt, ends=ends))).record


def _hosts(services: Services, run: RunRecord) -> AttemptHosts | None:
    """None when they are gone, and with them all that ran there."""
    return find_hosts(services, run, services.clock.now() + HOST_TIME_S)
