"""The gate before each deletion of a TPU: what its hosts write is brought to where it belongs, or the loss is
decided by a person, or said when nobody can be asked.

Hosts are asked only where their node lists a disk that it can write, or a bucket is mounted for writing.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from msgspec.structs import replace

from tpuctl.engine.events import Note, Waiting, Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.retries import DELETE
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, TpuctlError, UnreachableError
from tpuctl.hosts.deadline import HOST_TIME_S
from tpuctl.hosts.provision import Unanswered
from tpuctl.model import timeouts
from tpuctl.model.records import Answer, Desired, Retry, SliceRecord, SliceState
from tpuctl.model.verdict import Done, Failed, Wait
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.leaving import HostsLeft, Refuse, Written, find_written, judge_leaving, running_workers
from tpuctl.slices.observe import Observation, observe_slice
from tpuctl.slices.probing import probe_workers
from tpuctl.slices.replacement import find_replacement_limit
from tpuctl.things.driver import explain, provision_slice

HELD_STILL_S = 300.0
"""A proof holds for so long: half of the time for which hosts hold disks still."""
UNSAVED = "unsaved"
"""In journals: a TPU is deleted although something that was written there may be lost."""


def hosts_to_ask(observation: Observation, now: float) -> Written:
    """What the hosts of a slice are asked for before its TPU is deleted; nothing where they are not connected
    to."""
    record, incarnation = observation.record, observation.record.incarnation
    if incarnation is None or _asked_for(incarnation.retry, now):
        return Written()
    return find_written(observation.info.node, record.spec.mounts, observation.observed.event, incarnation)


def leave_hosts(context: ReconcileContext) -> Outcome | None:
    """Why the TPU is not deleted in this step; None where it may be, now. To be called right before."""
    services, incarnation = context.services, context.incarnation
    written = hosts_to_ask(context.observation, services.store.now())
    if written == Written():
        return None
    if not context.may_connect:
        return Outcome(Wait(f"its hosts to be asked, in another pass, for {written.said}"), acted=False)
    since = incarnation.leaves_since
    if since is None:
        since = services.store.now()
        context.save(context.changed(leaves_since=since))
        services.emit(Note(context.record.name, f"its hosts bring what was written to {written.said}"))
    running = running_workers(context.observation.info.node, incarnation)
    found = ask_hosts(services, context.record, written, context.fence, workers=running)
    now = services.store.now()
    doubt = incarnation.doubt
    if incarnation.given_up and doubt is not None and found.silent and not found.working:
        since = min(since, doubt.since)  # they were waited for already
    verdict = judge_leaving(
        found,
        person=context.person,
        may_lose=incarnation.may_lose,
        since=since,
        now=now,
        patience_s=find_replacement_limit(services, context.record, context.observation.info.node),
    )
    if isinstance(verdict, Wait):
        return Outcome(verdict, acted=False)
    if isinstance(verdict, Refuse):
        return _kept(context, verdict)
    if verdict.unsaved:
        context.journal(UNSAVED, verdict.unsaved)
        context.amend(context.changed(unsaved=verdict.unsaved))
        services.emit(Warn(context.record.name, f"deleted with the loss of {verdict.unsaved}"))
    return None


def refuse_if_silent(services: Services, name: str) -> None:
    """Raises UnreachableError where hosts that write do not answer, before anything of the slice is ended. A
    preemption shows late: the verdict of the cloud is waited for."""
    since = services.clock.now()
    while True:
        observation = observe_slice(services, name)
        record, incarnation = observation.record, observation.record.incarnation
        if incarnation is None or incarnation.may_lose:
            return
        written = hosts_to_ask(observation, services.store.now())
        if written == Written():
            return
        silent: tuple[int, ...] = ()
        if incarnation.workers:
            running = running_workers(observation.info.node, incarnation)
            probed = probe_workers(services, record, services.clock.now() + HOST_TIME_S).silent
            silent = tuple(each for each in probed if each in running)
            if not silent:
                return
        found = HostsLeft(written, "its hosts were never reached", silent)
        verdict = judge_leaving(found, person=True, may_lose=False, since=since, now=services.clock.now())
        if isinstance(verdict, Refuse):
            raise _refusal(name, verdict)
        if isinstance(verdict, Wait):
            services.emit(Waiting(name, verdict.why, since, verdict.until))
        services.clock.sleep(timeouts.POLL_MAX_S)


def _refusal(name: str, refused: Refuse) -> TpuctlError:
    kind = UnreachableError if refused.silent else ConflictError
    return kind(
        f"{name} stays: its deletion may lose {refused.why}",
        hint=f"tpuctl status {name} shows its hosts; with the loss: tpuctl down {name} --force",
        details={"unsaved": refused.why},
    )


def _asked_for(retry: Retry | None, now: float) -> bool:
    """Whether its deletion was called a moment ago, and may be under way. Later its hosts are asked again: what
    was held still for a deletion goes on after a while."""
    if retry is None or retry.call != DELETE or retry.answer is Answer.REFUSED:
        return False
    return now - retry.at < 3 * timeouts.RETRY_MAX_S and now - retry.since < HELD_STILL_S


def _kept(context: ReconcileContext, refused: Refuse) -> Outcome:
    """A person asked, and is asked: it stays, and no pass ends later what was refused now."""
    context.journal("kept", refused.why)
    kept = context.changed(leaves_since=None)
    if kept.desired is Desired.DOWN:
        kept = replace(kept, desired=Desired.UP, state=SliceState.INITIALIZING)
    context.save(kept)
    return Outcome(Failed(_refusal(context.record.name, refused)), acted=False)


def ask_hosts(
    services: Services, record: SliceRecord, written: Written, fence: int, *, workers: Collection[int] = ()
) -> HostsLeft:
    """Has the hosts (or some `workers`) end who writes, and unmount; buckets first, for their caches may lie on
    a disk."""
    if record.incarnation is None or not record.incarnation.workers:
        return HostsLeft(written, "its hosts were never reached")
    until = services.clock.now() + HOST_TIME_S
    left = _leave_mounts(services, record, written, fence, until, workers) if written.mounts else HostsLeft()
    if left.left != Written() or not written.disks:
        return left
    return _leave_disks(services, record, written, until)


def _leave_mounts(
    services: Services,
    record: SliceRecord,
    written: Written,
    fence: int,
    until: float,
    workers: Collection[int],
) -> HostsLeft:
    """Their users are ended, and what these had open is uploaded."""
    from tpuctl.mounts.follow import ended_kinds

    kinds = ended_kinds(record, written.mounts)
    found = provision_slice(services, record, kinds, until=until, workers=workers).step(fence)
    if isinstance(found, Unanswered):
        silent = tuple(reply.worker for reply in found.replies)
        return HostsLeft(written, found.replies[0].message, silent)
    verdict = explain(found, record.name, tries=math.inf)
    if isinstance(verdict, Done):
        return HostsLeft()
    why = verdict.error.message if isinstance(verdict, Failed) else verdict.why
    return HostsLeft(written, why, working=isinstance(verdict, Wait))


def _leave_disks(services: Services, record: SliceRecord, written: Written, until: float) -> HostsLeft:
    """Their users are ended, and they are unmounted, or held still where that cannot be."""
    from tpuctl.disks.vacate import NextUse, Vacancy, vacate

    found = vacate(services, record, written.disks, purpose=NextUse.DELETE, deadline=until)
    if found == Vacancy():
        return HostsLeft()  # its node lists them no more
    left = Written(tuple(each for each in written.disks if each not in found.proved))
    if left == Written():
        return HostsLeft()
    why = "; ".join(each.said for each in found.holders) or found.lost
    return HostsLeft(left, why, found.silent, working=found.working or bool(found.unseen))
