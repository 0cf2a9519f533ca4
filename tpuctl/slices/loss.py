"""Records how an incarnation of a slice ended, and which zone is therefore left alone until when."""

from __future__ import annotations

from msgspec.structs import replace

from tpuctl.engine.events import Note, Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.errors import QuotaError
from tpuctl.model import timeouts
from tpuctl.model.records import WITH_HOSTS, Desired, Loss, SliceState
from tpuctl.model.verdict import Failed, Wait, wait_for
from tpuctl.money.quota_usage import name_holders, quota_error
from tpuctl.slices.capacity_notes import remember_failed, remember_lost, zone_backoffs
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.delete import delete_incarnation
from tpuctl.slices.states import LossKind, SliceEvent
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import find_slice, save

_TAKEN = {SliceEvent.PREEMPTED, SliceEvent.NODE_MISSING}
"""Losses that are the cloud's doing: asked for again at once, never charged as a failure."""

_KINDS = {
    **dict.fromkeys(_TAKEN, LossKind.PREEMPTED),
    SliceEvent.ABSENT: LossKind.ABSENT,
    SliceEvent.TIME_OVER: LossKind.TIME_OVER,
}


def record_loss(context: ReconcileContext) -> Outcome:
    """The cloud shows that the incarnation is lost, or never came to be."""
    why, event = context.plan.why, context.observation.observed.event
    taken = event in _TAKEN
    operation = context.observation.info.operation
    if operation is not None and operation.error is not None:
        # The create made nothing, so nothing of it can show up.
        context.amend(context.changed(unseen_since=None))
    if event is SliceEvent.CREATE_REFUSED and drop_zone(context, why):
        return Outcome(wait_for("another zone"), acted=True)
    if taken:
        remember_lost(context.services, context.record)
    quota = _late_quota_error(context, why)
    if quota is not None and event is SliceEvent.CREATE_FAILED:
        return quota_refused(context, quota)
    kind = _KINDS.get(event, LossKind.CREATE_FAILED)
    failed = not taken and event is not SliceEvent.TIME_OVER
    mark_lost(context, kind, why, failed=failed, zone=failed, state=context.plan.state)
    context.services.emit(Note(context.record.name, f"{kind}: {why}"))
    return Outcome(Wait(why), acted=True)


def _late_quota_error(context: ReconcileContext, why: str) -> QuotaError | None:
    """The refusal by a quota that came when the create had been taken already."""
    info = context.observation.info
    return quota_error(info.failure, queued=info.queued is not None, what=why)


def quota_refused(context: ReconcileContext, error: QuotaError) -> Outcome:
    """A quota has no room: the waiting command is told who uses it, and a first try in the only zone ends."""
    own = context.incarnation.queued_name
    named = name_holders(context.services, context.record.spec, error, own=own)
    mark_lost(context, LossKind.CREATE_FAILED, named.message, failed=True, zone=True, short=error.message)
    if context.record.last_incarnation == 1 and not context.record.zones:
        if context.observation.info.node is not None:
            delete_incarnation(context)  # a group would go on asking, and cost unseen one day
        hint = f"the slice stays wanted; tpuctl down {context.record.name} gives it up"
        return Outcome(Failed(QuotaError(named.message, hint=hint, details=named.details)), acted=True)
    return Outcome(Wait(named.message, context.record.not_before), acted=True)


def drop_zone(context: ReconcileContext, why: str) -> bool:
    """Goes on without a zone that will never serve this request, if there are others."""
    record = context.record
    if all(zone == record.spec.zone for zone in record.candidates):
        return False
    context.services.emit(Warn(record.name, f"{record.spec.zone} is left out from now on: {why}"))
    context.journal(LossKind.ZONE_REFUSED, f"{record.spec.zone}: {why}")
    loss = Loss(context.services.store.now(), "refused", why)
    refused = (*record.refused_zones, record.spec.zone)
    context.save(replace(record, state=SliceState.LOST, loss=loss, refused_zones=refused, not_before=0.0))
    return True


def mark_lost(
    context: ReconcileContext,
    kind: LossKind,
    detail: str,
    *,
    failed: bool,
    zone: bool = False,
    short: str = "",
    give_up: bool = False,
    state: SliceState = SliceState.LOST,
    journaled: bool = False,
) -> None:
    """Writes down how the incarnation ended and until when what is left alone.

    `zone`: it was for want of capacity or quota there, which other slices and the next hunt should know.
    `short`: `detail` without what is true only now. `give_up`: it is to go although the cloud shows it
    alive. `journaled`: the journal has it already.
    """
    services, record = context.services, context.record
    now = services.store.now()
    failures = record.failures + 1 if failed else 0
    until = now + timeouts.next_backoff(failures, record.name) if failed else now
    if not journaled:
        context.journal(kind, detail)
    backoffs = dict(record.zone_not_before)
    if record.zones:
        backoffs |= zone_backoffs(services, record.spec, record.candidates)
    if zone:
        until = remember_failed(services, record, short or detail).not_before
    backoffs[record.spec.zone] = until
    context.save(
        replace(
            record,
            state=state,
            loss=Loss(now, kind, detail),
            failures=failures,
            not_before=min(backoffs.get(each, 0.0) for each in record.candidates),
            zone_not_before=backoffs,
            incarnation=replace(context.incarnation, given_up=give_up),
        )
    )


def give_up_incarnation(services: Services, name: str, number: int, why: str, *, fence: int) -> None:
    """Has the loop ask for a slice again although the cloud shows it alive: its hardware fails. One that was
    made by hand is left to a person, and one that went on meanwhile to itself."""
    stored = find_slice(services, name)
    record = stored.record if stored is not None else None
    if stored is None or record is None or record.state not in WITH_HOSTS or record.desired is not Desired.UP:
        return
    if record.incarnation is None or record.incarnation.number != number or record.by_hand:
        return
    life = record.incarnation.cloud_name
    record_decision(services, record.key, LossKind.BROKEN, why, incarnation=life, fence=fence)
    lost = Loss(services.store.now(), LossKind.BROKEN, why)
    given_up = replace(record.incarnation, given_up=True)
    save(services, stored, replace(record, state=SliceState.LOST, loss=lost, incarnation=given_up))
