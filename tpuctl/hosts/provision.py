"""Provisioning: the one loop that brings hosts to what is asked of them, whatever kind of thing that is.

Facts → plan → one job per host → facts again, which come with its answer where the job ends soon. A `Kind`
knows what is asked and plans, purely, from the facts of one host; this loop asks, begins jobs and judges how
they went. Nothing is remembered here: the host itself tells which job it works on and how far that got, so any
pass of any machine goes on where the last one stopped.

A job is named after its operations: the same plan finds its job again, another one waits until that has ended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.hosts.facts import FactsReply, HostJob, Section
from tpuctl.hosts.requests import FactsRequest, ProvisionRequest
from tpuctl.lib.text import counted, fold_workers
from tpuctl.model.hosts import Blob, FailureKind, HostTarget
from tpuctl.model.verdict import Blocked, Wait, wait_for


class BlockedOnHost(Blocked, frozen=True):
    """Only a person can go on, by a `command` on that host. The hint says what it is for."""

    command: str = ""


NO_ROOT = Blocked(
    "mounting needs root on the hosts, and the login user has none: `sudo -n true` fails there",
    "with OS Login: roles/compute.osAdminLogin; on the simulator: tpuctl sim up --hosts isolated",
)

PROVISION = "provision-"
"""Begins the name of a run that is a provisioning job."""
DEADLINE_S = 3600
"""A job that takes longer hangs; its host ends it."""
RETRY_FIRST_S = 15.0
RETRY_MAX_S = 600.0
KILLED_MAX = 3
"""Jobs that were killed are begun again so often where failures are not."""
PATIENCE_S = 1.0
"""How long hosts wait for the end of a job before they answer: of all costs of a short one, asking again is the
greatest. A pass over many slices has no time for more."""
PATIENCE_ALONE_S = 5.0
"""The same, for a command that waits for nothing else."""


@dataclass(frozen=True)
class Operation:
    """One thing to do on a host; `kind` names it in the agent's table OPERATIONS. `title` is for a person, as
    what is being done: `installing environment a`. `files` are put into the folder in which it is done: small
    ones, and blobs of the store."""

    kind: str
    title: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes | Blob] = field(default_factory=dict)


class Kind(Protocol):
    """One thing that hosts are asked to have, bound to what exactly is asked: `EnvironmentKind(spec)`."""

    @property
    def name(self) -> str:
        """What it is, for a person: `environment a`."""
        ...

    @property
    def sections(self) -> frozenset[Section]:
        """What of the facts `plan` and `row` read."""
        ...

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        """What has to be done on this host, in order; nothing where all is as asked; Blocked where only a
        person can go on, such as without root. Pure, and of the facts alone: same facts, same operations."""
        ...

    def row(self, facts: FactsReply) -> Mapping[str, str]:
        """What the manifest says of this host; asked once `plan` finds nothing to do."""
        ...


Deliver = Callable[[Sequence[HostTarget], str, str, int, Mapping[str, bytes | Blob]], str | Wait]
"""Brings the files of a job (run, attempt, fence) to hosts, as far as the step has time for it. The digest of
the tree that they make, once all targets have it; else what is waited for. Without targets it asks nobody."""


@dataclass(frozen=True)
class Provisioned:
    """Every host is as asked, as it says itself; `rows` are for the manifest, one per target, and `facts` what
    they were read from (none where nothing was asked)."""

    rows: tuple[Mapping[str, str], ...]
    facts: tuple[FactsReply, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class ProvisionFailure:
    """What an operation came to on one worker, `tries` times by now. `log` is a file below the home directory
    there, `hint` what to type next, or what for: then `on_host` is a command for that host."""

    worker: int
    title: str
    message: str
    tries: int
    permanent: bool
    log: str
    hint: str = ""
    on_host: str = ""


def hint_on_host(hint: str | None, command: str, worker: int, slice_name: str) -> str | None:
    """A hint with a `command` for one host, of which neither that host nor a kind knows how it is reached."""
    typed = f"tpuctl exec --worker {worker} {slice_name} -- {command}" if command else None
    return ": ".join(filter(None, (hint, typed))) or None


@dataclass(frozen=True)
class Failures:
    """Some workers did not get what was asked. Others may be done, or at work."""

    failures: tuple[ProvisionFailure, ...]

    @property
    def worst(self) -> ProvisionFailure:
        return max(self.failures, key=lambda each: (each.permanent, each.tries))

    @property
    def why(self) -> str:
        worst = self.worst
        workers = fold_workers(sorted(each.worker for each in self.failures))
        where = "worker" if len(self.failures) == 1 else "workers"
        return f"{worst.title} failed on {where} {workers}: {worst.message}"

    def hint(self, slice_name: str) -> str | None:
        """What to type next; where the host cannot tell, what shows its log."""
        worst = self.worst
        command = worst.on_host if worst.hint or worst.on_host else f"tail -n 50 {worst.log}"
        return hint_on_host(worst.hint, command, worst.worker, slice_name)


@dataclass(frozen=True)
class Unanswered:
    """Some workers did not answer, or with nonsense."""

    replies: tuple[Reply[Any], ...]


UNSEEN = FactsReply(time=0.0, boot_id="")
"""What is `told` of a host where nothing of what is asked can be yet, and nothing has to be known to begin: the
facts that come with the answer of its job are the first look."""

Verdict = Provisioned | Wait | Blocked | Failures | Unanswered


@dataclass(frozen=True)
class HostPlan:
    """What comes next on one host. `begin` are operations to begin now, whose files it has if it is `prepared`;
    `waits` what it is busy with, `failure` what its last job came to, `blocked` what stops it; none of them: it
    is as asked."""

    begin: tuple[Operation, ...] = ()
    prepared: bool = False
    anew: bool = False
    waits: str = ""
    failure: ProvisionFailure | None = None
    blocked: Blocked | None = None


def plan_host(
    worker: int, facts: FactsReply, kinds: Sequence[Kind], run: str, *, retry: bool = True
) -> HostPlan:
    """Pure. `run` is the name of our jobs. Without `retry` a job that failed is not begun again; one that was
    killed is."""
    jobs = facts.jobs or ()
    for job in jobs:
        if job.going:
            ours = "" if job.run == run else f" for {job.run.removeprefix(PROVISION)}"
            return HostPlan(waits=f"{job.doing or 'provisioning'}{ours} ({job.done} of {job.of} done)")
    operations: list[Operation] = []
    blocked: Blocked | None = None
    for kind in kinds:
        hidden = next((facts.failed[each] for each in sorted(kind.sections) if each in facts.failed), None)
        planned = (
            kind.plan(facts) if hidden is None else Blocked(f"{kind.name}: the host cannot tell: {hidden}")
        )
        if isinstance(planned, Blocked):
            blocked = blocked or planned
        else:
            operations += planned
    if not operations:
        return HostPlan(blocked=blocked)
    begin = tuple(operations)
    last = next((job for job in jobs if (job.run, job.attempt) == (run, job_id(begin))), None)
    if last is None or last.state in {"absent", "prepared"}:
        return HostPlan(begin=begin, prepared=last is not None and last.state == "prepared", blocked=blocked)
    failure = _failure(worker, last, begin)
    again = retry or (last.failed is None and last.tries < KILLED_MAX)
    if again and facts.time >= _due_at(last):
        return HostPlan(begin=begin, anew=True, failure=failure if last.tries > 1 else None, blocked=blocked)
    return HostPlan(failure=failure, blocked=blocked)


def _failure(worker: int, job: HostJob, operations: Sequence[Operation]) -> ProvisionFailure:
    log = f".tpuctl/runs/{job.run}/{job.attempt}/stderr.log"
    if job.failed is not None:
        failed = job.failed
        return ProvisionFailure(
            worker, failed.title, failed.message, job.tries, failed.permanent, log, failed.hint, failed.on_host
        )
    why = job.detail or f"it was ended (exit status {job.exit_status})"
    message = "it ended well, but the host is not as asked" if job.succeeded else why
    return ProvisionFailure(worker, job.doing or operations[0].title, message, job.tries, False, log)


def _due_at(job: HostJob) -> float:
    """When a job that ended is begun again; what was killed, or undone since, at once the first time."""
    ended = job.ended_at or 0.0
    if job.failed is None and job.tries < 2:
        return ended
    return ended + min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(job.tries - 1, 10))


def render_operations(operations: Sequence[Operation]) -> list[dict[str, Any]]:
    """As the agent reads them."""
    return [{"kind": o.kind, "title": o.title, "parameters": dict(o.parameters)} for o in operations]


def files_of(operations: Sequence[Operation]) -> dict[str, bytes | Blob]:
    """All files of a job. ValueError for two of one name: operations of one job share a folder."""
    found: dict[str, bytes | Blob] = {}
    for operation in operations:
        for name, content in operation.files.items():
            if found.setdefault(name, content) != content:
                raise ValueError(f"two operations bring a file {name}")
    return found


def job_id(operations: Sequence[Operation]) -> str:
    """16 hex digits that name a job by all that it does."""
    files = {
        name: data.sha256 if isinstance(data, Blob) else hashlib.sha256(data).hexdigest()
        for name, data in files_of(operations).items()
    }
    content = json.dumps([render_operations(operations), files], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def provision(
    agent: HostAgent,
    targets: Sequence[HostTarget],
    kinds: Callable[[HostTarget], Sequence[Kind]],
    *,
    slice_name: str,
    fence: int,
    deliver: Deliver,
    retry: bool = True,
    also: Collection[Section] = (),
    told: Sequence[FactsReply] = (),
    patience_s: float = PATIENCE_S,
) -> Verdict:
    """One step: looks at all hosts, begins what is to be begun, and says where that leaves them. It is called
    again and again, and blocks no longer than its calls to hosts. Where all are as asked that is one call, and
    with jobs that end in `patience_s` two; what else its caller wants to know of them then comes `also`. Where
    they have just `told` that, in the order of `targets`, they are not asked again.

    Hosts know the jobs by `slice_name`. `fence` is that of the slice's lease, under which this is called: a
    host refuses one that is lower than what it has seen. Asks nothing where no kind is given.
    """
    asked = {target.worker: tuple(kinds(target)) for target in targets}
    if not any(asked.values()):
        return Provisioned(tuple({} for _ in targets))
    run = PROVISION + slice_name
    known, silent = list(zip(targets, told, strict=False)), tuple[Reply[Any], ...]()

    def wanted(target: HostTarget) -> FactsRequest:
        return FactsRequest(tuple(sorted(sections_of(asked[target.worker], also))), patience_s)

    if not told:
        answers = agent.ask(targets, wanted)
        silent = tuple(answer for answer in answers if answer.value is None)
        known = [(t, said.value) for t, said in zip(targets, answers, strict=True) if said.value is not None]
    plans = [
        (target, facts, plan_host(target.worker, facts, asked[target.worker], run, retry=retry))
        for target, facts in known
    ]
    begun, ended = _begin(agent, [(t, plan) for t, _, plan in plans if plan.begin], run, fence, deliver, wanted)
    if silent:
        return Unanswered(silent)
    plans = [
        (target, now, plan_host(target.worker, now, asked[target.worker], run, retry=retry))
        if (now := ended.get(target.worker)) is not None
        else (target, facts, plan)
        for target, facts, plan in plans
    ]
    return _judge(plans, begun, asked, slice_name)


def sections_of(kinds: Sequence[Kind], also: Collection[Section] = ()) -> set[Section]:
    """What `provision` has to know of a host of which `kinds` are asked."""
    return {Section.JOBS, *also, *(section for kind in kinds for section in kind.sections)}


def _judge(
    plans: Sequence[tuple[HostTarget, FactsReply, HostPlan]],
    begun: Wait | Unanswered | None,
    asked: Mapping[int, Sequence[Kind]],
    slice_name: str,
) -> Verdict:
    if isinstance(begun, Unanswered):
        return begun
    for target, _, plan in plans:
        if plan.blocked is not None:
            found = plan.blocked
            command = found.command if isinstance(found, BlockedOnHost) else ""
            hint = hint_on_host(found.hint, command, target.worker, slice_name)
            return Blocked(f"worker {target.worker}: {found.why}", hint)
    failures = tuple(plan.failure for _, _, plan in plans if plan.failure is not None)
    if failures:
        return Failures(failures)
    busy = [plan.waits for _, _, plan in plans if plan.waits]
    if isinstance(begun, Wait) and not busy:
        return begun
    working = len(busy) + sum(bool(plan.begin) for _, _, plan in plans)
    if working:
        what = busy[0] if busy else next(plan.begin[0].title for _, _, plan in plans if plan.begin)
        return Wait(f"{counted(working, 'worker')}: {what}")
    rows = tuple(
        {key: value for kind in asked[target.worker] for key, value in kind.row(facts).items()}
        for target, facts, _ in plans
    )
    return Provisioned(rows, tuple(facts for _, facts, _ in plans))


def _begin(
    agent: HostAgent,
    plans: Sequence[tuple[HostTarget, HostPlan]],
    run: str,
    fence: int,
    deliver: Deliver,
    wanted: Callable[[HostTarget], FactsRequest],
) -> tuple[Wait | Unanswered | None, Mapping[int, FactsReply]]:
    """Begins the jobs of hosts; those that do the same get their files together. A host that has said that it
    has them is sent nothing more: where each call takes seconds, a step has no time for both. The facts are
    those that are `wanted` of hosts whose job has ended."""
    ready: dict[int, str | None] = {}
    waits: Wait | None = None
    same: dict[str, list[tuple[HostTarget, HostPlan]]] = {}
    for target, plan in plans:
        same.setdefault(job_id(plan.begin), []).append((target, plan))
    for name, group in same.items():
        files = files_of(group[0][1].begin)
        for prepared in (True, False):
            targets = [target for target, plan in group if plan.prepared is prepared]
            bundle = (
                deliver([] if prepared else targets, run, name, fence, files) if files and targets else None
            )
            if isinstance(bundle, Wait):
                waits = bundle
            else:
                ready.update((target.worker, bundle) for target in targets)
    begin = {target.worker: plan for target, plan in plans if target.worker in ready}
    if not begin:
        return waits, {}

    def request(target: HostTarget) -> ProvisionRequest:
        plan, facts = begin[target.worker], wanted(target)
        return ProvisionRequest(
            run,
            job_id(plan.begin),
            fence,
            tuple(render_operations(plan.begin)),
            DEADLINE_S,
            bundle=ready[target.worker],
            anew=plan.anew,
            sections=facts.sections,
            patience_s=facts.patience_s,
        )

    chosen = [target for target, _ in plans if target.worker in begin]
    answers = agent.ask(chosen, request)
    for target, answer in zip(chosen, answers, strict=True):
        if answer.value is not None and answer.value.state == "absent":  # it lost the files meanwhile
            operations = begin[target.worker].begin
            deliver([target], run, job_id(operations), fence, files_of(operations))
            waits = wait_for(f"worker {target.worker} to get its files again")
    bad = [answer for answer in answers if answer.value is None and answer.error != "busy"]
    # These hosts have just told their facts: one whose answer was cut off is slow, or the step's time was up.
    # The next step sees in its facts whether the job began, or that it is silent by now.
    slow = [reply.worker for reply in bad if reply.result.failure is FailureKind.TIMEOUT]
    if len(slow) < len(bad):
        return Unanswered(tuple(reply for reply in bad if reply.worker not in slow)), {}
    ended = {each.worker: each.value.facts for each in answers if each.value and each.value.facts is not None}
    return (wait_for(f"worker {fold_workers(slow)} to say that it began") if slow else waits), ended
