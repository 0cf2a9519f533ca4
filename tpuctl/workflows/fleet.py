"""One stateless pass over everything desired, and taking slices down with all that is on them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from tpuctl.core import timeouts
from tpuctl.core.plan import Blind, Blocked, Done, Failed
from tpuctl.core.plan_slice import plan_slice
from tpuctl.core.records import RunRecord, SliceRecord, SliceState
from tpuctl.errors import LeaseHeldError, StaleRecordError, TpuctlError
from tpuctl.ports import Document
from tpuctl.workflows.attempts import attempt_hosts
from tpuctl.workflows.cleaning import collect_obsolete
from tpuctl.workflows.documents import (
    Loaded,
    R,
    find_slice,
    get_run,
    get_slice,
    load_run,
    load_slice,
)
from tpuctl.workflows.events import Warn
from tpuctl.workflows.follow import step_run_and_slice
from tpuctl.workflows.grant_ends import heed_grant_ends
from tpuctl.workflows.intents import request_down
from tpuctl.workflows.lifetime import apply_lifetime
from tpuctl.workflows.loop import Outcome, converge
from tpuctl.workflows.observe import SliceLook, Snapshot, take_snapshot
from tpuctl.workflows.pausing import paused_why
from tpuctl.workflows.probing import Reach
from tpuctl.workflows.runs import active_run, request_stop
from tpuctl.workflows.services import Services
from tpuctl.workflows.slices import advance_slice, wait_until_gone

_log = logging.getLogger(__name__)

STEPS_PER_PASS = 20
"""A pass goes on with one subject while steps succeed at once, but never for ever."""

_RESTING = {SliceState.GONE, SliceState.REMOVED, SliceState.REFUSED}
"""States in which a slice waits for a person; only what the cloud still shows of it is of interest."""
_CLEANING = {SliceState.LOST, SliceState.DELETING, SliceState.REFUSED}
"""Their dead requests eat quota until they are deleted, so they have the first turn."""


@dataclass(frozen=True)
class PassLine:
    """What one pass did for one subject: "done", "waiting", "blocked", "busy", "blind", "paused", "later" or
    "failed", and why."""

    subject: str
    result: str
    why: str
    acted: bool

    @property
    def needs_a_human(self) -> bool:
        return self.result in {"blocked", "blind", "failed"}


def run_pass(services: Services) -> list[PassLine]:
    """Looks at every slice and run that is not at rest and does what is ready to be done.

    Reads the whole project with two list calls; only what these show to be out of order is looked at by itself.
    One subject's trouble does not keep the others from their turn.
    """
    paused = paused_why(services)
    if paused:
        return [PassLine("fleet", "paused", paused, acted=False)]
    slices, unread_slices = _readable(services, "slices/", load_slice)
    loaded_runs, unread_runs = _readable(services, "runs/", load_run)
    runs = [loaded.record for loaded in loaded_runs if not loaded.record.state.final]
    unread = [*unread_slices, *unread_runs]
    now = services.clock.now()
    if not runs and not any(_of_interest(loaded.record, now) for loaded in slices):
        return unread
    try:
        snapshot = take_snapshot(services)
    except TpuctlError as error:
        return [*unread, PassLine("fleet", "failed", error.message, acted=False)]
    return [*unread, *_Pass(services, slices, runs, snapshot).work()]


def _of_interest(record: SliceRecord, now: float) -> bool:
    """Whether the cloud may show something of a slice: also of one that is gone, if the effect of its last
    create may come late. Nobody else would find that."""
    if record.state is not SliceState.GONE:
        return True
    called_at = record.incarnation.create_called_at if record.incarnation else None
    return called_at is not None and now < called_at + timeouts.LATE_EFFECT_S


def _readable(
    services: Services, prefix: str, load: Callable[[Document], Loaded[R]]
) -> tuple[list[Loaded[R]], list[PassLine]]:
    """The records under `prefix`, and a line for each that cannot be read: a damaged record, or one of a newer
    tpuctl, must not leave the others unwatched."""
    found: list[Loaded[R]] = []
    lines = []
    for document in services.store.list(prefix):
        try:
            found.append(load(document))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            why = f"its record cannot be read: {type(error).__name__}: {error}"
            lines.append(PassLine(document.key.removeprefix(prefix), "failed", why, acted=False))
    return found, lines


class _Pass:
    """One pass: what was seen at its start, and what its way to hosts has shown so far."""

    def __init__(
        self,
        services: Services,
        slices: list[Loaded[SliceRecord]],
        runs: list[RunRecord],
        snapshot: Snapshot,
    ) -> None:
        self._services = services
        self._slices = slices
        self._runs = runs
        self._snapshot = snapshot
        self._reach = Reach(services)

    def work(self) -> list[PassLine]:
        lines = [*_guarded_lines("collecting", self._collected), *_guarded_lines("grants", self._grant_news)]
        with_run = {run.slice_name for run in self._runs}
        looks = {loaded.record.name: self._look(loaded) for loaded in self._slices}
        for loaded in sorted(self._slices, key=lambda each: each.record.state not in _CLEANING):
            name = loaded.record.name
            if name not in with_run and not self._at_rest(looks[name]):
                lines.append(self._slice_line(looks[name]))
        lines += self._lifetimes()
        reached = _round_robin(self._runs, self._hosts_of, self._services.store.now())
        for run in self._runs:
            lines.append(self._run_line(run, looks.get(run.slice_name), may_connect=run.id in reached))
        return lines

    def _collected(self) -> list[PassLine]:
        found = collect_obsolete(self._services, self._snapshot, self._slices)
        words = {True: "done", False: "blocked"}
        return [PassLine(each.name, words[each.deleted], each.why, acted=each.deleted) for each in found]

    def _grant_news(self) -> list[PassLine]:
        news = heed_grant_ends(self._services, self._slices)
        return [PassLine(item.subject, "done", item.text, acted=True) for item in news]

    def _lifetimes(self) -> list[PassLine]:
        """Warns and ends slices whose time is over or that nobody uses."""
        lines = []
        for name in (each.record.name for each in self._slices if each.record.lifetime is not None):

            def work(name: str = name) -> PassLine:
                said = apply_lifetime(self._services, get_slice(self._services, name).record)
                return PassLine(name, "done", said, acted=bool(said))

            line = _guarded(name, work)
            if line.why:
                lines.append(line)
        return lines

    def _look(self, loaded: Loaded[SliceRecord]) -> SliceLook:
        return self._snapshot.look(loaded, self._services.store.identity())

    def _at_rest(self, look: SliceLook) -> bool:
        shown = look.view.node is not None or look.view.queued is not None
        return look.record.state in _RESTING and not (look.record.state is SliceState.REFUSED and shown)

    def _hosts_of(self, run: RunRecord) -> int:
        if run.attempt is not None:
            return len(run.attempt.workers)
        return next((each.record.spec.hosts for each in self._slices if each.record.name == run.slice_name), 0)

    def _slice_line(self, look: SliceLook) -> PassLine:
        plan = plan_slice(look.record, look.sighting, self._services.store.now())
        name = look.record.name
        if plan.effect is None and plan.state is look.record.state:
            return _line(name, Outcome(plan.verdict, acted=False), acted=False)
        return _guarded(
            name, lambda: self._repeat(name, lambda: advance_slice(self._services, name, self._reach)[0])
        )

    def _run_line(self, run: RunRecord, look: SliceLook | None, *, may_connect: bool) -> PassLine:
        moved = _slice_moved(look, self._services.store.now())
        if self._reach.cut_off and may_connect and not moved:
            return PassLine(run.id, "blind", "this machine reaches no host; another watchdog may", acted=False)
        if not may_connect and not moved:
            return PassLine(run.id, "later", "its hosts have their turn in another pass", acted=False)

        def work() -> PassLine:
            step = lambda: step_run_and_slice(self._services, run.id, self._reach)  # noqa: E731
            line = self._repeat(run.id, step)
            return _keep_logs(self._services, run.id, line)

        return _guarded(run.id, work)

    def _repeat(self, subject: str, step: Callable[[], Outcome]) -> PassLine:
        acted = False
        for _ in range(STEPS_PER_PASS):
            outcome = step()
            acted = acted or outcome.acted
            if not outcome.acted:
                break
        return _line(subject, outcome, acted)


def _guarded(subject: str, work: Callable[[], PassLine]) -> PassLine:
    try:
        return work()
    except (LeaseHeldError, StaleRecordError) as error:
        return PassLine(subject, "busy", error.message, acted=False)
    except TpuctlError as error:
        return PassLine(subject, "failed", error.message, acted=False)
    except Exception as error:  # noqa: BLE001 - a defect met on one subject must not leave the others unwatched
        _log.exception("a pass met a defect", extra={"subject": subject})
        return PassLine(subject, "failed", f"a defect of tpuctl: {type(error).__name__}: {error}", acted=False)


def _guarded_lines(subject: str, work: Callable[[], list[PassLine]]) -> list[PassLine]:
    """The lines of `work`, or one that says what went wrong with it."""
    lines: list[PassLine] = []

    def collect() -> PassLine:
        lines.extend(work())
        return PassLine(subject, "done", "", acted=False)

    line = _guarded(subject, collect)
    return lines if line.result == "done" else [line]


def _line(subject: str, outcome: Outcome, acted: bool) -> PassLine:
    verdict = outcome.verdict
    if isinstance(verdict, Failed):
        return PassLine(subject, "failed", verdict.error.message, acted)
    words = {Done: "done", Blocked: "blocked", Blind: "blind"}
    return PassLine(subject, words.get(type(verdict), "waiting"), verdict.why, acted)


def _slice_moved(look: SliceLook | None, now: float) -> bool:
    """Whether the lists show that a run's slice needs something."""
    if look is None:
        return False
    plan = plan_slice(look.record, look.sighting, now)
    return plan.effect is not None or plan.state is not look.record.state


def _round_robin(runs: list[RunRecord], hosts_of: Callable[[RunRecord], int], now: float) -> set[str]:
    """The runs whose hosts this pass connects to: at least one, and about `PASS_HOSTS_MAX` hosts in all.

    Where the round begins is drawn by the minute: no pass needs to remember where the last one stopped, and no
    interval between passes leaves a run out for ever.
    """
    total = sum(max(1, hosts_of(run)) for run in runs)
    if total <= timeouts.PASS_HOSTS_MAX:
        return {run.id for run in runs}
    minute = hashlib.sha256(str(int(now / 60)).encode()).digest()
    start = int.from_bytes(minute[:8]) % total
    chosen: set[str] = set()
    seen = hosts = 0
    for run in [*runs, *runs]:
        size = max(1, hosts_of(run))
        seen += size
        if seen <= start or run.id in chosen:
            continue
        if chosen and hosts + size > timeouts.PASS_HOSTS_MAX:
            break
        chosen.add(run.id)
        hosts += size
    return chosen


def _keep_logs(services: Services, run_id: str, line: PassLine) -> PassLine:
    """One round of output of a running attempt, so that logs outlive a preemption up to the last pass."""
    run = get_run(services, run_id).record
    if run.state.final or line.result == "blind":
        return line
    loaded = find_slice(services, run.slice_name)
    hosts = attempt_hosts(services, run, loaded.record if loaded else None)
    if hosts is not None and run.attempt is not None and run.attempt.started_at is not None:
        hosts.fetch_logs()
    return line


def take_down(
    services: Services,
    name: str,
    *,
    wait: bool = True,
    deadline: float | None = None,
    all_users: bool = False,
) -> SliceRecord:
    """Stops the slice's run, keeps its logs, and deletes the slice until the cloud says not-found.

    `all_users`: it goes even where its TPUs carry the label of another user than the record's owner.
    """
    run = active_run(services, name)
    if run is not None:
        request_stop(services, run.id)
        _end_run_first(services, run.id, deadline)
    record = request_down(services, name, all_users=all_users)
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
            Warn(run_id, f"could not be ended in order: {error.message}; its slice goes all the same")
        )
