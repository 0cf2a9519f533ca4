"""Bring a slice up, keep its record true, take it down: observe, plan, apply for one slice."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from tpuctl.engine.events import Note, Warn
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import (
    ConflictError,
    LeaseHeldError,
    StaleRecordError,
    TransientError,
)
from tpuctl.model import timeouts
from tpuctl.model.records import WITH_HOSTS, Desired, Doubt, SliceRecord, SliceState
from tpuctl.model.verdict import Blind, Done, Failed, Wait
from tpuctl.slices.capacity_notes import UsualWait
from tpuctl.slices.context import HeldSlice
from tpuctl.slices.desired import never_sent
from tpuctl.slices.effects import apply_effect
from tpuctl.slices.enrollment import ask_to_be_let_in
from tpuctl.slices.observe import SliceLook, look_again, look_at_slice
from tpuctl.slices.plan import SlicePlan, plan_slice
from tpuctl.slices.probing import Reach, greet_workers
from tpuctl.slices.states import Effect, SliceEvent
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import lease
from tpuctl.state.repository import get_slice, save

_NO_ANSWER = "look at the network, a proxy or the endpoint in `tpuctl config show`"
_CAME_UP = {SliceState.PROVISIONING, *WITH_HOSTS}
"""States in which the cloud is expected to show a slice."""


def advance_slice(services: Services, name: str, reach: Reach | None = None) -> tuple[Outcome, SliceLook]:
    """One wave for one slice. Returns what it came to and what was seen before it acted.

    `reach` is what this pass knows about its own way to hosts.
    """
    look = look_at_slice(services, name)
    plan = plan_slice(look.record, look.sighting, services.store.now())
    if plan.effect is None and plan.state is look.record.state:
        return Outcome(plan.verdict, acted=False), look
    with lease(services, name) as held:
        if get_slice(services, name).generation != look.loaded.generation:
            # Somebody acted between our look and our lease: what was planned may no longer be right.
            return Outcome(Wait("another look"), acted=True), look
        if _needs_proof(look.record, plan):
            again = look_again(services, look).sighting
            if again.event is not look.sighting.event:
                why = f"two reads that agree: {look.sighting.why}, then {again.why}"
                return Outcome(Wait(why), acted=False), look
        outcome = apply_effect(HeldSlice(services, look, plan, held, reach or Reach(services)))
    return outcome, look


def _needs_proof(record: SliceRecord, plan: SlicePlan) -> bool:
    """Whether one bad read could cost something alive, or leave it unwatched: losses, removals, and deletions
    that nobody asked for."""
    if plan.effect is Effect.DELETE:
        return record.desired is Desired.UP
    return plan.effect is Effect.RECORD_LOSS or plan.state is SliceState.REMOVED


class _Silence:
    """A cloud that cannot be read, while somebody waits: told in full, once."""

    def __init__(self, services: Services, name: str) -> None:
        self._services = services
        self._name = name
        self._since: float | None = None
        self._told = False

    def heard(self, look: SliceLook) -> Failed | None:
        """After each look. An end where nothing was sent yet and nothing answers: nothing is in flight to wait
        for. An API that answers with an error is waited for."""
        now = self._services.clock.now()
        if look.sighting.event is not SliceEvent.UNKNOWN:
            self._since = None
            return None
        if self._since is None:
            self._since = now
        unread_s = now - self._since
        if unread_s >= timeouts.UNREAD_UNSENT_S and look.view.unanswered and never_sent(look.record):
            why = f"{self._name}: nothing was asked for: {look.sighting.why}"
            return Failed(TransientError(why, hint=_NO_ANSWER, details={"unsent": True}))
        if unread_s >= timeouts.UNREAD_TOLD_S and not self._told:
            self._told = True
            self._services.emit(Warn(self._name, f"{look.sighting.why}; waiting for an answer"))
        return None


def renew_if_removed(
    services: Services, name: str, ask: Callable[[], object], *, patient: bool, deadline: float | None = None
) -> None:
    """Calls `ask`, which asks anew, where the record says up but somebody removed the slice before now.

    For a person who says `up`: that settles what passes leave to a person. What is removed while this person
    waits is another decision, later than theirs, and stays removed. The removal is proved as ever and written
    down first. `patient`: waits until the cloud can be read. Raises as `converge` does.
    """
    before = get_slice(services, name).record
    if before.state not in _CAME_UP:
        return
    silence = _Silence(services, name)

    def step() -> Outcome:
        look = look_at_slice(services, name)
        silence.heard(look)
        if look.record.state in _CAME_UP:
            if look.sighting.event is SliceEvent.UNKNOWN and patient:
                return Outcome(Wait(look.sighting.why), acted=False)
            if plan_slice(look.record, look.sighting, services.store.now()).state is SliceState.REMOVED:
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
        unproved = False
        outcome, look = advance_slice(services, name)
        usual.saw(look.record)
        ended = silence.heard(look)
        if ended is not None:
            return Outcome(ended, acted=False)
        if look.record.desired is Desired.DOWN:
            error = ConflictError(f"slice {name} is being taken down by another command", hint="tpuctl ls")
            return Outcome(Failed(error), acted=False)
        let_in = ask_to_be_let_in(services, name) if isinstance(outcome.verdict, Blind) else ""
        return Outcome(Wait(let_in), acted=False) if let_in else outcome

    converge(services, name, step, deadline=deadline, pace=lambda: usual.pace)
    return get_slice(services, name).record


def _doubt_if_silent(services: Services, name: str) -> None:
    """Takes a ready slice back to booting when hosts do not answer; a refusal is an answer, too."""
    loaded = get_slice(services, name)
    answers = greet_workers(services, loaded.record)
    incarnation = loaded.record.incarnation
    if answers.closed:
        ask_to_be_let_in(services, name)
    if answers.all_well or answers.closed or incarnation is None:
        return
    try:
        with lease(services, name) as held:
            record_decision(services, loaded.record.key, "doubt", answers.trouble, fence=held.fence)
            doubted = replace(incarnation, doubt=Doubt(services.store.now(), answers.trouble))
            save(services, loaded, replace(loaded.record, state=SliceState.BOOTING, incarnation=doubted))
    except (LeaseHeldError, StaleRecordError):
        return  # somebody else is at work on it, and the loop will see what came of it


def ask_for_deletion(services: Services, name: str, *, deadline: float | None = None) -> str:
    """Runs the loop on a slice that is to go until only the cloud has to act; what is waited for then.

    Empty: it is gone. Raises as `converge` does.
    """
    waits_for = ""

    def step() -> Outcome:
        nonlocal waits_for
        outcome = advance_slice(services, name)[0]
        if outcome.acted or not isinstance(outcome.verdict, Wait):
            return outcome
        waits_for = outcome.verdict.why
        return Outcome(Done(""), acted=False)

    converge(services, name, step, deadline=deadline)
    return waits_for


def wait_until_gone(services: Services, name: str, *, deadline: float | None = None) -> None:
    """Runs the loop on one slice until the cloud says not-found."""
    silence = _Silence(services, name)

    def step() -> Outcome:
        outcome, look = advance_slice(services, name)
        silence.heard(look)
        return outcome

    converge(services, name, step, deadline=deadline)
