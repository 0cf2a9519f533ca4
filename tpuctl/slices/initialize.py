"""Provisions the hosts of a slice once they answer, and then marks the slice ready."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tpuctl.engine.events import StepDone
from tpuctl.engine.reconcile import Outcome
from tpuctl.errors import PartialError
from tpuctl.hosts.deadline import HOST_TIME_S
from tpuctl.hosts.provision import Kind, Unanswered
from tpuctl.lib.text import counted
from tpuctl.model.records import Doubt, SliceState
from tpuctl.model.verdict import Blocked, Done, Failed, Wait, wait_for
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.things import attach_things, kinds_on_hosts, note_reached
from tpuctl.things.driver import explain, provision_slice


def hosts_answered(context: ReconcileContext) -> Outcome:
    """All hosts answer: READY, or INITIALIZING where something has to be provisioned."""
    if not kinds_on_hosts(context.services, context.record):
        return become_ready(context)
    answered = counted(len(context.incarnation.workers), "host")
    context.journal("initializing", f"{answered} answered")
    context.save(replace(context.record, state=SliceState.INITIALIZING))
    return Outcome(wait_for("its hosts to be as asked"), acted=True)


def initialize_hosts(context: ReconcileContext) -> Outcome:
    """READY once every host is provisioned; asks no host where nothing is required."""
    services, record = context.services, context.record
    return attach_things(services, record) or initialize(context, kinds_on_hosts(services, record))


def initialize(context: ReconcileContext, kinds: Sequence[Kind]) -> Outcome:
    """One step of provisioning. Hosts that do not answer take the slice back to BOOTING, where silence is
    judged."""
    services, record = context.services, context.record
    driver = provision_slice(services, record, kinds, until=services.clock.now() + HOST_TIME_S)
    try:
        found = driver.step(context.fence, reached=lambda rows: note_reached(services, record, rows))
    except PartialError as error:
        return Outcome(Wait(error.message), acted=False)
    if isinstance(found, Unanswered):
        return _unanswered(context, found)
    verdict = explain(found, record.name)
    if isinstance(verdict, Done):
        return become_ready(context)
    if isinstance(verdict, Failed):  # it goes on being tried
        verdict = Blocked(verdict.error.message, verdict.error.hint)
    return Outcome(verdict, acted=False)


def _unanswered(context: ReconcileContext, found: Unanswered) -> Outcome:
    first = found.replies[0]
    why = f"worker {first.worker}: {first.message or first.error}"
    if first.result.failure is None:
        return Outcome(Wait(why), acted=False)  # it answered, with a refusal: another tpuctl may be at work
    context.journal("doubt", why)
    doubt = Doubt(context.services.store.now(), why)
    context.save(replace(context.changed(doubt=doubt), state=SliceState.BOOTING))
    return Outcome(Wait(why), acted=True)


def become_ready(context: ReconcileContext) -> Outcome:
    """READY: every host answered and is provisioned."""
    now, before = context.services.store.now(), context.incarnation
    # One that was ready before is ready again: counted from when that was doubted.
    doubted = before.doubt if before.ready_at is not None else None
    since = before.requested_at if doubted is None else doubted.since
    answered = counted(len(before.workers), "host")
    context.journal("ready", f"{answered} answered")
    ready = context.changed(ready_at=now, doubt=None)
    context.save(replace(ready, state=SliceState.READY, failures=0))
    context.services.emit(StepDone(context.record.name, "ready", f"{answered} answered", now - since))
    return Outcome(Done("all hosts answered"), acted=True)
