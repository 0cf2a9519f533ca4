"""Bring a fleet to what its file says: write down what is wanted, then one loop over all of it.

Every item is a step function that looks at its record and does the next thing, so that whatever was interrupted
goes on from where it stands. What may be destroyed was decided in the plan; nothing else is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tpuctl.engine.events import Note, Warn
from tpuctl.engine.group import ReconcileGroup, Step
from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, PartialError, TpuctlError
from tpuctl.fleet.plan import (
    Change,
    FleetChange,
    ItemKind,
    WantedFleet,
    WantedRun,
    run_id_of,
)
from tpuctl.lib.codec import to_data
from tpuctl.model.attempts import AttemptPhase
from tpuctl.model.records import Desired, SliceState
from tpuctl.model.verdict import Done, Failed, wait_for
from tpuctl.runs.follow import step_run_and_slice
from tpuctl.runs.reconcile import find_end
from tpuctl.runs.request import request_run, request_stop
from tpuctl.runs.submit import freeze_run
from tpuctl.runs.take_down import end_slice
from tpuctl.slices.bring_up import request_wanted, store_for_hosts
from tpuctl.slices.lifetime import replace_lifetime
from tpuctl.slices.plan import hosts_end
from tpuctl.slices.reconcile import advance_slice
from tpuctl.slices.resolve import WantedSlice
from tpuctl.slices.things import apply_changes, find_changes
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import find_run, find_slice, get_run, get_slice, list_runs, save
from tpuctl.transfer.bundle import CodeBundle


def refuse_conflicts(changes: Sequence[FleetChange]) -> None:
    """Raises ConflictError when something is there in another form: then nothing is applied."""
    found = [change for change in changes if change.change is Change.CONFLICT]
    if found:
        reasons = "; ".join(f"{change.subject}: {change.why}" for change in found)
        raise ConflictError(
            f"nothing was applied: {reasons}",
            hint=next((change.hint for change in found if change.hint), None),
            details={"changes": to_data(found)},
        )


def apply_fleet(
    services: Services,
    wanted: WantedFleet,
    code: Mapping[str, CodeBundle],
    changes: Sequence[FleetChange],
    *,
    wait: bool = True,
    deadline: float | None = None,
    may_lose: bool = False,
) -> None:
    """Does what the plan says and, with `wait`, goes on until slices are ready and runs have started.

    `may_lose`: what is replaced or removed goes although its hosts cannot bring what they wrote to its disks.
    Raises ConflictError before anything is done, PartialError when some of it failed, PendingError.
    """
    refuse_conflicts(changes)
    leaving = [change for change in changes if change.kind is ItemKind.MOUNT and change.change is Change.REMOVE]
    busy = _unmount(services, leaving)
    steps = _steps(services, wanted, code, changes, may_lose=may_lose)
    group = ReconcileGroup(services, f"fleet {wanted.name}", steps)
    if wait:
        group.converge(deadline)
    else:
        group.advance()
    _raise_failures({**busy, **group.failed}, len(leaving) + len(steps))


def _unmount(services: Services, leaving: Sequence[FleetChange]) -> dict[str, TpuctlError]:
    """Unmounts what the file asked for before and does not name any more; what could not be, and why: one that
    a program has open stays."""
    failed: dict[str, TpuctlError] = {}
    if leaving:
        from tpuctl.mounts.use import end_mount  # takes its time to import
    for change in leaving:
        name, _, path = change.name.partition(":")
        try:
            end_mount(services, get_slice(services, name).record, path)
        except TpuctlError as error:
            services.emit(Warn(change.subject, error.message))
            failed[change.subject] = error
    return failed


def _raise_failures(failed: Mapping[str, TpuctlError], count: int) -> None:
    if not failed:
        return
    if len(failed) == 1 and count == 1:
        raise next(iter(failed.values()))
    reasons = "; ".join(f"{subject}: {error.message}" for subject, error in failed.items())
    hints = [error.hint for error in failed.values() if error.hint]
    raise PartialError(
        f"{len(failed)} of {count} failed: {reasons}",
        hint=hints[0] if hints else None,
        details={
            "failed": {
                subject: {"code": error.code, "message": error.message} for subject, error in failed.items()
            }
        },
    )


def _steps(
    services: Services,
    wanted: WantedFleet,
    code: Mapping[str, CodeBundle],
    changes: Sequence[FleetChange],
    *,
    may_lose: bool,
) -> dict[str, Step]:
    """A step function for each item that is not at rest; what goes first, so that it makes room."""
    slices = {item.name: item for item in wanted.slices}
    runs = {item.name: item for item in wanted.runs}
    leaving: dict[str, Step] = {}
    coming: dict[str, Step] = {}
    for change in changes:
        if change.change is Change.UNLISTED or change.kind is ItemKind.MOUNT:
            continue
        if change.kind is ItemKind.SLICE and change.name in slices:
            item = _SliceItem(services, wanted, slices[change.name], change, may_lose=may_lose)
            coming[change.subject] = item.step
        elif change.kind is ItemKind.SLICE:
            leaving[change.subject] = _removal(services, change.name, may_lose=may_lose)
        elif change.name in runs and not _at_rest(services, change):
            coming[change.subject] = _RunItem(
                services, wanted, runs[change.name], code[change.name], change
            ).step
        elif change.name not in runs and change.change in {Change.REMOVE, Change.NONE}:
            leaving[change.subject] = _stopping(services, change.record)
    return {**leaving, **coming}


def _at_rest(services: Services, change: FleetChange) -> bool:
    """A run that has ended, or ends with its slice, and is not to be repeated."""
    if change.change is not Change.NONE:
        return False
    run = find_run(services, change.record)
    return run is None or run.record.state.final or bool(change.hint)


def _removal(services: Services, name: str, *, may_lose: bool) -> Step:
    def step() -> Outcome:
        stored = find_slice(services, name)
        if stored is None or stored.record.state is SliceState.GONE:
            return Outcome(Done("gone"), acted=False)
        why = f"apply --prune by {services.user}: it is not in the fleet file any more"
        return end_slice(services, name, why, may_lose=may_lose)

    return step


def _stopping(services: Services, run_id: str) -> Step:
    def step() -> Outcome:
        request_stop(services, run_id)
        if get_run(services, run_id).record.state.final:
            return Outcome(Done("it has ended"), acted=False)
        return step_run_and_slice(services, run_id)

    return step


@dataclass
class _SliceItem:
    """One slice of the file on its way to ready."""

    services: Services
    fleet: WantedFleet
    item: WantedSlice
    change: FleetChange
    may_lose: bool

    def __post_init__(self) -> None:
        self._requested = self.change.change in {Change.NONE, Change.UPDATE}
        self._update_first = self.change.change is Change.UPDATE

    def step(self) -> Outcome:
        if self._update_first:
            return self._update()
        if not self._requested:
            return self._request()
        outcome = advance_slice(self.services, self.item.name)[0]
        if get_slice(self.services, self.item.name).record.desired is Desired.DOWN:
            error = ConflictError(f"slice {self.item.name} is being taken down by another command")
            return Outcome(Failed(error), acted=False)
        return outcome

    def _update(self) -> Outcome:
        services, item = self.services, self.item
        stored = get_slice(services, item.name)
        lifetime = replace_lifetime(stored.record.lifetime, item.limits, services.store.now())
        text = f"{self.change.why} (fleet file of {services.user})"
        record_decision(services, stored.record.key, "update", text)
        record = replace(stored.record, pay=item.pay, lifetime=lifetime)
        if said := hosts_end(stored.record, record):
            services.emit(Note(record.name, said))
        changes = find_changes(record.spec, item.spec, item.without)
        if changes:
            store_for_hosts(services, item)
            record = apply_changes(record, changes)
        save(services, stored, record)
        self._update_first = False
        return Outcome(wait_for("the next read"), acted=True)

    def _request(self) -> Outcome:
        """Requests the slice as soon as its name is free: gone, or never there."""
        services, item = self.services, self.item
        stored = find_slice(services, item.name)
        if stored is not None and stored.record.state is not SliceState.GONE:
            record = stored.record
            other = bool(record.differs_from(item.specs))
            if other and (self.change.change is Change.REPLACE or record.desired is Desired.DOWN):
                why = f"apply --replace by {services.user}"
                return end_slice(services, item.name, why, may_lose=self.may_lose)
        request_wanted(services, item, fleet=self.fleet.name, quotas=False)
        self._requested = True
        return Outcome(wait_for("the first read"), acted=True)


@dataclass
class _RunItem:
    """One run of the file on its way to running."""

    services: Services
    fleet: WantedFleet
    item: WantedRun
    code: CodeBundle
    change: FleetChange

    def __post_init__(self) -> None:
        kind, record = self.change.change, self.change.record
        self._ends_first = record if kind is Change.REPLACE else ""
        self._update = kind is Change.UPDATE
        self._run_id = record if kind in {Change.NONE, Change.UPDATE} else ""

    def step(self) -> Outcome:
        if self._update:
            return self._new_policy()
        if not self._run_id:
            return self._submit()
        run = get_run(self.services, self._run_id).record
        begun = run.attempt is not None and run.attempt.state is AttemptPhase.RUNNING
        if run.state.final or (begun and not run.stop_asked):
            return Outcome(Done("started"), acted=False)
        return step_run_and_slice(self.services, self._run_id)

    def _new_policy(self) -> Outcome:
        services, policy = self.services, self.item.spec.policy
        stored = get_run(services, self._run_id)
        record_decision(services, stored.record.key, "policy", f"changed by the fleet file of {services.user}")
        print_of = self.item.fingerprint(policy)
        spec = replace(stored.record.spec, policy=policy)
        save(services, stored, replace(stored.record, spec=spec, fingerprint=print_of))
        self._update = False
        return Outcome(wait_for("the next read"), acted=True)

    def _submit(self) -> Outcome:
        services, spec = self.services, self.item.spec
        if self._ends_first and not self._ended():
            return Outcome(wait_for(f"run {self._ends_first} to end"), acted=False)
        if not self._slice_is_requested():
            return Outcome(wait_for(f"slice {spec.slice_name} to be asked for"), acted=False)
        taken = {run.id for run in list_runs(services)}
        run_id = run_id_of(self.item, taken)
        fresh = freeze_run(services, run_id, spec, self.code, self.item.environment)
        named = replace(fresh, fleet=self.fleet.name, fleet_run=self.item.name)
        self._run_id = request_run(services, named, configuration=self.fleet.configuration).id
        return Outcome(wait_for("its slice"), acted=True)

    def _slice_is_requested(self) -> bool:
        """Whether the slice of the file is wanted, and not one of the same name that is to go."""
        name = self.item.spec.slice_name
        stored = find_slice(self.services, name)
        wanted = next(item for item in self.fleet.slices if item.name == name)
        return (
            stored is not None
            and stored.record.desired is Desired.UP
            and not stored.record.differs_from(wanted.specs)
        )

    def _ended(self) -> bool:
        """One step of ending the run that is in the way."""
        run = find_end(self.services, self._ends_first)
        if not run.state.final:
            request_stop(self.services, run.id)
            step_run_and_slice(self.services, run.id)
        return get_run(self.services, self._ends_first).record.state.final
