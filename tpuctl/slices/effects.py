"""Performs the effect of one step of a slice's plan: in its record, in the cloud, and on its hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from tpuctl.engine.events import Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.model.capacity import note_ready
from tpuctl.model.records import Desired, SliceState
from tpuctl.slices.boot import doubt_hosts, probe_hosts, trust_hosts
from tpuctl.slices.capacity_notes import remember_end
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.create import create_tpu, renew_incarnation
from tpuctl.slices.delete import delete_incarnation
from tpuctl.slices.heartbeats import forget_heartbeats
from tpuctl.slices.initialize import initialize_hosts
from tpuctl.slices.loss import record_loss
from tpuctl.slices.states import Effect, SliceEvent


def apply_effect(context: ReconcileContext) -> Outcome:
    """The effect of one plan, under one lease; each is preceded by a written record of it."""
    return _ACTIONS[context.plan.effect](context)


def _move(context: ReconcileContext) -> Outcome:
    context.journal(str(context.plan.state), context.plan.why)
    record = replace(context.record, state=context.plan.state)
    if context.observation.info.node is not None and record.incarnation is not None:
        uid = context.observation.info.node.uid
        record = replace(record, incarnation=replace(record.incarnation, node_uid=uid))
    if record.incarnation is not None and context.observation.shown:
        record = replace(record, incarnation=replace(record.incarnation, unseen_since=None))
    if context.plan.state is SliceState.BOOTING and record.incarnation is not None:
        if record.incarnation.cloud_ready_at is None:
            remember_end(context.services, record, note_ready)
        ready = replace(record.incarnation, cloud_ready_at=context.services.store.now())
        if record.desired is Desired.UP:  # what was said for a deletion that did not come about is over
            ready = replace(ready, leaves_since=None, may_lose=False, unsaved="")
        record = replace(record, incarnation=ready)
    context.save(record)
    if record.state is SliceState.GONE:
        if context.place is None:
            context.services.ssh_entries.remove(record.name)
            forget_heartbeats(context.services, record.name)
        if context.observation.observed.event is SliceEvent.FOREIGN:
            text = f"left alone: {context.plan.why}; tpuctl ls shows whose it is"
            context.services.emit(Warn(record.name, text))
    return Outcome(context.plan.verdict, acted=True)


def _mark_unclear(context: ReconcileContext) -> Outcome:
    begins = context.incarnation.unclear_since is None
    context.journal("unclear" if begins else "clear", context.plan.why)
    context.save(context.changed(unclear_since=context.services.store.now() if begins else None))
    return Outcome(context.plan.verdict, acted=False)


_ACTIONS: Mapping[Effect | None, Callable[[ReconcileContext], Outcome]] = {
    None: _move,
    Effect.CREATE: create_tpu,
    Effect.PROBE_HOSTS: probe_hosts,
    Effect.INITIALIZE_HOSTS: initialize_hosts,
    Effect.DOUBT: doubt_hosts,
    Effect.TRUST: trust_hosts,
    Effect.MARK_UNCLEAR: _mark_unclear,
    Effect.RECORD_LOSS: record_loss,
    Effect.DELETE: delete_incarnation,
    Effect.RENEW: renew_incarnation,
}
