"""The steps of a race: what its places came to is written down, and each of them goes one step on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tpuctl.engine.events import Note, Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.retries import DELETE
from tpuctl.engine.services import Services
from tpuctl.errors import LeaseHeldError, RateLimitedError, StaleRecordError, TpuctlError, TransientError
from tpuctl.model.records import WITH_HOSTS, Answer, Desired, SliceRecord, SliceState
from tpuctl.model.verdict import Done, Failed, Verdict, Wait, wait_for
from tpuctl.money.slice_costs import list_price
from tpuctl.slices.classify import SliceInfo
from tpuctl.slices.observe import CloudInventory, Observation
from tpuctl.slices.plan import plan_slice
from tpuctl.slices.race import describe_end, plan_race
from tpuctl.slices.states import ObservedEvent, SliceEvent
from tpuctl.state.journal import record_decision
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import Versioned, get_slice, save

Step = tuple[Outcome, Observation]


class AdvancePlace(Protocol):
    """One step in one place of a slice, as its record is seen from there; `place` is the rival's number."""

    def __call__(self, stored: Versioned[SliceRecord], *, place: int | None = None) -> Step: ...


def advance_race(services: Services, name: str, advance: AdvancePlace) -> Step:
    """One step for a slice in all places where it is asked for: for most that is one."""
    stored, others = _advance_rivals(services, name, advance)
    if not stored.record.rivals:
        return advance(stored)
    outcome, observation = _guarded(advance, stored)
    if plan_race(get_slice(services, name).record, services.store.now()) is not None:
        # What lost just now goes in the same step; what this place came to is no end of the others.
        outcome = Outcome(wait_for("another look at the race"), acted=True)
        others = _advance_rivals(services, name, advance)[1]
    joined = _join((outcome, observation), others)
    left = [step for step in others if not isinstance(step[0].verdict, Done) and not _is_awaited(step)]
    if left and isinstance(joined.verdict, Done) and not joined.acted:
        services.emit(Warn(name, _describe_left(name, left)))
    return joined, observation


def _guarded(advance: AdvancePlace, seen: Versioned[SliceRecord], place: int | None = None) -> Step:
    """One step in one of several places: trouble there is its own verdict, and keeps no other from its step."""
    try:
        return advance(seen, place=place)
    except (LeaseHeldError, StaleRecordError):
        raise
    except TpuctlError as error:
        passes = isinstance(error, TransientError | RateLimitedError)
        unread = ObservedEvent(SliceEvent.UNKNOWN, error.message)
        outcome = Outcome(Wait(error.message) if passes else Failed(error), acted=False)
        return outcome, Observation(seen, unread, SliceInfo(unread=error.message))


def _advance_rivals(
    services: Services, name: str, advance: AdvancePlace
) -> tuple[Versioned[SliceRecord], list[Step]]:
    """One step in each other place, and the record as it is then."""
    stored = _settle(services, name)
    steps = []
    for place in range(len(stored.record.rivals)):
        if place >= len(stored.record.rivals):
            raise StaleRecordError(f"the race for {name} went on meanwhile")
        seen = Versioned(stored.record.led_by(place), stored.generation)
        steps.append(_guarded(advance, seen, place))
        stored = get_slice(services, name)
    return stored, steps


def _settle(services: Services, name: str) -> Versioned[SliceRecord]:
    """Writes down what a race came to so far."""
    while True:
        stored = get_slice(services, name)
        now = services.store.now()
        step = plan_race(stored.record, now)
        if step is None:
            return stored
        why = step.why
        if step.ended is not None:
            why = describe_end(step.ended, list_price(step.ended.spec), now)
        with take_lease(services, name) as lease:
            record_decision(services, stored.record.key, step.action, why, fence=lease.fence)
            save(services, stored, step.record)
        services.emit(Note(name, why))


def _join(lead: Step, others: Sequence[Step]) -> Outcome:
    """What a step came to in all places together. While the race goes on, one that is out is no end; when it is
    decided, all that lost must be gone before it is over, unless the cloud does not take that."""
    outcome, record = lead[0], lead[1].record
    acted = outcome.acted or any(each.acted for each, _ in others)
    changed = outcome.changed or any(each.changed for each, _ in others)
    verdict = outcome.verdict
    if record.state in WITH_HOSTS or record.desired is Desired.DOWN:
        goes = record.desired is Desired.DOWN
        # One that was refused before it lost, while this process slept, is no end of what came first.
        losing = [step for step in others if step[1].record.state is SliceState.DELETING]
        if isinstance(verdict, Done) or _hidden(lead[1]):
            each_of = [verdict, *(each[0].verdict for each in losing if goes or _is_awaited(each))]
            open_ = [each for each in each_of if not isinstance(each, Done)]
            verdict = min(open_, key=lambda each: not isinstance(each, Wait), default=verdict)
    else:
        verdict = _wait_for_first([lead, *others]) or verdict
    return Outcome(verdict, acted, outcome.error, changed)


def _wait_for_first(steps: Sequence[Step]) -> Wait | None:
    """The wait for the first of several places; None where none of them is waited for."""
    waits = [each.verdict for each, _ in steps if isinstance(each.verdict, Wait)]
    if not waits:
        return None
    ends = [wait.until for wait in waits if wait.until is not None]
    why = "; ".join(f"{seen.record.spec.zone}: {_why(each.verdict)}" for each, seen in steps)
    return Wait(why, min(ends) if ends else None)


def _why(verdict: Verdict) -> str:
    return verdict.error.message if isinstance(verdict, Failed) else verdict.why


def _is_awaited(step: Step) -> bool:
    """Whether what lost goes by itself: the cloud shows it, and took its deletion."""
    outcome, seen = step
    life = seen.record.incarnation
    retry = life.retry if life is not None else None
    refused = retry is not None and retry.call == DELETE and retry.answer is not Answer.TAKEN
    return isinstance(outcome.verdict, Wait) and not refused and not _hidden(seen)


def _hidden(seen: Observation) -> bool:
    return seen.observed.event is SliceEvent.UNKNOWN


def _describe_left(name: str, left: Sequence[Step]) -> str:
    """What is left of a race where nobody can look or delete, and why."""
    places = "; ".join(
        f"{seen.record.incarnation.cloud_name} in {seen.record.spec.zone} ({_why(each.verdict)})"
        for each, seen in left
        if seen.record.incarnation
    )
    then = f"`tpuctl up {name}` or a pass of the watchdog deletes it when it can"
    return f"lost and may still cost: {places}; {then}"


def race_moves(services: Services, stored: Versioned[SliceRecord], inventory: CloudInventory) -> bool:
    """Whether something is to be done in a race, by what the lists of a pass show of its other places."""
    now, store_id = services.store.now(), services.store.identity()
    places = (Versioned(place, stored.generation) for place in stored.record.places[1:])
    seen = (inventory.observe(place, store_id) for place in places)
    moving = (plan_slice(each.record, each.observed, now).moves(each.record) for each in seen)
    return plan_race(stored.record, now) is not None or any(moving)
