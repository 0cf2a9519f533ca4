"""What hosts of a run have that is not here yet. Apart from what is kept here, which lists and pages read: to
import the ways to hosts took them a fifth of their CPU."""

from __future__ import annotations

from tpuctl.engine.services import Services
from tpuctl.hosts.deadline import HOST_TIME_S
from tpuctl.model.records import RunRecord
from tpuctl.runs.attempt import find_hosts
from tpuctl.runs.log_archive import restore_logs


def fetch_metrics(services: Services, run: RunRecord) -> None:
    """What the hosts of a run have since the last time, as far as they answer; together with their logs where
    nothing of these is here."""
    hosts = find_hosts(services, run, services.clock.now() + HOST_TIME_S)
    if hosts is None or run.attempt is None or run.attempt.started_at is None:
        return
    if not services.logs.has(run.id, run.attempt.number):
        restore_logs(services, run.id, run.attempt.number)
    if services.logs.has(run.id, run.attempt.number):
        hosts.fetch_times()
    else:
        hosts.fetch_logs(emit=False)
