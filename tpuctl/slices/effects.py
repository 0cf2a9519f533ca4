"""What one step of a slice's plan does: to its record, in the cloud, and on its hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from tpuctl.engine.events import Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.model.records import SliceState
from tpuctl.slices.boot import doubt_hosts, probe_hosts, trust_hosts
from tpuctl.slices.capacity_notes import remember_ready
from tpuctl.slices.context import HeldSlice
from tpuctl.slices.create import create_tpu, renew_incarnation
from tpuctl.slices.delete import delete_incarnation
from tpuctl.slices.heartbeats import forget_beats
from tpuctl.slices.initialize import initialize_hosts
from tpuctl.slices.loss import record_loss
from tpuctl.slices.states import Effect, SliceEvent


def apply_effect(held: HeldSlice) -> Outcome:
    """The effect of one plan, under one lease; each is preceded by a written record of it."""
    return _ACTIONS[held.plan.effect](held)


def _move(held: HeldSlice) -> Outcome:
    held.journal(str(held.plan.state), held.plan.why)
    record = replace(held.record, state=held.plan.state)
    if held.look.view.node is not None and record.incarnation is not None:
        uid = held.look.view.node.uid
        record = replace(record, incarnation=replace(record.incarnation, node_uid=uid))
    if record.incarnation is not None and held.look.shown:
        record = replace(record, incarnation=replace(record.incarnation, unseen_since=None))
    if held.plan.state is SliceState.BOOTING and record.incarnation is not None:
        if record.incarnation.cloud_ready_at is None:
            remember_ready(held.services, record)
        ready = replace(record.incarnation, cloud_ready_at=held.services.store.now())
        record = replace(record, incarnation=ready)
    held.save(record)
    if record.state is SliceState.GONE:
        held.services.ssh_entries.remove(record.name)
        forget_beats(held.services, record.name)
        if held.look.sighting.event is SliceEvent.FOREIGN:
            text = f"left alone: {held.plan.why}; tpuctl ls shows whose it is"
            held.services.emit(Warn(record.name, text))
    return Outcome(held.plan.verdict, acted=True)


def _mark_unclear(held: HeldSlice) -> Outcome:
    begins = held.incarnation.unclear_since is None
    held.journal("unclear" if begins else "clear", held.plan.why)
    held.save(held.changed(unclear_since=held.services.store.now() if begins else None))
    return Outcome(held.plan.verdict, acted=False)


_ACTIONS: Mapping[Effect | None, Callable[[HeldSlice], Outcome]] = {
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
