"""Sweeps: one run for each row of a grid, on slices that are taken while there are rows, and given back.

A sweep is a record with the runs that are to come. Each turn writes down those for which there is room; what
becomes of them, and of their slices, is their own loop's. A row is a run of a fixed id, so it runs once whoever
takes the turn: the command, the same command again, or a pass of the watchdog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.events import Note
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import (
    ConflictError,
    LeaseHeldError,
    NotFoundError,
    PartialError,
    RateLimitedError,
    StaleRecordError,
    TpuctlError,
    TransientError,
)
from tpuctl.lib.text import counted
from tpuctl.model.records import Desired, RunRecord, RunState, SliceRecord, SliceState
from tpuctl.model.verdict import Blocked, Done, Failed, Wait
from tpuctl.runs.follow import step_run_and_slice
from tpuctl.runs.request import request_run, request_stop
from tpuctl.runs.sweep_record import SWEEPS, SweepRecord, SweepRow, find_sweep
from tpuctl.slices.bring_up import request_wanted
from tpuctl.slices.desired import never_sent, request_down
from tpuctl.slices.reconcile import advance_slice
from tpuctl.slices.resolve import WantedSlice
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import find_slice, list_runs

NAMED = 3
"""How many of the runs that are under way are named."""
PASSING = (LeaseHeldError, StaleRecordError, TransientError, RateLimitedError)
"""What the next turn may do without."""


class SweepProgress(Struct, frozen=True):
    """How the rows of a sweep stand."""

    pending: tuple[SweepRow, ...]
    active: tuple[RunRecord, ...]
    ended: tuple[RunRecord, ...]
    taken: tuple[str, ...] = ()
    """Ids of rows that cannot begin: other runs have them."""

    @property
    def failed(self) -> tuple[RunRecord, ...]:
        return tuple(run for run in self.ended if run.state in {RunState.FAILED, RunState.GAVE_UP})

    @property
    def said(self) -> str:
        names = ", ".join(run.id for run in self.active[:NAMED]) + ", …" * (len(self.active) > NAMED)
        under_way = f"{len(self.active)} under way ({names})" if self.active else "none under way"
        failed = f", {len(self.failed)} of them failed" if self.failed else ""
        taken = f", not to be had: {', '.join(self.taken)} (other runs have these ids)" if self.taken else ""
        return f"{len(self.ended)} rows are over{failed}, {under_way}, {len(self.pending)} to come{taken}"


def get_sweep(services: Services, group: str) -> SweepRecord:
    """Raises NotFoundError."""
    sweep = find_sweep(services, group)
    if sweep is None:
        raise NotFoundError(f"there is no sweep called {group}", hint="tpuctl runs")
    return sweep


def request_sweep(services: Services, sweep: SweepRecord) -> SweepRecord:
    """Writes a sweep down. The same again means the one that is there; raises ConflictError for another."""
    there = find_sweep(services, sweep.group)
    if there is None:
        where = f"{len(sweep.slices)} of its own" if sweep.specs else sweep.slices[0]
        what = (
            f"{counted(len(sweep.rows), 'row')}, at most {sweep.parallel} at the same time, on slices: {where}"
        )
        record_decision(services, sweep.key, "sweep", f"{what}; asked for by {services.user}")
        if SWEEPS.create(services, sweep.group, sweep):
            return sweep
        there = get_sweep(services, sweep.group)
    return check_same_sweep(there, sweep.asked)


def check_same_sweep(there: SweepRecord, asked: str) -> SweepRecord:
    """The sweep that is there, if that was asked for. Raises ConflictError."""
    if there.asked != asked:
        raise ConflictError(
            f"sweep {there.group} is there with another grid, program or slice",
            hint=f"--group ANOTHER; `tpuctl runs --group {there.group}` shows the old one",
        )
    return there


def progress_of(
    services: Services, sweep: SweepRecord, known: Iterable[RunRecord] | None = None
) -> SweepProgress:
    """How its rows stand now; `known` are all runs, where they were just listed."""
    runs = {run.id: run for run in (list_runs(services) if known is None else known)}
    there = [(row, runs[row.run_id]) for row in sweep.rows if row.run_id in runs]
    mine = [run for row, run in there if run.fingerprint == sweep.run_of(row, run.slice_name).fingerprint]
    taken = {run.id for _, run in there}.difference(run.id for run in mine)
    ends = sweep.stopped or sweep.over
    pending = () if ends else tuple(row for row in sweep.rows if row.run_id not in runs)
    active = tuple(run for run in mine if not run.state.final)
    return SweepProgress(pending, active, tuple(run for run in mine if run.state.final), tuple(sorted(taken)))


def advance_sweep(services: Services, group: str) -> Outcome:
    """One turn: runs for which there is room are written down, and slices that nothing needs are given back."""
    with take_lease(services, f"sweep.{group}"):
        sweep = get_sweep(services, group)
        if sweep.over:
            return Outcome(Done("all rows are over"), acted=False)
        return _Turn(services, sweep).work()


class _Turn:
    """One turn, under the lease of the sweep."""

    def __init__(self, services: Services, sweep: SweepRecord) -> None:
        self._services = services
        self._sweep = sweep
        self._runs = list_runs(services)
        self._acted = False
        self._missing = ""
        self._passing = False
        """What is missing may be there in the next turn."""

    def work(self) -> Outcome:
        services, sweep = self._services, self._sweep
        for name in sweep.slices:
            self._fill(name)
        self._note_lack()
        progress = self._progress()
        left = [] if progress.pending else self._give_back(progress)
        if progress.pending or progress.active:
            stuck = progress.pending and not progress.active and self._missing and not self._passing
            if stuck and not self._acted:
                hint = f"tpuctl stop --group {sweep.group} ends it"
                return Outcome(Blocked(f"{progress.said}: {self._missing}", hint), acted=False)
            return Outcome(Wait(progress.said), self._acted)
        if left:
            return Outcome(Wait(", ".join(left)), self._acted)
        if not self._acted:
            record_decision(services, sweep.key, "over", progress.said)
            SWEEPS.update(services, sweep.group, lambda there: replace(there or sweep, over=True))
        return Outcome(Done(progress.said), self._acted)

    def _progress(self) -> SweepProgress:
        return progress_of(self._services, self._sweep, self._runs)

    def _fill(self, name: str) -> None:
        """Begins as many rows on a slice as there is room for."""
        sweep = self._sweep
        while True:
            progress = self._progress()
            here = [run for run in progress.active if run.slice_name == name]
            full = len(progress.active) >= sweep.parallel or len(here) >= sweep.per_slice
            if full or not progress.pending or not self._is_usable(name):
                return
            if not self._begin(progress.pending[0], name):
                return

    def _begin(self, row: SweepRow, name: str) -> bool:
        """Writes one run down; False where something else has the slice."""
        services, sweep = self._services, self._sweep
        run = replace(sweep.run_of(row, name), created_at=services.store.now())
        try:
            why = f"{', '.join(row.tags)} of sweep {sweep.group}, on {name}"
            asked = request_run(services, run, named=True, configuration=sweep.configuration, why=why)
            self._runs.append(asked)
        except (ConflictError, *PASSING) as error:
            self._lacks(error)
            return False
        self._acted = True
        services.emit(Note(row.run_id, f"on {name}: {', '.join(row.tags)}"))
        return True

    def _lacks(self, error: TpuctlError) -> None:
        self._missing, self._passing = error.message, isinstance(error, PASSING)

    def _note_lack(self) -> None:
        """What rows wait for is a decision, too: that of quotas, grants, and who has a slice."""
        sweep = self._sweep
        if not self._missing or self._passing or self._missing == sweep.lacks:
            return
        record_decision(self._services, sweep.key, "waits", self._missing)
        self._sweep = replace(sweep, lacks=self._missing)
        SWEEPS.overwrite(self._services, sweep.group, self._sweep)

    def _is_usable(self, name: str) -> bool:
        """Whether a slice is there or on its way; one of the sweep's own is asked for first."""
        sweep, stored = self._sweep, find_slice(self._services, name)
        if stored is not None and (not sweep.specs or stored.record.sweep == sweep.mark):
            usable = stored.record.desired is Desired.UP and stored.record.state is not SliceState.GONE
            self._missing = self._missing if usable else f"slice {name} was taken down"
            return usable
        if not sweep.specs:
            self._missing = f"there is no slice {name}"
            return False
        if stored is not None and stored.record.state is not SliceState.GONE:
            self._missing = f"slice {name} is there, and the sweep did not ask for it"
            return False
        owner = sweep.template.owner
        if self._services.user != owner:
            self._missing = f"slices of {owner}'s are asked for by {owner}'s tpuctl alone"
            return False
        if any(never_sent(each) for each in _own(self._services, sweep)):
            return False  # one after the other: quotas count what was asked for
        wanted = WantedSlice(name, sweep.specs, pay=sweep.pay, limits=sweep.limits)
        try:
            asked = request_wanted(self._services, wanted, sweep=sweep.mark)
        except TpuctlError as error:
            # As many as grants, quotas and the cloud allow: the rows wait for those that there are.
            self._lacks(error)
            return False
        self._acted = True
        return asked.sweep == sweep.mark

    def _give_back(self, progress: SweepProgress) -> list[str]:
        """Takes down those of its own that no run needs. What is waited for until all are gone."""
        busy = {run.slice_name for run in progress.active}
        waits = []
        for slice_ in _own(self._services, self._sweep):
            name, up = slice_.name, slice_.desired is Desired.UP
            if slice_.state is SliceState.GONE or name in busy:
                continue
            runs = list_runs(self._services) if up else []
            others = [run.id for run in runs if run.slice_name == name and not run.state.final]
            if up and not others:
                request_down(self._services, name, why=f"sweep {self._sweep.group} has no more rows for it")
                self._acted = True
            waits.append(f"the end of run {others[0]}, then {name} goes" if others else f"{name} to be gone")
        return waits


def _own(services: Services, sweep: SweepRecord) -> list[SliceRecord]:
    """The slices that the sweep asked for."""
    found = [find_slice(services, name) for name in (sweep.slices if sweep.specs else ())]
    return [stored.record for stored in found if stored is not None and stored.record.sweep == sweep.mark]


def follow_sweep(services: Services, group: str, *, deadline: float | None = None) -> None:
    """Takes turns, and steps the runs that are under way, until all rows are over. What keeps one of them is
    said once; all else goes on. Raises TpuctlError where all are kept, PartialError where some failed."""
    told: dict[str, str] = {}

    def step() -> Outcome:
        outcome = advance_sweep(services, group)
        if isinstance(outcome.verdict, Blocked):
            return outcome
        steps = _step_all(services, get_sweep(services, group))
        kept = {name: each.verdict for name, each in steps.items() if isinstance(each.verdict, Blocked)}
        said = {
            name: verdict.why + (f" ({verdict.hint})" if verdict.hint else "") for name, verdict in kept.items()
        }
        for name, text in said.items():
            if told.get(name) != text:
                services.emit(Note(name, text))
        told.update(said)
        acted = outcome.acted or any(each.acted for each in steps.values())
        if steps and len(kept) == len(steps) and not acted:
            why = "; ".join(f"{name}: {verdict.why}" for name, verdict in list(kept.items())[:NAMED])
            return Outcome(Blocked(why, f"tpuctl stop --group {group} ends it"), acted=False)
        return replace(outcome, acted=acted)

    converge(services, f"sweep {group}", step, deadline=deadline)
    progress = progress_of(services, get_sweep(services, group))
    if progress.failed:
        names = ", ".join(run.id for run in progress.failed)
        raise PartialError(
            f"{len(progress.failed)} of {len(progress.ended)} rows failed: {names}",
            hint=f"tpuctl runs --group {group}; `tpuctl rerun {progress.failed[0].id}` does one again",
            details={"failed": [run.id for run in progress.failed]},
        )
    if progress.taken:
        raise PartialError(f"sweep {group}: {progress.said}", hint="--group ANOTHER gives rows other ids")


def _step_all(services: Services, sweep: SweepRecord) -> Mapping[str, Outcome]:
    """One step of each run that is under way, and of each slice that goes."""
    runs = [run.id for run in progress_of(services, sweep).active]
    steps = {run_id: _guarded(partial(step_run_and_slice, services, run_id)) for run_id in runs}
    for each in _own(services, sweep):
        if each.desired is Desired.DOWN and each.state is not SliceState.GONE:
            steps[each.name] = _guarded(partial(_step_slice, services, each.name))
    return steps


def _step_slice(services: Services, name: str) -> Outcome:
    return advance_slice(services, name)[0]


def _guarded(step: Callable[[], Outcome]) -> Outcome:
    """What is wrong with one of them ends no other."""
    try:
        outcome = step()
    except PASSING as error:
        return Outcome(Wait(error.message), acted=False)
    except TpuctlError as error:
        outcome = Outcome(Failed(error), acted=False)
    if isinstance(outcome.verdict, Failed):
        failed = outcome.verdict.error
        return replace(outcome, verdict=Blocked(failed.message, failed.hint))
    return outcome


def stop_sweep(services: Services, group: str) -> SweepProgress:
    """Begins no more rows, and asks for the end of those that are under way."""
    with take_lease(services, f"sweep.{group}"):
        sweep = get_sweep(services, group)
        if not sweep.stopped:
            record_decision(services, sweep.key, "stop", f"asked for by {services.user}")
            SWEEPS.update(services, group, lambda there: replace(there or sweep, stopped=True))
    progress = progress_of(services, get_sweep(services, group))
    for run in progress.active:
        request_stop(services, run.id)
    return progress
