"""Bring the hosts of a slice, once they answer, to what is asked of them, and call it ready."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tpuctl.engine.events import StepDone
from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.errors import PartialError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.deadline import HOST_TIME_S, TimedRemote
from tpuctl.hosts.provision import Failures, Kind, Provisioned, Unanswered, provision
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.text import counted
from tpuctl.model.records import Doubt, SliceRecord, SliceState
from tpuctl.model.verdict import Blocked, Done, Wait
from tpuctl.slices.context import HeldSlice
from tpuctl.transfer.prepare import deliver_files

TOLD_AFTER = 3
"""Tries after which a person is asked to look at what fails; it goes on being tried."""


def asked_of_hosts(_services: Services, _record: SliceRecord) -> Sequence[Kind]:
    """What the specification of a slice asks of each of its hosts, in the order of the work: a disk before what
    is mounted on it, and that before the environment that may lie there."""
    return ()


def greeted(held: HeldSlice) -> Outcome:
    """All hosts answer: READY, or INITIALIZING where something is asked of them."""
    if not asked_of_hosts(held.services, held.record):
        return become_ready(held)
    answered = counted(len(held.incarnation.workers), "host")
    held.journal("initializing", f"{answered} answered")
    held.save(replace(held.record, state=SliceState.INITIALIZING))
    return Outcome(Wait("its hosts to be as asked"), acted=True)


def initialize_hosts(held: HeldSlice) -> Outcome:
    """READY once every host says that it is as asked; asks no host where nothing is."""
    return initialize(held, asked_of_hosts(held.services, held.record))


def initialize(held: HeldSlice, kinds: Sequence[Kind]) -> Outcome:
    """One step of provisioning. Hosts that do not answer take the slice back to BOOTING, to be judged."""
    services, record = held.services, held.record
    until = services.clock.now() + HOST_TIME_S
    agent = HostAgent(TimedRemote(services.remote, services.clock, until), services.agent_source)
    try:
        verdict = provision(
            agent,
            host_targets(services, record),
            lambda _: kinds,
            owner=f"{record.name}-slice",
            fence=held.fence,
            deliver=deliver_files(services, agent, until),
        )
    except PartialError as error:
        return Outcome(Wait(error.message), acted=False)
    if isinstance(verdict, Provisioned):
        return become_ready(held)
    if isinstance(verdict, Unanswered):
        return _unanswered(held, verdict)
    if isinstance(verdict, Failures):
        return Outcome(_failed(record.name, verdict), acted=False)
    return Outcome(verdict, acted=False)


def _failed(name: str, found: Failures) -> Wait | Blocked:
    worst = max(found.failures, key=lambda each: (each.permanent, each.tries))
    if not worst.permanent and worst.tries < TOLD_AFTER:
        return Wait(f"{found.why}; it is tried again")
    hint = f"tpuctl exec --worker {worst.worker} {name} -- tail -n 50 {worst.log}"
    return Blocked(f"{found.why} ({counted(worst.tries, 'try', 'tries')})", hint)


def _unanswered(held: HeldSlice, found: Unanswered) -> Outcome:
    first = found.replies[0]
    why = f"worker {first.worker}: {first.message or first.error}"
    if first.result.failure is None:
        return Outcome(Wait(why), acted=False)  # it answered, with a refusal: another tpuctl may be at work
    held.journal("doubt", why)
    doubt = Doubt(held.services.store.now(), why)
    held.save(replace(held.changed(doubt=doubt), state=SliceState.BOOTING))
    return Outcome(Wait(why), acted=True)


def become_ready(held: HeldSlice) -> Outcome:
    """READY: every host answered and is as asked."""
    now, before = held.services.store.now(), held.incarnation
    # One that was ready before is ready again: counted from when that was doubted.
    doubted = before.doubt if before.ready_at is not None else None
    since = before.requested_at if doubted is None else doubted.since
    answered = counted(len(before.workers), "host")
    held.journal("ready", f"{answered} answered")
    ready = held.changed(ready_at=now, doubt=None)
    held.save(replace(ready, state=SliceState.READY, failures=0))
    held.services.emit(StepDone(held.record.name, "ready", f"{answered} answered", now - since))
    return Outcome(Done("all hosts answered"), acted=True)
