"""Ask the cloud for a slice's TPU, in words written down before; and ask anew after a loss."""

from __future__ import annotations

from msgspec.structs import replace

from tpuctl.engine.events import StepStarted, Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.retries import CREATE
from tpuctl.errors import (
    BusyError,
    ConflictError,
    DeniedError,
    InvalidRequestError,
    NoCapacityError,
    QuotaError,
    RateLimitedError,
    TpuctlError,
    TransientError,
)
from tpuctl.inventory.ownership import owner_labels
from tpuctl.lib.names import cloud_name, label_value
from tpuctl.model.cloud import USER_LABEL, OperationInfo
from tpuctl.model.records import Incarnation, Loss, SliceRecord, SliceState
from tpuctl.model.resources import KIND_WORDS, ResourceKind
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.model.verdict import Blocked, Failed, Wait, wait_for
from tpuctl.money.coverage import ended_grant
from tpuctl.slices.capacity_notes import read_notes, remember_request
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.delete import try_again_later
from tpuctl.slices.enrollment import keep_enrolled, read_machines
from tpuctl.slices.loss import drop_zone, mark_lost, quota_refused
from tpuctl.slices.plan import next_incarnation, node_spec, time_left
from tpuctl.slices.states import LossKind, SliceEvent
from tpuctl.slices.zones import choose_zone


def create_tpu(context: ReconcileContext) -> Outcome:
    """One create call for the incarnation, as a node or a queued resource."""
    services, record = context.services, context.record
    not_now = _not_now(context)
    if not_now is not None:
        return Outcome(not_now, acted=False)
    now = services.store.now()
    left = context.observation.observed.left
    why = f"its {KIND_WORDS[ResourceKind(left)]} is there" if left else _why_created(record)
    context.journal("create", why)
    before = context.incarnation
    called = replace(before, create_called_at=now, unseen_since=now)
    remember_request(services, record)
    # Last before the call: it fails when somebody took the slice over while this process slept.
    context.save(replace(record, incarnation=called, state=SliceState.REQUESTED))
    kind = KIND_WORDS[_next_object(record.spec, left)]
    services.emit(StepStarted(record.name, f"create {kind} {called.cloud_name}", why))
    try:
        operation = _call_create(context, called)
    except BusyError as error:
        # Refused: this call made nothing. Another zone need not wait for this one.
        context.amend(context.changed(unseen_since=before.unseen_since))
        if len(record.candidates) > 1:
            return _create_failed(context, error)
        return try_again_later(context, before.retry, CREATE, error)
    except (ConflictError, TransientError) as error:
        # It may have taken effect, or an earlier call of ours has the name, or a stranger. A later look tells
        # which; not at once, because what holds the name may not be shown yet.
        return try_again_later(context, before.retry, CREATE, error)
    except (RateLimitedError, NoCapacityError, QuotaError, InvalidRequestError, DeniedError) as error:
        # This call made nothing; an earlier one, whose answer was lost, may have.
        refused = replace(called, unseen_since=before.unseen_since)
        return _not_created(context, replace(context.record, incarnation=refused), error)
    context.save(replace(context.record, incarnation=replace(called, operation=operation.name, retry=None)))
    return Outcome(wait_for("the cloud to take the request"), acted=True)


_NEXT = {ResourceKind.POLICY: ResourceKind.TEMPLATE, ResourceKind.TEMPLATE: ResourceKind.GROUP}
"""What is made for a group after what is there."""


def _next_object(spec: SliceSpec, left: str) -> ResourceKind:
    """What a create asks for, where `left` is what is there of a group."""
    if spec.made_as is not ResourceKind.GROUP:
        return spec.made_as
    return _NEXT[ResourceKind(left)] if left else ResourceKind.POLICY


def _why_created(record: SliceRecord) -> str:
    """What the request is for: the first, or the next after a loss."""
    if record.loss is None or record.last_incarnation <= 1:
        return f"{record.name} is wanted"
    return f"in place of {cloud_name(record.name, record.last_incarnation - 1)}: {record.loss.kind}"


def _not_now(context: ReconcileContext) -> Blocked | Wait | None:
    """Why nothing may be created at this moment."""
    ended = ended_grant(context.services, context.record)
    if ended:
        hint = f"tpuctl up {context.record.name} --pay, or tpuctl down {context.record.name}"
        return Blocked(f"{ended}; nothing is created after that", hint)
    seconds = context.services.rate_limiter.take()
    if seconds <= 0:
        return None
    return wait_for("its turn: creates per minute are limited", context.services.clock.now() + seconds)


def _call_create(context: ReconcileContext, incarnation: Incarnation) -> OperationInfo:
    services, record = context.services, context.record
    keep_enrolled(services)
    labels = owner_labels(record, incarnation, services.store.identity())
    labels[USER_LABEL] = label_value(record.owner)
    keys = read_machines(services).keys_for(record.spec.login_user)
    digest = record.spec.startup_script
    script = None if digest is None else services.store.get_blob(digest).decode()
    left = time_left(record, services.store.now())
    spec = replace(node_spec(record, labels, keys, script), run_duration_s=left)
    create = services.cloud.create_queued if spec.queued else services.tpus(spec.api).create_node
    return create(incarnation.cloud_name, spec)


def _not_created(context: ReconcileContext, record: SliceRecord, error: TpuctlError) -> Outcome:
    """What a refused create means for the slice; `record` is written with its consequences."""
    context.amend(record)
    if isinstance(error, RateLimitedError):
        mark_lost(context, LossKind.CREATE_FAILED, error.message, failed=True)
        return Outcome(Wait(error.message, context.record.not_before), acted=True)
    if isinstance(error, NoCapacityError | QuotaError):
        return _create_failed(context, error)
    return _create_refused(context, error)


def _create_failed(context: ReconcileContext, error: TpuctlError) -> Outcome:
    """Nothing was created, and asking again later or elsewhere may succeed."""
    if isinstance(error, QuotaError):
        return quota_refused(context, error)
    mark_lost(context, LossKind.CREATE_FAILED, error.message, failed=True, zone=True)
    return Outcome(Wait(error.message, context.record.not_before), acted=True)


def _create_refused(context: ReconcileContext, error: TpuctlError) -> Outcome:
    if isinstance(error, DeniedError) and len(context.record.candidates) > 1:
        # Perhaps only this machine may not: the zone is left alone for a while, not left out for good.
        mark_lost(context, LossKind.CREATE_FAILED, error.message, failed=True, zone=True)
        return Outcome(Wait(error.message, context.record.not_before), acted=True)
    if drop_zone(context, error.message):
        return Outcome(wait_for("another zone"), acted=True)
    if isinstance(error, DeniedError):
        # Permissions come late and tokens expire: passes ask again, and warn until it works.
        again = context.record.loss is not None and context.record.loss.kind == LossKind.DENIED
        if again:
            context.journal("still-denied", error.message)
        mark_lost(
            context, LossKind.DENIED, error.message, failed=True, state=SliceState.REFUSED, journaled=again
        )
        return Outcome(Failed(_with_way_out(context, error)), acted=True)
    loss = Loss(context.services.store.now(), "refused", error.message)
    context.journal("refused", error.message)
    context.save(replace(context.record, state=SliceState.REFUSED, loss=loss))
    return Outcome(Failed(_with_way_out(context, error)), acted=True)


def _with_way_out(context: ReconcileContext, error: TpuctlError) -> TpuctlError:
    """The record of what was refused stays until it is asked for again or taken down: `status` says why."""
    first = f"{error.hint}; " if error.hint else ""
    hint = f"{first}`tpuctl down {context.record.name}` clears the refused request away"
    return type(error)(error.message, hint=hint, details=error.details)


def renew_incarnation(context: ReconcileContext) -> Outcome:
    """Names the next incarnation, in the zone where capacity is likeliest; a later step asks for it."""
    services, record = context.services, context.record
    now = services.store.now()
    ended = ended_grant(services, record)
    if ended:
        hint = f"tpuctl up {record.name} --pay, or tpuctl down {record.name}"
        return Outcome(Blocked(f"{ended}; nothing is restarted after that", hint), acted=False)
    notes = read_notes(services, record.spec, record.candidates if record.zones else ())
    choice = choose_zone(record.candidates, record.zone_not_before, notes, now)
    incarnation = next_incarnation(record, now)
    if context.observation.observed.event is SliceEvent.DELETING:
        text = f"{context.plan.why}: it is not waited for any more, and counts against quota until it is gone"
        services.emit(Warn(record.name, text))
    where = f" in {choice.zone} ({choice.why})" if record.zones else ""
    context.journal("renew", f"{context.plan.why}; asking again as {incarnation.cloud_name}{where}")
    context.save(
        replace(
            record,
            state=SliceState.REQUESTED,
            spec=replace(record.spec, zone=choice.zone),
            incarnation=incarnation,
            last_incarnation=incarnation.number,
        )
    )
    return Outcome(wait_for("the next incarnation"), acted=True)
