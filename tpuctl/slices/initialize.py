"""Provisions the hosts of a slice once they answer, and then marks the slice ready."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tpuctl.engine.events import StepDone
from tpuctl.engine.reconcile import Outcome
from tpuctl.errors import PartialError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.deadline import HOST_TIME_S, TimedRemote
from tpuctl.hosts.provision import Failures, Kind, Provisioned, Unanswered, provision
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.text import counted
from tpuctl.model.records import Doubt, SliceState
from tpuctl.model.verdict import Blocked, Done, Wait, wait_for
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.disks import attach_disks, note_disks
from tpuctl.slices.environment import share_environment
from tpuctl.slices.revisit import desired_on_hosts
from tpuctl.transfer.prepare import deliver_files

TOLD_AFTER = 3
"""Tries after which a person is asked to look at what fails; it goes on being tried."""


def hosts_answered(context: ReconcileContext) -> Outcome:
    """All hosts answer: READY, or INITIALIZING where something has to be provisioned."""
    if context.record.spec.env is None and not desired_on_hosts(context.services, context.record):
        return become_ready(context)
    answered = counted(len(context.incarnation.workers), "host")
    context.journal("initializing", f"{answered} answered")
    context.save(replace(context.record, state=SliceState.INITIALIZING))
    return Outcome(wait_for("its hosts to be as asked"), acted=True)


def initialize_hosts(context: ReconcileContext) -> Outcome:
    """READY once every host is provisioned; asks no host where nothing is required."""
    waits = attach_disks(context)
    return waits or initialize(context, desired_on_hosts(context.services, context.record))


def initialize(context: ReconcileContext, kinds: Sequence[Kind]) -> Outcome:
    """One step of provisioning: `kinds`, and then the environment, which may lie there and is shared
    between hosts. Those that do not answer take the slice back to BOOTING, where silence is judged."""
    services, record = context.services, context.record
    until = services.clock.now() + HOST_TIME_S
    agent = HostAgent(TimedRemote(services.remote, services.clock, until), services.agent_source)
    environment = share_environment(services, agent, record, until)
    try:
        verdict = provision(
            agent,
            host_targets(services, record),
            lambda _: kinds,
            slice_name=record.name,
            fence=context.fence,
            deliver=deliver_files(services, agent, until),
            also=environment.sections if environment is not None else (),
        )
        if isinstance(verdict, Provisioned):
            note_disks(services, record, verdict.rows)
            if environment is not None:
                verdict = environment.step(context.fence, verdict.facts)
    except PartialError as error:
        return Outcome(Wait(error.message), acted=False)
    if isinstance(verdict, Provisioned):
        return become_ready(context)
    if isinstance(verdict, Unanswered):
        return _unanswered(context, verdict)
    if isinstance(verdict, Failures):
        return Outcome(_failed(record.name, verdict), acted=False)
    return Outcome(verdict, acted=False)


def _failed(name: str, found: Failures) -> Wait | Blocked:
    worst = found.worst
    if not worst.permanent and worst.tries < TOLD_AFTER:
        return Wait(f"{found.why}; it is tried again")
    return Blocked(f"{found.why} ({counted(worst.tries, 'try', 'tries')})", found.hint(name))


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
