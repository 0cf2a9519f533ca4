"""Delete what the cloud shows of an incarnation of a slice, after proof that it is ours."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from tpuctl.engine.events import Note, StepDone, StepStarted
from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.retries import DELETE, next_retry
from tpuctl.errors import BusyError, ConflictError, RateLimitedError, TpuctlError, TransientError
from tpuctl.inventory.delete import delete_owned
from tpuctl.inventory.ownership import Refusal, check_ownership, claim_of
from tpuctl.model.capacity import note_came
from tpuctl.model.cloud import CloudResource, NodeState
from tpuctl.model.records import Answer, Desired, Retry
from tpuctl.model.resources import KIND_WORDS, OF_COMPUTE, gcloud_command
from tpuctl.model.verdict import Blocked, Wait, wait_for
from tpuctl.slices.capacity_notes import remember_end
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.plan import retry_verdict
from tpuctl.slices.vacate import leave_hosts


def delete_incarnation(context: ReconcileContext) -> Outcome:
    """Asks the cloud to delete it; later steps check whether it is gone."""
    waits = leave_hosts(context) if _is_ours(context) else None
    if waits is not None:
        return waits
    services, name = context.services, context.incarnation.cloud_name
    began = services.clock.now()
    # Written in any case: it fails when somebody took the slice over while this process slept too long.
    life = replace(context.incarnation, unseen_since=None) if context.observation.shown else context.incarnation
    to_delete, before = _to_delete(context), life.retry
    node = context.observation.info.node
    if before is None and life.cloud_ready_at is None and node is not None and node.state is NodeState.READY:
        remember_end(services, context.record, note_came)
        life = replace(life, cloud_ready_at=services.store.now(), node_uid=node.uid)
    if to_delete:
        kind = str(to_delete[0].kind)
        same = before if before is None or before.said in ("", kind) else None
        life = replace(life, retry=next_retry(same, DELETE, Answer.TAKEN, services.store.now(), kind))
    context.save(replace(context.record, state=context.plan.state, incarnation=life))
    if not to_delete:
        return Outcome(Wait(context.observation.observed.why), acted=False)
    try:
        for found in to_delete:
            claim = claim_of(context.record, context.incarnation, services.store.identity(), found.kind)
            refused = delete_owned(services, found, claim, partial(_decide_delete, context)).refused
            if refused is not None:
                return _kept(context, refused, before)
    except (TransientError, RateLimitedError) as error:
        return try_again_later(context, before, DELETE, error)
    except TpuctlError:
        context.save(context.changed(retry=before))  # no deletion that was taken, to be waited for
        raise
    if life.retry is not None and life.retry.since == life.retry.at:
        services.emit(
            StepDone(
                context.record.name,
                f"delete {_what(to_delete[0])}",
                "requested",
                services.clock.now() - began,
            )
        )
        _name_what_stays(context)
    # Not "acted": the deletion takes its time, and looking again at once would only ask once more.
    return Outcome(wait_for(f"{name} to be gone"), acted=False)


def _name_what_stays(context: ReconcileContext) -> None:
    """Of a group that was adopted: its template and its policy may serve others, and cost nothing."""
    node, project = context.observation.info.node, context.services.project
    for each in node.stays if node is not None else ():
        command = f"{gcloud_command('delete', each.kind, each.name, each.location)} --project {project}"
        stays = f"{KIND_WORDS[each.kind]} {each.name} stays, which tpuctl did not make and others may use"
        context.services.emit(Note(context.record.name, f"{stays}: {command}"))


def try_again_later(context: ReconcileContext, before: Retry | None, call: str, error: TpuctlError) -> Outcome:
    """A call that was refused for the moment, or got no answer: recorded, and repeated later.

    `before` is the record of the previous such call, if there was one.
    """
    now = context.services.store.now()
    answer = Answer.REFUSED if isinstance(error, BusyError | ConflictError) else Answer.NONE
    retry = next_retry(before, call, answer, now, error.message)
    if retry.since == retry.at:
        context.journal("not-now", error.message)
    context.save(context.changed(retry=retry))
    return Outcome(retry_verdict(context.record, retry, now), acted=False)


def _to_delete(context: ReconcileContext) -> list[CloudResource]:
    """What the observation showed: its queued resource, which takes its nodes along, or the nodes."""
    info = context.observation.info
    if info.queued is not None:
        return [info.queued.resource]
    return [node.resource for node in (info.node.parts or (info.node,))] if info.node else []


def _is_ours(context: ReconcileContext) -> bool:
    """Whether its hosts may be asked to end what they do; the proof itself is right before the deletion."""
    record, store_id = context.record, context.services.store.identity()
    claims = [
        (found, claim_of(record, context.incarnation, store_id, found.kind)) for found in _to_delete(context)
    ]
    return not any(check_ownership(found, found, claim) for found, claim in claims)


def _decide_delete(context: ReconcileContext, found: CloudResource) -> Refusal | None:
    down = context.record.desired is Desired.DOWN
    lost = context.record.loss if context.place is not None else None
    why = f"{context.record.name} is to be deleted" if down else lost.detail if lost else context.plan.why
    context.journal("delete", why)
    context.services.emit(StepStarted(context.record.name, f"delete {_what(found)}", why))
    return None


def _what(found: CloudResource) -> str:
    """Of what is several objects under one name, which one it is."""
    return f"{KIND_WORDS[found.kind]} {found.name}" if found.kind in OF_COMPUTE else found.name


def _kept(context: ReconcileContext, refused: Refusal, before: Retry | None) -> Outcome:
    """Ownership is not proved: journaled once, and reported each time."""
    if context.incarnation.kept != refused.why:
        context.journal("kept", refused.why)
    context.save(
        context.changed(kept=refused.why, retry=before)
    )  # no deletion that was taken, to be waited for
    return Outcome(Blocked(f"nothing is deleted: {refused.why}", refused.hint), acted=False)
