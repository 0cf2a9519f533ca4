"""A race: one slice asked for in several places at once, until the cloud has it ready in the first.

Each place lives by the table of `states.py`, as a slice alone does. What is decided here is which of them the
slice is, from its record alone: so a race goes on wherever it was left. The record shows one place as the slice
itself, the others as its rivals. One that loses is deleted as any slice, and stays there until the cloud says
not-found.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.retries import DELETE
from tpuctl.lib.time import render_span
from tpuctl.model.records import WITH_HOSTS, Answer, Desired, Loss, Rival, SliceRecord, SliceState
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.slices.plan import next_incarnation

LOST_RACE = "race"
"""The kind of loss of a place where the slice is not wanted any more."""
_OUT = frozenset({SliceState.REFUSED, SliceState.REMOVED})
"""States of a place that does not come on by itself."""
_OVER = frozenset({SliceState.DELETING, SliceState.GONE})
_RACING = frozenset(SliceState) - _OUT - _OVER


class RaceStep(Struct, frozen=True):
    """The next record of a race, and why, for the journal. `ended` is a rival of which nothing is left."""

    record: SliceRecord
    action: str
    why: str
    ended: Rival | None = None


def plan_race(record: SliceRecord, now: float) -> RaceStep | None:
    """What changes in a race by what its places came to; None where that is nothing, or where there is none."""
    gone = _first(record, {SliceState.GONE})
    if gone is not None:
        rest = (*record.rivals[:gone], *record.rivals[gone + 1 :])
        ended = record.rivals[gone]
        asked_at = max(record.last_asked_at, (ended.incarnation and ended.incarnation.create_called_at) or 0.0)
        left = replace(record, rivals=rest, last_asked_at=asked_at)
        return RaceStep(left, "race-end", _said(ended, "is gone"), ended)
    racing = any(rival.state not in _OVER for rival in record.rivals)
    if record.desired is Desired.DOWN or record.state in WITH_HOSTS:
        why = f"{record.name} is to go" if record.desired is Desired.DOWN else _came_first(record)
        return RaceStep(end_race(record, why, now), "race", why) if racing else None
    winner = _first(record, WITH_HOSTS)
    if winner is not None:
        seen = record.led_by(winner)
        why = _came_first(seen)
        return RaceStep(end_race(seen, why, now), "race", why)
    ahead = _first(record, _RACING)
    if record.state in _OUT and ahead is not None:
        why = f"{_name(record)} in {record.spec.zone} is {record.state}; the others go on"
        return RaceStep(record.led_by(ahead), "race", why)
    return _begin(record, now)


def _begin(record: SliceRecord, now: float) -> RaceStep | None:
    """The intents for all zones, before anything is asked for in the first."""
    life = record.incarnation
    begins = record.state is SliceState.REQUESTED and life is not None and life.create_called_at is None
    taken = [record.spec, *(rival.spec for rival in record.rivals if not _makes_room(rival))]
    places = {_place(spec) for spec in taken}
    open_ = [spec for spec in record.requested_specs if _place(spec) not in places]
    if not (record.spec.race and begins and open_):
        return None
    for spec in open_:
        incarnation = next_incarnation(record, now)
        same = spec.accelerator_type == record.spec.accelerator_type
        until = record.zone_not_before.get(spec.zone, 0.0) if same else 0.0
        rival = Rival(spec, SliceState.REQUESTED, incarnation, not_before=until)
        record = replace(record, rivals=(*record.rivals, rival), last_incarnation=incarnation.number)
    said = [f"{spec.zone} as {spec.accelerator_type}" if record.race_specs else spec.zone for spec in open_]
    return RaceStep(record, "race", f"also asked for in {', '.join(said)}; the first that comes is kept")


def _place(spec: SliceSpec) -> tuple[str, str]:
    return spec.accelerator_type, spec.zone


def _makes_room(rival: Rival) -> bool:
    """Whether its zone may be asked again: what does not go there is not made more."""
    retry = rival.incarnation.retry if rival.incarnation else None
    goes = retry is not None and (retry.call, retry.answer) == (DELETE, Answer.TAKEN)
    return rival.state is SliceState.GONE or (rival.state is SliceState.DELETING and goes)


def is_out(record: SliceRecord) -> bool:
    """Whether a slice waits for a person in every place where it was asked for."""
    return record.state in _OUT and _first(record, _RACING) is None


def end_race(record: SliceRecord, why: str, now: float) -> SliceRecord:
    """The record with all its rivals to be deleted, but for those that were never asked for."""
    lost = Loss(now, LOST_RACE, why)
    rivals = tuple(
        rival
        if rival.state in _OVER
        else replace(rival, state=SliceState.GONE if is_unsent(rival) else SliceState.DELETING, loss=lost)
        for rival in record.rivals
    )
    return replace(record, rivals=rivals)


def is_unsent(place: SliceRecord | Rival) -> bool:
    """Whether nothing of the current incarnation can exist in this place: it was neither asked for nor taken
    over. A create is written down before it is called."""
    life = place.incarnation
    if life is None or life.create_called_at is not None or life.adopted_uid or life.node_uid is not None:
        return False
    return place.state in {SliceState.REQUESTED, SliceState.DELETING}


def describe_end(ended: Rival, price_per_hour: float | None, now: float) -> str:
    """What a place that lost had cost, in seconds and dollars."""
    life = ended.incarnation
    if life is None or life.create_called_at is None:
        return _said(ended, "was never asked for, and cost nothing")
    asked_s = now - life.create_called_at
    if life.cloud_ready_at is None:
        return _said(ended, f"lost: it never came in {render_span(asked_s)}, and cost nothing")
    there_s = now - life.cloud_ready_at
    cost = "at an unknown price" if price_per_hour is None else f"about ${price_per_hour * there_s / 3600:.2f}"
    return _said(ended, f"lost: it was there for {there_s:.0f} s, {cost} by the list")


def describe_places(record: SliceRecord) -> str:
    """Where a slice is asked for, and how that stood when it was last read."""
    known = ", ".join(f"{_name(each)} in {each.spec.zone} {each.state}" for each in record.places)
    return f"as last read: {known}"


def _said(rival: Rival, what: str) -> str:
    name = rival.incarnation.cloud_name if rival.incarnation else "the request"
    return f"{name} in {rival.spec.zone} {what}"


def _came_first(record: SliceRecord) -> str:
    return f"{_name(record)} in {record.spec.zone} came first"


def _name(record: SliceRecord) -> str:
    return record.incarnation.cloud_name if record.incarnation else record.name


def _first(record: SliceRecord, states: AbstractSet[SliceState]) -> int | None:
    """The number of the first rival in one of these states."""
    return next((number for number, rival in enumerate(record.rivals) if rival.state in states), None)
