"""How much of the logs of runs a machine keeps: above the limit the oldest ones of runs that are over go.

Logs of runs that go on, that are kept (`tpuctl keep`), or that were over less than a day ago stay, whatever the
limit. Whatever cannot be read of the store, nothing is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tpuctl.engine.ports import KeptLogs
from tpuctl.engine.services import Services
from tpuctl.lib.text import counted, sized
from tpuctl.model.timeouts import LOGS_YOUNG_S
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import KEPT_RUNS, find_run, list_runs


def plan_removal(
    logs: Sequence[KeptLogs], ends: Mapping[str, float | None], kept: Collection[str], limit: int, now: float
) -> list[KeptLogs]:
    """What goes so that the rest is at most `limit` bytes, oldest first. `ends`: by run when it was over, None
    while it goes on; what is of no known run is as old as its last byte."""

    def over_at(each: KeptLogs) -> float | None:
        return ends.get(each.run_id, each.written_at)

    excess = sum(each.size for each in logs) - limit
    chosen: list[KeptLogs] = []
    for each in sorted(logs, key=lambda each: over_at(each) or now):
        over = over_at(each)
        old = over is not None and now - over >= LOGS_YOUNG_S
        if excess > 0 and each.size and old and each.run_id not in kept:
            chosen.append(each)
            excess -= each.size
    return chosen


def find_excess(services: Services, limit_mib: int) -> list[KeptLogs]:
    """The logs on this machine that are beyond the limit; none with a limit of 0."""
    logs = services.logs.list() if limit_mib else []
    if sum(each.size for each in logs) <= limit_mib << 20:
        return []
    now = services.store.now()
    runs = KEPT_RUNS.list(services)
    kept = {each.run for each in runs if each.until is None or each.until > now}
    ends = {run.id: (run.ended_at or now) if run.state.final else None for run in list_runs(services)}
    return plan_removal(logs, ends, kept, limit_mib << 20, now)


def remove_logs(services: Services, chosen: Sequence[KeptLogs]) -> str:
    """Removes them from this machine; after a crash the next call goes on. Says what it did, an empty string
    for nothing."""
    for each in chosen:
        why = f"{sized(each.size)} removed from {services.machine}: more than logs_limit_mib in all"
        if find_run(services, each.run_id) is not None:
            record_decision(services, f"runs/{each.run_id}", "logs", why)
        services.logs.remove(each.run_id, services.store.now())
    return describe_excess(chosen)


def describe_excess(chosen: Sequence[KeptLogs]) -> str:
    """`the logs of 3 runs (1.2 GiB)`, or an empty string."""
    size = sized(sum(each.size for each in chosen))
    return f"the logs of {counted(len(chosen), 'run')} ({size})" if chosen else ""
