"""What one step of a run's plan does: to its record, to its workers, and to the slice under it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache

from msgspec.structs import replace

from tpuctl.engine.events import Note, StepDone, StepStarted, Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.envs.compile_cache import describe_cache
from tpuctl.errors import PartialError, StaleRecordError
from tpuctl.hosts.protocol import WorkerState, WorkerStatus
from tpuctl.lib.text import counted
from tpuctl.lib.time import render_span
from tpuctl.model import timeouts
from tpuctl.model.records import (
    FAST_AGAIN,
    GOES_ON,
    MOUNT_BACK,
    MOUNT_LOST,
    SLOW,
    STALLED,
    Attempt,
    AttemptPhase,
    Cause,
    Desired,
    Doubt,
    Failure,
    Fault,
    RunRecord,
    RunState,
    SliceRecord,
    SliceState,
    TimelineEntry,
)
from tpuctl.model.shipped_files import load_failure_table, load_secret_patterns
from tpuctl.model.verdict import Blocked, Wait, wait_for
from tpuctl.provenance.parts import add_attempt, seal_manifest
from tpuctl.runs.attempt import AttemptHosts, attempt_hosts
from tpuctl.runs.failure import (
    Signature,
    WorkerLog,
    describe_failure,
    failed_workers,
    name_failure,
    parse_signatures,
)
from tpuctl.runs.hang import furthest, step_rate
from tpuctl.runs.last_sign import find_alive_until
from tpuctl.runs.log_archive import archive_logs
from tpuctl.runs.mounts import mount_news, mounts_now, troubled_mounts
from tpuctl.runs.plan import RunPlan, RunStep, charge, refused_until, worker_ends
from tpuctl.runs.prepare import Answered, Stuck, mend_mounts, prepare
from tpuctl.runs.probe_run import BadData
from tpuctl.runs.progress import weigh_progress
from tpuctl.runs.set_up import NotSetUp
from tpuctl.runs.stacks import keep_stacks
from tpuctl.slices.desired import goes_after_run, request_down
from tpuctl.slices.disks import disks_for_manifest
from tpuctl.slices.enrollment import why_closed
from tpuctl.slices.loss import give_up_incarnation
from tpuctl.slices.mounts import mounts_for_manifest
from tpuctl.slices.replacement import find_replacement_limit
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import Versioned, find_slice, list_attempts, save, save_attempt_history

TAIL_BYTES = 64 << 10
"""Of each log of a worker that failed, to find out why."""


@cache
def _signatures() -> tuple[Signature, ...]:
    return parse_signatures(load_failure_table())


def _is_hardware(failure: Failure) -> bool:
    return any(row.hardware for row in _signatures() if row.id == failure.signature)


_OF_THE_PROGRAM = frozenset({Cause.FAILED, Cause.RESTART_ASKED, Cause.NOT_JOINED})
"""Ends for which a mount that died may be the reason."""


_OTHERS_TELL = {Cause.FAILED, Cause.NOT_JOINED}
"""Ends at which what the other workers wait for says something; they are about to be stopped."""


class RunEffects:
    """The effects of one plan for one run, under the lease of its slice. Calls to hosts end at `until`."""

    def __init__(
        self,
        services: Services,
        stored: Versioned[RunRecord],
        slice_: SliceRecord | None,
        workers: Sequence[WorkerStatus],
        fence: int,
        until: float,
    ) -> None:
        self._until = until
        self._services = services
        self._stored = stored
        self._slice = slice_
        self._workers = workers
        self._fence = fence

    def apply(self, plan: RunPlan) -> Outcome:
        actions: dict[RunStep, Callable[[RunPlan], Outcome]] = {
            RunStep.NEW_ATTEMPT: self._new_attempt,
            RunStep.PREPARE: self._prepare,
            RunStep.START: self._start,
            RunStep.MARK_RUNNING: self._mark_running,
            RunStep.SUSPECT: self._suspect,
            RunStep.CLEAR: self._clear,
            RunStep.MARK_JOINED: self._mark_joined,
            RunStep.MARK_MOUNTS: self._mark_mounts,
            RunStep.MEND_MOUNTS: self._mend_mounts,
            RunStep.MARK_STALLED: self._mark_stalled,
            RunStep.MARK_PACE: self._mark_pace,
            RunStep.DECIDE: self._decide,
            RunStep.STOP_WORKERS: self._stop_workers,
            RunStep.END_ATTEMPT: self._end_attempt,
            RunStep.FINISH: self._finish,
        }
        if plan.step is None:
            return Outcome(plan.verdict, acted=False)
        return actions[plan.step](plan)

    @property
    def run(self) -> RunRecord:
        """As the effects so far have left it."""
        return self._stored.record

    @property
    def _attempt(self) -> Attempt:
        attempt = self.run.attempt
        if attempt is None:
            raise StaleRecordError(f"run {self.run.id} has no attempt")
        return attempt

    def _save(self, run: RunRecord) -> None:
        self._stored = save(self._services, self._stored, run)

    def _save_attempt(self, attempt: Attempt, **run_changes: object) -> None:
        self._save(replace(self.run, attempt=attempt, **run_changes))

    def _journal(self, action: str, reason: str) -> None:
        incarnation = self._slice.incarnation if self._slice else None
        record_decision(
            self._services,
            self.run.key,
            action,
            reason,
            incarnation=incarnation.cloud_name if incarnation else "",
            fence=self._fence,
        )

    def _entry(self, event: str, detail: str = "") -> TimelineEntry:
        return TimelineEntry(self._services.store.now(), event, detail)

    def _hosts(self) -> AttemptHosts | None:
        return attempt_hosts(self._services, self.run, self._slice, self._until)

    def _new_attempt(self, plan: RunPlan) -> Outcome:
        run, slice_ = self.run, self._slice
        if slice_ is None or slice_.incarnation is None:
            return Outcome(plan.verdict, acted=False)
        number = 1 if run.attempt is None else run.attempt.number + 1
        everybody = tuple(range(len(slice_.incarnation.workers)))
        attempt = Attempt(
            number=number,
            incarnation=slice_.incarnation.number,
            fence=self._fence,
            state=AttemptPhase.PREPARING,
            created_at=self._services.store.now(),
            workers=run.spec.workers or everybody,
            slices=slice_.spec.slices if run.spec.workers in ((), everybody) else 1,
            node_uid=slice_.incarnation.node_uid,
            zone=slice_.spec.zone,
            requested_at=slice_.incarnation.requested_at,
            provisioned_at=slice_.incarnation.cloud_ready_at,
            ready_at=slice_.incarnation.ready_at,
            timeline=(self._entry("attempt", f"on {slice_.incarnation.cloud_name}"),),
        )
        self._journal("attempt", f"attempt {number}: {plan.why}")
        self._services.emit(StepStarted(run.id, f"attempt {number}", plan.why))
        self._save_attempt(attempt, state=RunState.PREPARING)
        return Outcome(wait_for("the workers"), acted=True)

    def _prepare(self, _plan: RunPlan) -> Outcome:
        hosts = self._hosts()
        if hosts is None:
            return Outcome(wait_for("its slice"), acted=False)
        try:
            prepared = prepare(hosts)
        except PartialError as error:
            return self._not_acknowledged(error)
        if isinstance(prepared, Stuck):
            return self._stuck(prepared)
        if isinstance(prepared, BadData):
            return self._set_cause(Cause.BAD_DATA, prepared.why)
        if isinstance(prepared, NotSetUp):
            return self._not_set_up(prepared)
        if isinstance(prepared, str):
            return Outcome(wait_for(prepared), acted=False)
        if isinstance(prepared, Answered):
            self._save_attempt(
                replace(
                    self._attempt,
                    hosts=prepared.hosts,
                    checks=tuple(hosts.checks),
                    suspect_since=None,
                    suspect_why="",
                    mend="",
                )
            )
            return Outcome(wait_for("slow workers"), acted=True)
        attempt = replace(
            self._attempt,
            state=AttemptPhase.STARTING,
            coordinator=prepared.coordinator,
            hosts=prepared.hosts,
            checks=tuple(hosts.checks),
            suspect_since=None,
            suspect_why="",
            mend="",
            timeline=(
                *self._attempt.timeline,
                self._entry("prepared", "; ".join(filter(None, ["every worker acknowledged", prepared.note]))),
            ),
        )
        self._save_attempt(attempt)
        self._services.emit(
            StepDone(
                self.run.id,
                "prepare",
                f"code and environment on {counted(len(attempt.workers), 'worker')}",
                self._services.store.now() - attempt.created_at,
            )
        )
        if prepared.note:
            self._journal("coordinator", prepared.note)
            self._services.emit(Note(self.run.id, prepared.note))
        if hosts.late():
            return Outcome(wait_for("slow workers"), acted=True)
        # At once: to ask every worker whether it is prepared would only repeat what each has just said. By the
        # attempt as it is now: it has the coordinator's address and the environment of each worker.
        ready = self._hosts()
        if ready is None:
            return Outcome(wait_for("its slice"), acted=False)
        return self._start_workers(ready, "every worker acknowledged the code")

    def _stuck(self, found: Stuck) -> Outcome:
        """Said once in the journal, and by `status` and `runs` until it is gone: its slice costs money."""
        if self._attempt.suspect_why != found.why:
            self._journal("blocked", f"{found.why}: {found.hint}" if found.hint else found.why)
            self._save_attempt(replace(self._attempt, suspect_why=found.why))
        return Outcome(Blocked(found.why, found.hint), acted=False)

    def _not_set_up(self, found: NotSetUp) -> Outcome:
        """Over once it is found again, after another look at the slice, and before it has cost anything; what
        ran before, and what may pass, is tried for a while, as a network may come up after its hosts. A
        suspicion of something else does not count."""
        attempt, now = self._attempt, self._services.store.now()
        since = attempt.suspect_since if attempt.mend == found.hint else None
        if since is None:
            self._save_attempt(replace(attempt, suspect_since=now, suspect_why=found.told, mend=found.hint))
        patient = attempt.number > 1 or found.may_pass
        if since is None or now < since + (timeouts.VERDICT_MAX_S if patient else timeouts.POLL_FIRST_S):
            return Outcome(Wait(found.told), acted=False)
        return self._set_cause(Cause.NOT_SET_UP, found.told, found.hint)

    def _not_acknowledged(self, error: PartialError) -> Outcome:
        """A worker could not be prepared or started: time for the cloud to show a loss, then a charge.

        Workers that did not answer are never the user's failure, and those that do not know this machine's key
        are nobody's. Hosts that differ do so until somebody mends them.
        """
        attempt = self._attempt
        if error.details.get("refused") and self._slice is not None:
            return Outcome(why_closed(self._services, self._slice, error.message), acted=False)
        if error.details.get("broken"):
            return self._promise_broken(error)
        now = self._services.store.now()
        since, lost = attempt.suspect_since, bool(error.details.get("unreached"))
        differ = bool(error.details.get("differences"))
        cause = Cause.HOST_LOST if lost else Cause.DRIFTED if differ else Cause.FAILED
        until = refused_until(self.run, attempt, cause, now, lasts=error.hint is not None)
        if since is None and (now < until or cause is not Cause.DRIFTED):
            self._save_attempt(replace(attempt, suspect_since=now, suspect_why=error.message))
            if lost:
                self._tell_suspicion(error.message)
            return Outcome(Wait(error.message), acted=False)
        if now < until:
            return Outcome(Wait(error.message, until), acted=False)
        return self._set_cause(cause, error.message)

    def _promise_broken(self, error: PartialError) -> Outcome:
        """A host lost a disk or mount after it was seen: looked for again before anything started, else the
        attempt is over, at nobody's expense."""
        attempt = self._attempt
        if attempt.state is not AttemptPhase.PREPARING:
            return self._set_cause(Cause.HOST_LOST, error.message)
        self._journal("prepare again", error.message)
        self._save_attempt(replace(attempt, hosts=(), checks=()))
        return Outcome(Wait(error.message), acted=False)

    def _start(self, plan: RunPlan) -> Outcome:
        hosts = self._hosts()
        if hosts is None:
            return Outcome(wait_for("its slice"), acted=False)
        return self._start_workers(hosts, plan.why)

    def _start_workers(self, hosts: AttemptHosts, why: str) -> Outcome:
        self._journal("start", why)
        try:
            begun = hosts.start()
        except PartialError as error:
            return self._not_acknowledged(error)
        if begun:
            return self._record_start(hosts.variables)
        return Outcome(wait_for("every worker to run"), acted=True)

    def _mark_running(self, _plan: RunPlan) -> Outcome:
        """The answer to the start was lost: asked again, hosts start nothing twice and tell the variables."""
        hosts, variables = self._hosts(), self._attempt.variables
        if hosts is not None and not variables:
            with suppress(PartialError):  # every worker runs all the same; only the record has less
                hosts.start()
                variables = hosts.variables
        return self._record_start(variables)

    def _record_start(self, variables: tuple[Mapping[str, str], ...]) -> Outcome:
        attempt = replace(
            self._attempt,
            state=AttemptPhase.RUNNING,
            started_at=self._services.store.now(),
            variables=variables,
            suspect_since=None,
            suspect_reads=0,
            timeline=(*self._attempt.timeline, self._entry("started", "every worker runs")),
        )
        self._save_attempt(attempt, state=RunState.RUNNING)
        self._services.emit(
            StepDone(
                self.run.id,
                f"attempt {attempt.number}",
                f"runs on {counted(len(attempt.workers), 'worker')}",
                self._services.store.now() - attempt.created_at,
            )
        )
        return Outcome(wait_for("the run"), acted=True)

    def _suspect(self, plan: RunPlan) -> Outcome:
        attempt = self._attempt
        first = attempt.suspect_since is None
        now = self._services.store.now()
        self._save_attempt(
            replace(
                attempt,
                suspect_since=now if first else attempt.suspect_since,
                suspect_reads=attempt.suspect_reads + 1,
                suspect_why=plan.why,
            )
        )
        if first:
            self._tell_suspicion(plan.why)
        return Outcome(Wait(f"finding out why: {plan.why}"), acted=False)

    def _tell_suspicion(self, why: str) -> None:
        silent = any(worker.state is WorkerState.UNREACHABLE for worker in self._workers)
        if silent and self._slice is not None:
            limit_s = find_replacement_limit(self._services, self._slice)
            why = f"{why}; hosts that stay silent are given up after {render_span(limit_s)}"
        self._journal("suspect", why)
        self._services.emit(Note(self.run.id, f"{why}; looking whether the slice is still there"))

    def _clear(self, plan: RunPlan) -> Outcome:
        self._journal("cleared", plan.why)
        self._save_attempt(replace(self._attempt, suspect_since=None, suspect_reads=0, suspect_why=""))
        return Outcome(wait_for("the run"), acted=True)

    def _mark_joined(self, plan: RunPlan) -> Outcome:
        timeline = (*self._attempt.timeline, self._entry("joined", plan.why))
        self._save_attempt(replace(self._attempt, joined=plan.why, timeline=timeline))
        return Outcome(wait_for("the run"), acted=True)

    def _mark_stalled(self, plan: RunPlan) -> Outcome:
        """Says that the run stands still, with the stacks of its workers; or that it goes on again."""
        stalled = plan.why
        detail = f"stands still: {stalled}" if stalled else f"no longer: {self._attempt.stalled}"
        entry = self._entry(STALLED if stalled else GOES_ON, detail)
        self._journal(entry.event, entry.detail)
        if stalled:
            self._keep_stacks()
            hint = f"`tpuctl stacks {self.run.id}` shows where"
            self._services.emit(Warn(self.run.id, f"{detail}; {hint}"))
        timeline = (*self._attempt.timeline, entry)
        self._save_attempt(replace(self._attempt, stalled=stalled, timeline=timeline))
        return Outcome(wait_for("the run"), acted=True)

    def _mark_pace(self, plan: RunPlan) -> Outcome:
        """Says that steps have become slow, or are not any more."""
        entry = self._entry(SLOW if plan.usual_rate else FAST_AGAIN, plan.why)
        self._journal(entry.event, entry.detail)
        said = f"{entry.event}: {entry.detail}".replace("-", " ")
        self._services.emit(Warn(self.run.id, said) if plan.usual_rate else Note(self.run.id, said))
        timeline = (*self._attempt.timeline, entry)
        self._save_attempt(replace(self._attempt, usual_rate=plan.usual_rate, timeline=timeline))
        return Outcome(wait_for("the run"), acted=True)

    def _keep_stacks(self, workers: Iterable[int] | None = None) -> None:
        chosen = None if workers is None else set(workers)
        hosts = self._hosts()
        if hosts is not None and chosen != set():
            keep_stacks(hosts, chosen)

    def _mark_mounts(self, plan: RunPlan) -> Outcome:
        """Tells of mounts that died under the run, or are well again."""
        news = mount_news(self._attempt.mounts, plan.mounts)
        self._journal("mounts", plan.why)
        entries = [self._entry(MOUNT_BACK if each.well else MOUNT_LOST, each.text) for each in news]
        timeline = (*self._attempt.timeline, *entries)
        self._save_attempt(replace(self._attempt, mounts=plan.mounts, timeline=timeline))
        for each in news:
            said = f"mount {each.text}"
            self._services.emit(Note(self.run.id, said) if each.well else Warn(self.run.id, said))
        return Outcome(wait_for("the run"), acted=True)

    def _mend_mounts(self, plan: RunPlan) -> Outcome:
        """Mounts what nothing on its host keeps any more. The program goes on, if it can."""
        hosts = self._hosts()
        why = mend_mounts(hosts) if hosts is not None else ""
        return Outcome(Wait(f"the run; {why or plan.why}"), acted=False)

    def _decide(self, plan: RunPlan) -> Outcome:
        if plan.cause is Cause.STALLED:
            self._keep_stacks()
        elif plan.cause in _OTHERS_TELL:
            self._keep_stacks(w.worker for w in self._workers if w.state is WorkerState.RUNNING)
        cause, why = plan.cause or Cause.FAILED, plan.why
        if cause in _OF_THE_PROGRAM:
            now = mounts_now(self._attempt, self._slice, self._workers)
            said = troubled_mounts(
                {(each.worker, each.path): each for each in (*self._attempt.mounts, *now)}.values()
            )
            why = f"{why}; {said}" if said else why
        return self._set_cause(cause, why)

    def _set_cause(self, cause: Cause, why: str, mend: str = "") -> Outcome:
        self._journal(str(cause), why)
        attempt = replace(
            self._attempt,
            state=AttemptPhase.ENDING,
            cause=cause,
            ending_since=self._services.store.now(),
            suspect_why=why,
            mend=mend,
            timeline=(*self._attempt.timeline, self._entry(str(cause), why)),
        )
        state = RunState.STOPPING if cause is Cause.STOPPED else self.run.state
        self._save_attempt(attempt, state=state)
        return Outcome(wait_for("the attempt to end"), acted=True)

    def _stop_workers(self, _plan: RunPlan) -> Outcome:
        hosts = self._hosts()
        if hosts is not None:
            hosts.stop(self.run.spec.policy.grace_s)
        return Outcome(wait_for("workers to stop"), acted=False)

    def _end_attempt(self, plan: RunPlan) -> Outcome:
        hosts = self._hosts()
        if hosts is not None and self._attempt.started_at is None:
            hosts.stop_preparations()
        if hosts is not None and not self._collect(hosts):
            return Outcome(wait_for("the rest of the logs"), acted=True)
        archive_logs(self._services, self.run, self._attempt)
        failure = self._name_failure()
        cause = self._attempt.cause
        if cause is Cause.HOST_LOST and failure is not None and not failure.retry:
            cause = Cause.FAILED  # a bug is no preemption, whatever happened to other hosts
        ahead, ended_at, alive_at = furthest(self._workers), self._services.store.now(), None
        if hosts is None and self._attempt.cause is Cause.PREEMPTED:
            # It was over when its slice was seen gone, and that had been so since the last sign of it.
            ended_at = self._attempt.ending_since or ended_at
            alive_at = find_alive_until(self._services, self.run, self._attempt, ended_at)
        attempt = replace(
            self._attempt,
            state=AttemptPhase.ENDED,
            cause=cause,
            failure=failure,
            step=ahead.step if ahead is not None else None,
            steps=ahead.steps if ahead is not None else None,
            steps_per_s=step_rate(ahead) if ahead is not None else None,
            ended_at=ended_at,
            alive_at=alive_at,
            hosts=_with_cache(self._attempt.hosts, self._workers),
            ends=worker_ends(self._workers) or worker_ends(_unseen(self._attempt)),
            timeline=(*self._attempt.timeline, self._entry("ended", plan.why)),
        )
        run = charge(self.run, attempt, self._services.store.now())
        self._emit_end(run, attempt, self._keep_diagnosis(hosts, failure))
        run = weigh_progress(self._services, run, attempt)
        self._write_manifest(run, attempt)
        save_attempt_history(self._services, run, attempt)
        said = f" ({describe_failure(failure)})" if failure is not None else ""
        self._journal("ended", f"attempt {attempt.number}: {attempt.cause}{said}; run is {run.state}")
        if self._attempt.cause in {Cause.HOST_LOST, Cause.PREEMPTED}:
            self._doubt_slice(attempt)
        self._replace_hardware(run, attempt)
        if run.state.final:
            # Before the run is final: a crash in between must not leave a slice that nobody releases.
            run = replace(run, totals=seal_manifest(self._services, run, self._slice))
            self._release_slice(run)
        self._save(run)
        return Outcome(wait_for("the next attempt"), acted=True)

    def _name_failure(self) -> Failure | None:
        """What the failure of the attempt means, by what its workers wrote last."""
        run, number = self.run, self._attempt.number
        logs = {}
        for worker in failed_workers(self._workers):
            out, err = (
                self._services.logs.tail(run.id, number, worker.worker, stream, TAIL_BYTES).decode(
                    errors="replace"
                )
                for stream in ("stdout", "stderr")
            )
            logs[worker.worker] = WorkerLog(out, err)
        failure = name_failure(_signatures(), run, self._attempt, self._workers, logs)
        if failure is None:
            return None
        redact = load_secret_patterns().redact  # a record may be shared, as a log is not
        evidence = redact(failure.evidence)
        return replace(
            failure, evidence=evidence, meaning=redact(failure.meaning), remedy=redact(failure.remedy)
        )

    def _keep_diagnosis(self, hosts: AttemptHosts | None, failure: Failure | None) -> str:
        """Has the host of the worker with the cause say how it stands; where on this machine that is."""
        if hosts is None or failure is None or failure.worker is None:
            return ""
        if failure.whose is Fault.CODE and not failure.retry:
            return ""  # its host has no part in it
        hosts.keep_diagnosis({failure.worker})
        path = self._services.logs.path(self.run.id, self._attempt.number, failure.worker, "host")
        return f"; how its host stood: {path}"

    def _emit_end(self, run: RunRecord, attempt: Attempt, diagnosis: str) -> None:
        """Says how the attempt ended: below what its workers wrote, such as a traceback."""
        if attempt.cause in {Cause.SUCCEEDED, Cause.STOPPED}:
            return
        said = f"attempt {attempt.number} ended ({attempt.cause})"
        if attempt.cause in {Cause.DRIFTED, Cause.NOT_SET_UP}:
            self._services.emit(Note(run.id, said))  # why is what the run ends with
            return
        said = f"{said}: {attempt.suspect_why}"
        failure = attempt.failure
        if failure is not None:
            again = "not tried again" if run.state.final else "tried again"
            said = f"{said}; {describe_failure(failure)}; {again}{diagnosis}"
        self._services.emit(Note(run.id, said))

    def _replace_hardware(self, run: RunRecord, attempt: Attempt) -> None:
        """Asks for another slice after the second failure of the hardware of one worker of this one."""
        now, slice_ = attempt.failure, self._slice
        if now is None or slice_ is None or run.state.final or not _is_hardware(now):
            return
        before = [
            each.failure
            for each in list_attempts(self._services, run.id)
            if each.number < attempt.number and each.incarnation == attempt.incarnation
        ]
        if any(each is not None and each.worker == now.worker and _is_hardware(each) for each in before):
            why = f"worker {now.worker} failed twice: {now.meaning} ({now.signature})"
            give_up_incarnation(self._services, run.slice_name, attempt.incarnation, why, fence=self._fence)

    def _collect(self, hosts: AttemptHosts) -> bool:
        """What the workers wrote and nobody followed. False when there is more than one step may fetch: also
        where the time was up before a worker answered that says that it lives, for a while."""
        while True:
            fetched = hosts.fetch_logs(emit=True)
            if not fetched.more:
                return not (self._patience() and self._answering().intersection(fetched.unread))
            if self._services.clock.now() >= self._until:
                return False

    def _patience(self) -> bool:
        """Whether logs are still waited for that do not come in time."""
        since = self._attempt.ending_since
        return since is not None and self._services.store.now() < since + timeouts.VERDICT_MAX_S

    def _answering(self) -> set[int]:
        """Workers that said how the attempt stands when they were looked at."""
        silent = {WorkerState.UNREACHABLE, WorkerState.CLOSED}
        return {info.worker for info in self._workers if info.state not in silent}

    def _write_manifest(self, run: RunRecord, attempt: Attempt) -> None:
        add_attempt(
            self._services,
            run,
            self._slice,
            attempt,
            disks=disks_for_manifest(self._services, self._slice, attempt.hosts),
            mounts=mounts_for_manifest(self._slice),
        )

    def _finish(self, plan: RunPlan) -> Outcome:
        state = plan.state or RunState.STOPPED
        self._journal(str(state), plan.why)
        run = replace(self.run, state=state, reason=plan.why, ended_at=self._services.store.now())
        run = replace(run, totals=seal_manifest(self._services, run, self._slice))
        self._release_slice(run)
        self._save(run)
        return Outcome(wait_for("the end"), acted=True)

    def _doubt_slice(self, attempt: Attempt) -> None:
        """Hosts were lost while the cloud showed the node alive: the slice is ready again when all answer."""
        stored = find_slice(self._services, self.run.slice_name)
        record = stored.record if stored else None
        if stored is None or record is None or record.state is not SliceState.READY:
            return
        if record.incarnation is None or record.incarnation.number != attempt.incarnation:
            return
        silent = any(worker.state is WorkerState.UNREACHABLE for worker in self._workers)
        since = attempt.suspect_since if silent else None  # silence goes on: it does not begin anew
        doubt = Doubt(since or self._services.store.now(), attempt.suspect_why)
        doubted = replace(record.incarnation, doubt=doubt)
        record_decision(self._services, record.key, "doubt", attempt.suspect_why, fence=self._fence)
        save(self._services, stored, replace(record, state=SliceState.BOOTING, incarnation=doubted))

    def _release_slice(self, run: RunRecord) -> None:
        """A slice made for this run goes with it, and one that is to go waited for its end."""
        stored = find_slice(self._services, run.slice_name)
        if stored is not None and goes_after_run(stored.record):
            request_down(self._services, run.slice_name)
            return
        if not run.spec.owns_slice or run.spec.keep_slice or self._slice is None:
            return
        if self._slice.desired is Desired.UP and self._slice.run_id == run.id:
            request_down(self._services, run.slice_name, why=f"run {run.id}, for which it was made, is over")


def _with_cache(
    rows: Sequence[Mapping[str, str]], workers: Sequence[WorkerStatus]
) -> tuple[Mapping[str, str], ...]:
    """The rows of hosts, with what their programs loaded of the compile cache where they said."""
    said = {
        str(worker.worker): describe_cache(
            sum(r.loaded for r in worker.join), sum(r.asked for r in worker.join)
        )
        for worker in workers
    }
    return tuple(
        {**row, "compile_cache": said[row["worker"]]} if said.get(row["worker"]) else row for row in rows
    )


def _unseen(attempt: Attempt) -> list[WorkerStatus]:
    return [WorkerStatus(worker, WorkerState.UNREACHABLE) for worker in attempt.workers]
