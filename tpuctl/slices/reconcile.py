"""Brings a slice up, keeps its record true, takes it down: observe, plan, apply for one slice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from tpuctl.engine.events import Note, Warn
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.retries import DELETE
from tpuctl.engine.services import Services
from tpuctl.errors import (
    ConflictError,
    DeniedError,
    LeaseHeldError,
    StaleRecordError,
    TransientError,
)
from tpuctl.model import timeouts
from tpuctl.model.records import WITH_HOSTS, Desired, Doubt, SliceRecord, SliceState
from tpuctl.model.verdict import Blind, Done, Failed, Wait, wait_for
from tpuctl.slices.capacity_notes import UsualWait
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.desired import never_sent
from tpuctl.slices.effects import apply_effect
from tpuctl.slices.enrollment import send_own_key
from tpuctl.slices.observe import Observation, observe_record, observe_slice
from tpuctl.slices.plan import SlicePlan, plan_slice
from tpuctl.slices.probing import PartitionCheck, probe_workers
from tpuctl.slices.race import describe_places
from tpuctl.slices.racing import advance_race
from tpuctl.slices.revisit import revisit
from tpuctl.slices.states import Effect, SliceEvent
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import Versioned, get_slice, save

_NO_ANSWER = "look at the network, a proxy or the endpoint in `tpuctl config show`"
_CAME_UP = {SliceState.PROVISIONING, *WITH_HOSTS}
"""States in which the cloud is expected to show a slice."""


def advance_slice(
    services: Services,
    name: str,
    partition: PartitionCheck | None = None,
    *,
    person: bool = False,
    may_connect: bool = True,
) -> tuple[Outcome, Observation]:
    """One step for one slice. Returns its outcome and what was observed before it acted.

    `partition` is this pass's check whether its own machine is cut off. `person`: somebody who asked for its
    deletion waits for this step, and can be asked what may be lost. Without `may_connect` a deletion before
    which hosts have to be asked waits.
    """
    partition = partition or PartitionCheck(services)
    advance = partial(_advance_place, services, partition=partition, person=person, may_connect=may_connect)
    return advance_race(services, name, advance)


def _advance_place(
    services: Services,
    stored: Versioned[SliceRecord],
    *,
    partition: PartitionCheck,
    person: bool,
    may_connect: bool,
    place: int | None = None,
) -> tuple[Outcome, Observation]:
    """One step at one place of a slice, as its record is seen from there: the place of a rival, or its own."""
    name = stored.record.name
    observation = observe_record(services, stored)
    plan = plan_slice(observation.record, observation.observed, services.store.now())
    if place is None and plan.state is SliceState.GONE and stored.record.rivals:
        return Outcome(Done(plan.why), acted=False), observation  # the last that goes
    if not plan.moves(observation.record):
        return Outcome(plan.verdict, acted=False), observation
    with take_lease(services, name) as lease:
        if get_slice(services, name).generation != observation.stored.generation:
            # Somebody acted between our observation and our lease: what was planned may no longer be right.
            return Outcome(wait_for("another read"), acted=True), observation
        if _needs_proof(observation.record, plan):
            again = observe_record(services, observation.stored).observed
            if again.event is not observation.observed.event:
                why = f"two reads that agree: {observation.observed.why}, then {again.why}"
                return Outcome(wait_for(why), acted=False), observation
        outcome = apply_effect(
            ReconcileContext(
                services,
                observation,
                plan,
                lease,
                partition,
                person=person,
                may_connect=may_connect,
                place=place,
            )
        )
    return outcome, observation


def _needs_proof(record: SliceRecord, plan: SlicePlan) -> bool:
    """Whether one bad read could cost something alive, or leave it unwatched: losses, removals, and deletions
    that nobody asked for."""
    if plan.effect is Effect.DELETE:
        return record.desired is Desired.UP and record.state is not SliceState.DELETING
    return plan.effect is Effect.RECORD_LOSS or plan.state is SliceState.REMOVED


class _Silence:
    """A cloud that cannot be read, while somebody waits: reported in full, once."""

    def __init__(self, services: Services, name: str) -> None:
        self._services = services
        self._name = name
        self._since: float | None = None
        self._reported = False
        self.error: TransientError | None = None

    def heard(self, observation: Observation) -> Failed | None:
        """After each observation. An end where nothing was sent yet and nothing answers: nothing is in
        flight to wait for. An API that answers with an error is waited for."""
        now = self._services.clock.now()
        self.error = None
        if observation.observed.event is not SliceEvent.UNKNOWN:
            self._since = None
            return None
        if observation.info.refused:
            self.error = TransientError(observation.observed.why, details={"refused_connection": True})
        if self._since is None:
            self._since = now
        unread_s = now - self._since
        if (
            unread_s >= timeouts.UNREAD_UNSENT_S
            and observation.info.unanswered
            and never_sent(observation.record)
        ):
            why = f"{self._name}: nothing was asked for: {observation.observed.why}"
            return Failed(TransientError(why, hint=_NO_ANSWER, details={"unsent": True}))
        if unread_s >= timeouts.UNREAD_TOLD_S and not self._reported:
            self._reported = True
            self._services.emit(Warn(self._name, f"{observation.observed.why}; waiting for an answer"))
        return None


def renew_if_removed(
    services: Services, name: str, ask: Callable[[], object], *, patient: bool, deadline: float | None = None
) -> None:
    """Calls `ask`, which asks anew, where the record says up but somebody removed the slice before now.

    For a person who says `up`: that decides what passes leave to a person. What is removed while this person
    waits is another decision, later than theirs, and stays removed. The removal is proved as ever and written
    down first. `patient`: waits until the cloud can be read. Raises as `converge` does.
    """
    before = get_slice(services, name).record
    if before.state not in _CAME_UP:
        return
    silence = _Silence(services, name)

    def step() -> Outcome:
        try:
            observation = observe_slice(services, name)
        except DeniedError as error:
            known = f"{describe_places(before)}; {before.spec.zone}: {error.message}"
            if not before.rivals or before.state in WITH_HOSTS:
                raise DeniedError(f"{name}: {known}", hint=error.hint, details=error.details) from error
            services.emit(Warn(name, known))
            return Outcome(Done(), acted=False)  # the race goes on in the others
        silence.heard(observation)
        if observation.record.state in _CAME_UP:
            if observation.observed.event is SliceEvent.UNKNOWN and patient:
                return Outcome(Wait(observation.observed.why), acted=False, error=silence.error)
            if (
                plan_slice(observation.record, observation.observed, services.store.now()).state
                is SliceState.REMOVED
            ):
                return advance_slice(services, name)[0]
        return Outcome(Done(), acted=False)

    soon = services.clock.now() + timeouts.LEASE_TTL_S
    converge(services, name, step, deadline=deadline if patient else soon)
    record = get_slice(services, name).record
    if record.state is SliceState.REMOVED and record.incarnation is not None:
        gone = record.incarnation.cloud_name
        services.emit(Note(name, f"{gone} is gone, somebody removed it: asking anew"))
        ask()


def wait_for_slice(services: Services, name: str, *, deadline: float | None = None) -> SliceRecord:
    """Runs the loop on one slice until it is ready. Raises as `converge` does.

    One that was ready before is believed only when its hosts answer now: the API shows a loss late.
    """
    usual, unproved = UsualWait(services), True
    silence = _Silence(services, name)

    def step() -> Outcome:
        nonlocal unproved
        if unproved and get_slice(services, name).record.state is SliceState.READY:
            _doubt_if_silent(services, name)
            with suppress(LeaseHeldError, StaleRecordError):  # else somebody is at work on it already
                revisit(services, name)
        unproved = False
        outcome, observation = advance_slice(services, name)
        usual.saw(observation.record)
        ended = silence.heard(observation)
        if ended is not None:
            return Outcome(ended, acted=False)
        if observation.record.desired is Desired.DOWN:
            error = ConflictError(f"slice {name} is being taken down by another command", hint="tpuctl ls")
            return Outcome(Failed(error), acted=False)
        key_sent = send_own_key(services, name) if isinstance(outcome.verdict, Blind) else ""
        return Outcome(Wait(key_sent), acted=False) if key_sent else replace(outcome, error=silence.error)

    converge(services, name, step, deadline=deadline, pace=lambda: usual.pace)
    return get_slice(services, name).record


def _doubt_if_silent(services: Services, name: str) -> None:
    """Takes a ready slice back to booting when hosts do not answer; a refusal is an answer, too."""
    stored = get_slice(services, name)
    answers = probe_workers(services, stored.record)
    incarnation = stored.record.incarnation
    if answers.closed:
        send_own_key(services, name)
    if answers.all_well or answers.closed or incarnation is None:
        return
    try:
        with take_lease(services, name) as lease:
            record_decision(services, stored.record.key, "doubt", answers.trouble, fence=lease.fence)
            doubted = replace(incarnation, doubt=Doubt(services.store.now(), answers.trouble))
            save(services, stored, replace(stored.record, state=SliceState.BOOTING, incarnation=doubted))
    except (LeaseHeldError, StaleRecordError):
        return  # somebody else is at work on it, and the loop will see what came of it


def request_deletion(services: Services, name: str, *, deadline: float | None = None) -> Wait | None:
    """Runs the loop on a slice that is to go until only the cloud has to act; what is waited for then.

    None: it is gone. Raises as `converge` does.
    """
    waits: Wait | None = None

    def step() -> Outcome:
        nonlocal waits
        outcome = advance_slice(services, name, person=True)[0]
        leaving = any(_is_leaving(place) for place in get_slice(services, name).record.places)
        if outcome.acted or leaving or not isinstance(outcome.verdict, Wait):
            return outcome
        waits = outcome.verdict
        return Outcome(Done(""), acted=False)

    converge(services, name, step, deadline=deadline)
    return waits


def _is_leaving(place: SliceRecord) -> bool:
    """Whether its hosts bring what they wrote to where it belongs, and its deletion was not asked for yet."""
    life = place.incarnation
    asked = life is not None and life.retry is not None and life.retry.call == DELETE
    return life is not None and life.leaves_since is not None and not asked


def wait_until_gone(services: Services, name: str, *, deadline: float | None = None) -> None:
    """Runs the loop on one slice until the cloud says not-found."""
    silence = _Silence(services, name)

    def step() -> Outcome:
        outcome, observation = advance_slice(services, name, person=True)
        silence.heard(observation)
        return outcome

    converge(services, name, step, deadline=deadline)
