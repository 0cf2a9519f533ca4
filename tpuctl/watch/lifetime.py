"""`--ttl` and `--stop-when-idle`: asked of hosts, decided in `slices/lifetime.py`, done by a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.errors import StaleRecordError, TpuctlError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.requests import ActivityRequest, WarnRequest
from tpuctl.hosts.targets import host_targets
from tpuctl.model.records import Desired, Lifetime, SliceRecord, SliceState
from tpuctl.runs.request import request_stop
from tpuctl.slices.desired import request_down
from tpuctl.slices.lifetime import (
    HostActivity,
    IdleWatch,
    LifetimeAction,
    ends_soon,
    find_use,
    judge_lifetime,
    parse_activity,
)
from tpuctl.slices.states import FINAL_STATES
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import Repository, active_runs

IDLE = Repository(IdleWatch, "idle")

Ask = Callable[[Services, SliceRecord], Sequence[HostActivity | None]]


def read_activity(services: Services, record: SliceRecord) -> list[HostActivity | None]:
    """What every worker says of its use, in worker order; None for one that did not answer sensibly."""
    agent = HostAgent(services.remote, services.agent_source)
    found: list[HostActivity | None] = []
    for reply in agent.ask(host_targets(services, record), ActivityRequest()):
        try:
            found.append(None if reply.value is None else parse_activity(reply.worker, reply.value))
        except (KeyError, TypeError, ValueError):
            found.append(None)
    return found


def apply_lifetime(services: Services, record: SliceRecord, *, ask: Ask | None = read_activity) -> str:
    """Warns or ends a slice whose time is over or that nobody uses; what was done, in words, or nothing.

    Without `ask` its hosts are left alone: then only its time can end it, and what was seen of its use stands.
    """
    lifetime = record.lifetime
    if lifetime is None or record.desired is not Desired.UP or record.by_hand:
        return ""
    if record.state in FINAL_STATES:
        return ""
    now = services.store.now()
    if ask is None and not ends_soon(lifetime, now):
        return ""
    active = active_runs(services, record.name)
    runs = ", ".join(run.id for run in active)
    use = _use(services, record, lifetime, runs or None, ask)
    verdict = judge_lifetime(lifetime, _recall(services, record), use, now)
    if verdict.step is LifetimeAction.STOP and active:
        for run in active:
            request_stop(services, run.id)
        record_decision(services, record.key, "end", verdict.why)
        request_down(services, record.name, why=verdict.why, run_first=True)
        return f"stopping run {runs}: {verdict.why}"
    if verdict.step is LifetimeAction.STOP:
        record_decision(services, record.key, "end", verdict.why)
        request_down(services, record.name, why=verdict.why)
        return f"taken down: {verdict.why}"
    if verdict.step is LifetimeAction.WARN:
        text = f"tpuctl takes slice {record.name} down in ten minutes: {verdict.why}"
        record_decision(services, record.key, "warn", verdict.why)
        services.emit(Warn(record.name, text))
        _warn_hosts(services, record, text)
    # Only now does it count as warned: a crash in between warns twice rather than never.
    _remember(services, record, verdict.watch)
    return f"warned: {verdict.why}" if verdict.step is LifetimeAction.WARN else ""


def _use(
    services: Services, record: SliceRecord, lifetime: Lifetime, run_id: str | None, ask: Ask | None
) -> str:
    """Hosts are asked only where the answer matters."""
    if lifetime.idle_s is None or run_id is not None:
        return find_use(run_id, [])
    if record.state is not SliceState.READY:
        return f"it is {record.state}"
    if ask is None:
        return "its hosts were not asked"
    try:
        return find_use(None, ask(services, record))
    except TpuctlError as error:
        return f"its hosts could not be asked: {error.message}"


def _recall(services: Services, record: SliceRecord) -> IdleWatch:
    """What the passes before remembered of this incarnation."""
    watch = IDLE.record(services, record.name)
    if watch is None or watch.incarnation != record.last_incarnation:
        return IdleWatch(record.last_incarnation)
    return watch


def _remember(services: Services, record: SliceRecord, watch: IdleWatch) -> None:
    """Another machine that writes at the same moment has seen the same: whose note stays does not matter, nor
    that this one never got through."""
    with suppress(StaleRecordError):
        IDLE.update(services, record.name, lambda _: watch)


def _warn_hosts(services: Services, record: SliceRecord, text: str) -> None:
    """On all terminals of all hosts, as far as they can be reached: the decision does not hang on it."""
    try:
        agent = HostAgent(services.remote, services.agent_source)
        agent.ask(host_targets(services, record), WarnRequest(text))
    except TpuctlError as error:
        services.emit(Warn(record.name, f"its hosts could not be warned: {error.message}"))
