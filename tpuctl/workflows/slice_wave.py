"""What one step of a slice's plan does: to its record, in the cloud, and on its hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tpuctl.core import timeouts
from tpuctl.core.counting import counted
from tpuctl.core.evidence import Life, Silence, judge_silence
from tpuctl.core.hunt import choose_zone
from tpuctl.core.lifecycle import Effect, SliceEvent, owner_labels, unhealthy
from tpuctl.core.model import USER_LABEL, OperationInfo
from tpuctl.core.naming import label_value
from tpuctl.core.ownership import Refusal, claim_of
from tpuctl.core.plan import Blind, Blocked, Done, Failed, Wait
from tpuctl.core.plan_slice import SlicePlan, next_incarnation, node_request
from tpuctl.core.reap import Found, node_found, queued_found
from tpuctl.core.records import Doubt, Incarnation, Loss, SliceRecord, SliceState
from tpuctl.errors import (
    ConflictError,
    DeniedError,
    InvalidRequestError,
    NoCapacityError,
    QuotaError,
    RateLimitedError,
    TpuctlError,
)
from tpuctl.workflows.capacity import (
    read_notes,
    remember_asked,
    remember_failed,
    remember_lost,
    remember_ready,
    zone_backoffs,
)
from tpuctl.workflows.deleting import delete_tpu
from tpuctl.workflows.documents import save
from tpuctl.workflows.enrolment import enroll_if_new, read_machines
from tpuctl.workflows.events import Note, StepDone, StepStarted, Warn
from tpuctl.workflows.holders import name_holders, quota_error
from tpuctl.workflows.host_beats import describe_life, forget_beats, listen_for_life
from tpuctl.workflows.journal import record_decision
from tpuctl.workflows.leases import Lease
from tpuctl.workflows.loop import Outcome
from tpuctl.workflows.observe import SliceLook
from tpuctl.workflows.payment import ended_grant
from tpuctl.workflows.probing import HostAnswers, Reach, find_workers, greet_workers
from tpuctl.workflows.services import Services
from tpuctl.workflows.targets import host_targets

_TAKEN = {SliceEvent.PREEMPTED, SliceEvent.NODE_MISSING}
"""Losses that are the cloud's doing: asked for again at once, never charged as a failure."""


class SliceWave:
    """The effects of one plan, under one lease. Every effect is preceded by a written record of it."""

    def __init__(self, services: Services, look: SliceLook, plan: SlicePlan, held: Lease, reach: Reach) -> None:
        self._services = services
        self._look = look
        self._plan = plan
        self._held = held
        self._reach = reach
        self._loaded = look.loaded

    def apply(self) -> Outcome:
        actions: dict[Effect | None, Callable[[], Outcome]] = {
            None: self._move,
            Effect.CREATE: self._create,
            Effect.PROBE_HOSTS: self._probe_hosts,
            Effect.DOUBT: self._doubt,
            Effect.TRUST: self._trust,
            Effect.MARK_UNCLEAR: self._mark_unclear,
            Effect.RECORD_LOSS: self._record_loss,
            Effect.DELETE: self._delete,
            Effect.RENEW: self._renew,
        }
        return actions[self._plan.effect]()

    @property
    def _record(self) -> SliceRecord:
        return self._loaded.record

    @property
    def _incarnation(self) -> Incarnation:
        incarnation = self._record.incarnation
        if incarnation is None:
            raise TpuctlError(f"slice {self._record.name} has no incarnation to act on")
        return incarnation

    def _with(self, **changes: Any) -> SliceRecord:
        """The record with changes of its incarnation."""
        return replace(self._record, incarnation=replace(self._incarnation, **changes))

    def _save(self, record: SliceRecord) -> None:
        self._loaded = save(self._services, self._loaded, record)

    def _journal(self, action: str, reason: str) -> None:
        cloud_name = self._record.incarnation.cloud_name if self._record.incarnation else ""
        record_decision(
            self._services,
            self._record.key,
            action,
            reason,
            incarnation=cloud_name,
            fence=self._held.fence,
        )

    def _move(self) -> Outcome:
        self._journal(str(self._plan.state), self._plan.why)
        record = replace(self._record, state=self._plan.state)
        if self._look.view.node is not None and record.incarnation is not None:
            uid = self._look.view.node.uid
            record = replace(record, incarnation=replace(record.incarnation, node_uid=uid))
        if record.incarnation is not None and self._look.shown:
            record = replace(record, incarnation=replace(record.incarnation, unseen_since=None))
        if self._plan.state is SliceState.BOOTING and record.incarnation is not None:
            if record.incarnation.cloud_ready_at is None:
                remember_ready(self._services, record)
            ready = replace(record.incarnation, cloud_ready_at=self._services.store.now())
            record = replace(record, incarnation=ready)
        self._save(record)
        if record.state is SliceState.GONE:
            self._services.ssh_entries.remove(record.name)
            forget_beats(self._services, record.name)
            if self._look.sighting.event is SliceEvent.FOREIGN:
                text = f"left alone: {self._plan.why}; tpuctl ls shows whose it is"
                self._services.emit(Warn(record.name, text))
        return Outcome(self._plan.verdict, acted=True)

    def _create(self) -> Outcome:
        services, record = self._services, self._record
        not_now = self._not_now()
        if not_now is not None:
            return Outcome(not_now, acted=False)
        now = services.store.now()
        self._journal("create", self._plan.why)
        before = self._incarnation
        called = replace(before, create_called_at=now, unseen_since=now)
        remember_asked(services, record)
        # Last before the call: it fails when somebody took the slice over while this process slept.
        self._save(replace(record, incarnation=called, state=SliceState.REQUESTED))
        kind = "queued resource" if record.spec.queued else "node"
        services.emit(StepStarted(record.name, f"create {kind} {called.cloud_name}", self._plan.why))
        try:
            operation = self._call_create(called)
        except ConflictError:
            # The name is taken: by an earlier call of ours whose answer was lost, or by a stranger. A later
            # look tells which; not at once, because what holds the name may not be shown yet.
            return Outcome(Wait("a look at what holds the name"), acted=False)
        except (RateLimitedError, NoCapacityError, QuotaError, InvalidRequestError, DeniedError) as error:
            # This call made nothing; an earlier one, whose answer was lost, may have.
            refused = replace(called, unseen_since=before.unseen_since)
            return self._not_created(replace(self._record, incarnation=refused), error)
        self._save(replace(self._record, incarnation=replace(called, operation=operation.name)))
        return Outcome(Wait("the cloud to take the request"), acted=True)

    def _not_created(self, record: SliceRecord, error: TpuctlError) -> Outcome:
        """What a refused create means for the slice; `record` is written with its consequences."""
        self._loaded = replace(self._loaded, record=record)
        if isinstance(error, RateLimitedError):
            self._lose("create-failed", error.message, failed=True)
            return Outcome(Wait(error.message, self._record.not_before), acted=True)
        if isinstance(error, NoCapacityError | QuotaError):
            return self._create_failed(error)
        return self._create_refused(error)

    def _not_now(self) -> Blocked | Wait | None:
        """Why nothing may be created at this moment."""
        ended = ended_grant(self._services, self._record)
        if ended:
            hint = f"tpuctl up {self._record.name} --pay, or tpuctl down {self._record.name}"
            return Blocked(f"{ended}; nothing is created after that", hint)
        seconds = self._services.pacer.take()
        if seconds <= 0:
            return None
        return Wait("its turn: creates per minute are limited", self._services.clock.now() + seconds)

    def _call_create(self, incarnation: Incarnation) -> OperationInfo:
        services, record = self._services, self._record
        enroll_if_new(services)
        labels = owner_labels(record, incarnation, services.store.identity())
        labels[USER_LABEL] = label_value(record.owner)
        keys = read_machines(services).keys_for(record.spec.login_user)
        digest = record.spec.startup_script
        script = None if digest is None else services.store.get_blob(digest).decode()
        request = node_request(record, incarnation, labels, keys, script)
        if record.spec.queued:
            return services.cloud.create_queued(request)
        return services.cloud.create_node(request)

    def _create_failed(self, error: TpuctlError) -> Outcome:
        """Nothing was created, and asking again later or elsewhere may succeed."""
        if isinstance(error, QuotaError):
            return self._quota_refused(error)
        self._lose("create-failed", error.message, failed=True, zone=True)
        return Outcome(Wait(error.message, self._record.not_before), acted=True)

    def _quota_refused(self, error: QuotaError) -> Outcome:
        """A quota has no room: whoever waits is told who holds it, and a first try in the only zone ends."""
        own = self._incarnation.queued_name
        named = name_holders(self._services, self._record.spec, error, own=own)
        self._lose("create-failed", named.message, failed=True, zone=True, short=error.message)
        if self._record.last_incarnation == 1 and not self._record.zones:
            hint = f"the slice stays wanted; tpuctl down {self._record.name} gives it up"
            return Outcome(Failed(QuotaError(named.message, hint=hint, details=named.details)), acted=True)
        return Outcome(Wait(named.message, self._record.not_before), acted=True)

    def _create_refused(self, error: TpuctlError) -> Outcome:
        if isinstance(error, DeniedError) and len(self._record.candidates) > 1:
            # Perhaps only this machine may not: the zone is left alone for a while, not left out for good.
            self._lose("create-failed", error.message, failed=True, zone=True)
            return Outcome(Wait(error.message, self._record.not_before), acted=True)
        if self._drop_zone(error.message):
            return Outcome(Wait("another zone"), acted=True)
        loss = Loss(self._services.store.now(), "refused", error.message)
        self._journal("refused", error.message)
        self._save(replace(self._record, state=SliceState.REFUSED, loss=loss))
        return Outcome(Failed(error), acted=True)

    def _drop_zone(self, why: str) -> bool:
        """Goes on without a zone that will never serve this request, if there are others."""
        record = self._record
        if all(zone == record.spec.zone for zone in record.candidates):
            return False
        self._services.emit(Warn(record.name, f"{record.spec.zone} is left out from now on: {why}"))
        self._journal("zone-refused", f"{record.spec.zone}: {why}")
        loss = Loss(self._services.store.now(), "refused", why)
        refused = (*record.refused_zones, record.spec.zone)
        self._save(replace(record, state=SliceState.LOST, loss=loss, refused_zones=refused, not_before=0.0))
        return True

    def _record_loss(self) -> Outcome:
        why, event = self._plan.why, self._look.sighting.event
        taken = event in _TAKEN
        operation = self._look.view.operation
        if operation is not None and operation.error is not None:
            # The create made nothing, so nothing of it can show up.
            self._loaded = replace(self._loaded, record=self._with(unseen_since=None))
        if event is SliceEvent.CREATE_REFUSED and self._drop_zone(why):
            return Outcome(Wait("another zone"), acted=True)
        if taken:
            remember_lost(self._services, self._record)
        quota = self._late_quota_error(why)
        if quota is not None and event is SliceEvent.CREATE_FAILED:
            return self._quota_refused(quota)
        kind = "preempted" if taken else "create-failed"
        self._lose(kind, why, failed=not taken, zone=not taken, state=self._plan.state)
        self._services.emit(Note(self._record.name, f"{kind}: {why}"))
        return Outcome(Wait(why), acted=True)

    def _late_quota_error(self, why: str) -> QuotaError | None:
        """The refusal by a quota that came when the create had been taken already."""
        view = self._look.view
        return quota_error(view.failure, queued=view.queued is not None, what=why)

    def _lose(
        self,
        kind: str,
        detail: str,
        *,
        failed: bool,
        zone: bool = False,
        short: str = "",
        give_up: bool = False,
        state: SliceState = SliceState.LOST,
    ) -> None:
        """Writes down how the incarnation ended and until when what is left alone.

        `zone`: it was for want of capacity or quota there, which other slices and the next hunt should know.
        `short`: `detail` without what is true only now. `give_up`: it is to go although the cloud shows it
        alive.
        """
        services, record = self._services, self._record
        now = services.store.now()
        failures = record.failures + 1 if failed else 0
        until = now + timeouts.next_backoff(failures, record.name) if failed else now
        self._journal(kind, detail)
        backoffs = dict(record.zone_not_before)
        if record.zones:
            backoffs |= zone_backoffs(services, record.spec, record.candidates)
        if zone:
            until = remember_failed(services, record, short or detail).not_before
        backoffs[record.spec.zone] = until
        self._save(
            replace(
                record,
                state=state,
                loss=Loss(now, kind, detail),
                failures=failures,
                not_before=min(backoffs.get(each, 0.0) for each in record.candidates),
                zone_not_before=backoffs,
                incarnation=replace(self._incarnation, given_up=give_up),
            )
        )

    def _doubt(self) -> Outcome:
        self._journal("doubt", self._plan.why)
        missing = self._plan.effect is Effect.DOUBT
        doubt = Doubt(self._services.store.now(), self._plan.why, missing)
        doubted = replace(self._incarnation, doubt=doubt)
        self._save(replace(self._record, state=self._plan.state, incarnation=doubted))
        return Outcome(Wait(self._plan.why), acted=True)

    def _trust(self) -> Outcome:
        self._journal("trust", self._plan.why)
        self._save(replace(self._record, incarnation=replace(self._incarnation, doubt=None)))
        return Outcome(self._plan.verdict, acted=True)

    def _mark_unclear(self) -> Outcome:
        begins = self._incarnation.unclear_since is None
        self._journal("unclear" if begins else "clear", self._plan.why)
        self._save(self._with(unclear_since=self._services.store.now() if begins else None))
        return Outcome(self._plan.verdict, acted=False)

    def _delete(self) -> Outcome:
        services, name = self._services, self._incarnation.cloud_name
        began = services.clock.now()
        # Written in any case: it fails when somebody took the slice over while this process slept too long.
        life = replace(self._incarnation, unseen_since=None) if self._look.shown else self._incarnation
        self._save(replace(self._record, state=self._plan.state, incarnation=life))
        for found in self._doomed():
            claim = claim_of(self._record, self._incarnation, services.store.identity(), found.kind)
            refused = delete_tpu(services, found, claim, self._decide_delete)
            if refused is not None:
                return self._kept(refused)
        services.emit(StepDone(self._record.name, f"delete {name}", "asked", services.clock.now() - began))
        # Not "acted": the deletion takes its time, and looking again at once would only ask once more.
        return Outcome(Wait(f"{name} to be gone"), acted=False)

    def _doomed(self) -> list[Found]:
        """What the look showed of it: its queued resource, which takes its nodes along, or these."""
        view = self._look.view
        if view.queued is not None:
            return [queued_found(view.queued)]
        return [node_found(node) for node in (view.node.parts or (view.node,))] if view.node else []

    def _decide_delete(self, found: Found) -> Refusal | None:
        self._journal("delete", self._plan.why)
        self._services.emit(StepStarted(self._record.name, f"delete {found.name}", self._plan.why))
        return None

    def _kept(self, refused: Refusal) -> Outcome:
        """Not proved to be ours: said once in the trail, and to a person each time."""
        if self._incarnation.kept != refused.why:
            self._journal("kept", refused.why)
            self._save(self._with(kept=refused.why))
        return Outcome(Blocked(f"nothing is deleted: {refused.why}", refused.hint), acted=False)

    def _renew(self) -> Outcome:
        services, record = self._services, self._record
        now = services.store.now()
        ended = ended_grant(services, record)
        if ended:
            hint = f"tpuctl up {record.name} --pay, or tpuctl down {record.name}"
            return Outcome(Blocked(f"{ended}; nothing is restarted after that", hint), acted=False)
        notes = read_notes(services, record.spec, record.candidates if record.zones else ())
        choice = choose_zone(record.candidates, record.zone_not_before, notes, now)
        incarnation = next_incarnation(record, now)
        where = f" in {choice.zone} ({choice.why})" if record.zones else ""
        self._journal("renew", f"{self._plan.why}; asking again as {incarnation.cloud_name}{where}")
        self._save(
            replace(
                record,
                state=SliceState.REQUESTED,
                spec=replace(record.spec, zone=choice.zone),
                incarnation=incarnation,
                last_incarnation=incarnation.number,
            )
        )
        return Outcome(Wait("the next incarnation"), acted=True)

    def _probe_hosts(self) -> Outcome:
        pinned = self._pin_workers()
        if pinned is not None:
            return pinned
        answers = greet_workers(self._services, self._record)
        if answers.answered:
            self._reach.saw(self._record.name)
        if answers.closed:
            why = f"{answers.trouble}: its key is not there yet: passes send it"
            return Outcome(Blind(why), acted=False)
        if not answers.all_well:
            return self._silent(answers)
        now = self._services.store.now()
        incarnation = replace(self._incarnation, ready_at=now, doubt=None)
        answered = counted(len(incarnation.workers), "host")
        self._journal("ready", f"{answered} answered")
        self._save(replace(self._record, state=SliceState.READY, incarnation=incarnation, failures=0))
        took = now - incarnation.requested_at
        self._services.emit(StepDone(self._record.name, "ready", f"{answered} answered", took))
        return Outcome(Done("all hosts answered"), acted=True)

    def _pin_workers(self) -> Outcome | None:
        """Writes addresses and host keys of all workers into the record; an outcome while it cannot."""
        node = self._look.view.node
        found = "the node" if node is None else find_workers(self._services, self._record, node)
        if node is None or isinstance(found, str):
            # Keys that are never published keep a slice from being ready, but are no reason to delete it.
            return Outcome(Wait(str(found)), acted=False)
        if found != self._incarnation.workers or node.uid != self._incarnation.node_uid:
            self._save(
                replace(self._record, incarnation=replace(self._incarnation, workers=found, node_uid=node.uid))
            )
            self._services.ssh_entries.update(self._record.name, host_targets(self._services, self._record))
        return None

    def _silent(self, answers: HostAnswers) -> Outcome:
        """Hosts of a READY node do not answer: wait, own up to being blind, or give the incarnation up."""
        now, incarnation, trouble = self._services.store.now(), self._incarnation, answers.trouble
        if incarnation.doubt is None or incarnation.doubt.missing:
            booting_until = (incarnation.cloud_ready_at or now) + timeouts.BOOT_GRACE_S
            return Outcome(Wait(trouble, booting_until), False) if now < booting_until else self._doubt()
        silent_s = now - incarnation.doubt.since
        node = self._look.view.node
        sick = node is not None and unhealthy(node)
        late = silent_s >= timeouts.BOOT_GRACE_S
        another = answers.answered > 0 or (late and self._reach.another(self._record.name))
        life = Life.UNKNOWN
        if not answers.answered:
            # Where other workers answer and this one does not, the slice is of no use even if it lives.
            life = listen_for_life(self._services, self._record, answers.silent, others_answer=another)
        judged = judge_silence(silent_s, reached_another=another, unhealthy=sick, life=life)
        if judged is Silence.BLIND:
            why = describe_life(life) if life is Life.MOVING else "this machine reaches no other host either"
            return Outcome(Blind(f"{trouble}; {why}"), acted=False)
        if judged is Silence.WAIT:
            return Outcome(Wait(trouble, incarnation.doubt.since + timeouts.UNREACHABLE_MAX_S), acted=False)
        why = f"{trouble} for {silent_s / 60:.0f} min while the node is READY"
        evidence = [
            *(["the API calls it unhealthy"] if sick else []),
            *(["other hosts answer this machine"] if another else []),
            *([describe_life(life)] if life is Life.STILL else []),
        ]
        self._lose("unreachable", f"{why}; {', '.join(evidence)}", failed=True, give_up=True)
        self._services.emit(Warn(self._record.name, f"given up: {why}"))
        return Outcome(Wait(why), acted=True)
