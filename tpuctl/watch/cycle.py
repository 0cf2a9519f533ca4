"""A pass of the watchdog with its heartbeat in the store; and whether any watchdog makes passes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import StaleRecordError, TpuctlError
from tpuctl.model.records import Desired
from tpuctl.slices.enrollment import was_enrolled
from tpuctl.state.repository import Repository, readable_runs, readable_slices
from tpuctl.watch.heartbeat import (
    FLEET,
    INSTALL_HINT,
    TROUBLED,
    Health,
    Heartbeat,
    PassLine,
    PassResult,
    Trouble,
    Watcher,
    judge,
    next_heartbeat,
    worth_writing,
)
from tpuctl.watch.pause import paused_why
from tpuctl.watch.reconciler import run_pass

HOOKS = "hooks"
WATCHDOGS = Repository(Heartbeat, "watchdogs")
"""The last pass of every machine, by its name."""


class PassReport(Struct, frozen=True):
    """What one pass did. `error` is what kept it from looking at all; `previous` was in the store before."""

    lines: tuple[PassLine, ...]
    beat: Heartbeat
    previous: Heartbeat | None
    generation: int
    error: TpuctlError | None = None

    @property
    def good(self) -> bool:
        """Whether the cloud and the hosts could be looked at: what only a person can solve is no failure."""
        return all(line.result not in {PassResult.FAILED, PassResult.BLIND} for line in self.lines)

    @property
    def troubles(self) -> list[Trouble]:
        """Those that this pass saw itself."""
        seen = {line.subject for line in self.lines if line.result in TROUBLED}
        return [trouble for trouble in self.beat.troubles if trouble.subject in seen]


def watched_pass(services: Services, watcher: Watcher, broken: Sequence[TpuctlError] = ()) -> PassReport:
    """One pass, and the heartbeat that it deserves; `save_heartbeat` writes that. `broken` is what of this
    machine's own set-up does not work, such as hooks: it needs a person, and keeps nothing from being done.

    Raises only when the store cannot be read: a cloud that cannot be read is a line of the report.
    """
    stored = WATCHDOGS.find(services, watcher.machine)
    previous, generation = (None, 0) if stored is None else (stored.record, stored.generation)
    at, began = services.store.now(), services.clock.now()
    error: TpuctlError | None = None
    lines: Sequence[PassLine]
    try:
        lines = run_pass(services, previous)
    except TpuctlError as caught:
        error, lines = caught, [PassLine(FLEET, PassResult.FAILED, caught.message, acted=False)]
    lines = [*lines, *(PassLine(HOOKS, PassResult.BLOCKED, error.message, acted=False) for error in broken[:1])]
    seconds = services.clock.now() - began
    beat = next_heartbeat(previous, watcher, lines, at=at, seconds=seconds)
    return PassReport(tuple(lines), beat, previous, generation, error)


def save_heartbeat(services: Services, report: PassReport, note: str | None = None) -> PassReport:
    """Writes the heartbeat of a pass, unless nothing changed; without a `note`, which is known only later, the
    last one stays. Returns the report after what is stored now, from which it can be saved again."""
    last = report.previous.note if report.previous is not None else ""
    beat = replace(report.beat, note=last if note is None else note)
    if not worth_writing(report.previous, beat):
        return report
    try:
        written = WATCHDOGS.put(services, beat.machine, beat, report.generation)
    except StaleRecordError:
        return report  # a pass of the same machine that began later has written its own
    return replace(report, previous=beat, generation=written.generation)


def forget_heartbeat(services: Services, machine: str) -> bool:
    """Removes the heartbeat of a watchdog that was uninstalled, so that nobody waits for it."""
    return WATCHDOGS.delete(services, machine)


def list_heartbeats(services: Services) -> list[Heartbeat]:
    """The last pass of every machine, newest first."""
    return sorted(WATCHDOGS.readable(services)[0], key=lambda beat: beat.at, reverse=True)


def watchdog_health(services: Services) -> Health:
    """Whether a watchdog looks after this store, judged by the store's own time."""
    return judge(list_heartbeats(services), services.store.now())


def why_unwatched(services: Services) -> tuple[str, str] | None:
    """Why nothing would be restored after a preemption, and the command that fixes it: no watchdog makes
    passes, or they are paused."""
    health = watchdog_health(services)
    if not health.good:
        return health.why, INSTALL_HINT
    paused = paused_why(services)
    return (f"the fleet is {paused}", "tpuctl resume") if paused else None


def slices_without_our_key(services: Services) -> list[str]:
    """Slices that are wanted and were asked for before this machine's key was in the store."""
    if was_enrolled(services):
        return []
    return [record.name for record in readable_slices(services)[0] if record.desired is Desired.UP]


def secrets_of_active_runs(services: Services) -> dict[str, str]:
    """References that a restart will have to resolve, each with a run that needs it."""
    return {
        reference: run.id
        for run in readable_runs(services)[0]
        if not run.state.final and run.cluster is None
        for reference in run.spec.secrets.values()
    }
