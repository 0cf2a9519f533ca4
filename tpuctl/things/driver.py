"""The driver of provisioning: all that brings hosts to what is asked of them, for passes, commands and runs.

It takes the kinds in their order. Those that each host makes by itself are one job on it; one that hosts share
is made on one of them and copied to the others. Nothing is remembered from step to step: what is there, how far
a job is and who holds something ready for others, the hosts say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby

from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, PartialError, UnreachableError
from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.hosts.deadline import TimedRemote
from tpuctl.hosts.facts import FactsReply, Section
from tpuctl.hosts.provision import (
    PATIENCE_ALONE_S,
    PATIENCE_S,
    UNSEEN,
    Failures,
    Kind,
    Provisioned,
    Unanswered,
    Verdict,
    provision,
    sections_of,
)
from tpuctl.hosts.requests import FactsRequest
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.text import counted, fold_workers
from tpuctl.model.hosts import HostTarget
from tpuctl.model.records import Desired, SliceRecord
from tpuctl.model.verdict import Blocked, Done, Failed, Wait
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_slice
from tpuctl.things.sharing import Shareable, SharingHost, able_to_copy, find_source
from tpuctl.transfer.distribute import distribute
from tpuctl.transfer.host_copies import CopyJob
from tpuctl.transfer.prepare import SLICE_S, deliver_files
from tpuctl.transfer.tree import Content

TRIES = 3
"""Tries after which a failure counts. A device may appear some seconds after its attachment."""
LIMIT_S = 1800.0
"""Where a command sets no limit: an installation alone waits 15 min for the package lock of the boot."""
BRISK_S = 3.0
"""How long a step that has other things to do watches copies."""
Rows = tuple[Mapping[str, str], ...]


class Provisioning:
    """`kinds` on all `targets` of a slice; `step` is called until it says Provisioned, under the slice's lease.

    `owner` is whose copies they are, `until` the end of the step, `also` what else its caller wants to know of
    hosts, `retry` whether what failed is begun again. A command that is `alone`, and waits for nothing else,
    uses all of a step's time to watch hosts at work.
    """

    def __init__(
        self,
        services: Services,
        agent: HostAgent,
        targets: Sequence[HostTarget],
        slice_name: str,
        kinds: Sequence[Kind],
        *,
        owner: str = "",
        until: float | None = None,
        also: Collection[Section] = (),
        retry: bool = True,
        alone: bool = False,
    ) -> None:
        self._services = services
        self._agent = agent
        self._targets = targets
        self._slice = slice_name
        self._groups = [
            tuple(group) for _, group in groupby(kinds, lambda kind: isinstance(kind, Shareable) and kind)
        ]
        self._owner = owner
        self._until = until
        self._also = also
        self._retry = retry
        self._patience_s = PATIENCE_ALONE_S if alone else PATIENCE_S
        self._watch_s = SLICE_S if alone else BRISK_S

    def step(
        self, fence: int, told: Sequence[FactsReply] = (), reached: Callable[[Rows], None] | None = None
    ) -> Verdict:
        """Where that leaves the hosts. They are not asked what they just `told`, in the order of the targets.
        `reached` gets the rows of the kinds that are as asked, also while others are not yet."""
        facts = tuple(told)
        rows: Rows = tuple({} for _ in self._targets)
        for number, group in enumerate(self._groups):
            later = [kind for each in self._groups[number + 1 :] for kind in each]
            also = {*self._also, *(section for kind in later for section in kind.sections)}
            kind = group[0]
            if isinstance(kind, Shareable) and kind.shared:
                verdict = self._share(kind, facts, fence, also)
            else:
                known = {t.worker: each for t, each in zip(self._targets, facts, strict=False)}
                verdict = self._provision(self._targets, group, known, fence, also)
            if not isinstance(verdict, Provisioned):
                return verdict
            rows = tuple({**row, **more} for row, more in zip(rows, verdict.rows, strict=True))
            facts = verdict.facts
            if reached is not None:
                reached(rows)
        return Provisioned(rows, facts)

    def _share(
        self, kind: Shareable, told: Sequence[FactsReply], fence: int, also: Collection[Section]
    ) -> Verdict:
        """One host makes it, the others copy it."""
        until = self._services.clock.now() + self._watch_s - self._patience_s
        facts = {target.worker: each for target, each in zip(self._targets, told, strict=False)}
        if not told:
            asked = FactsRequest(tuple(sorted(sections_of([kind], also))), self._patience_s)
            answers = self._agent.ask(self._targets, asked)
            facts = {answer.worker: answer.value for answer in answers if answer.value is not None}
            if len(facts) < len(self._targets):
                return Unanswered(tuple[Reply[FactsReply], ...](each for each in answers if each.value is None))
        lacking = [target for target in self._targets if kind.lacks(facts[target.worker])]
        blocked = any(isinstance(kind.plan(each), Blocked) for each in facts.values())
        if blocked or not lacking:
            return self._provision(self._targets, (kind,), facts, fence, also)
        source = find_source(kind, facts, self._targets, lacking)
        if source is None and len(lacking) == len(self._targets) > 1:
            first, offering = lacking[0], kind.offering()
            verdict = self._provision([first], (offering,), facts, fence, also)
            while isinstance(verdict, Wait) and self._services.clock.now() < until:
                # The others have nothing to tell until it is done.
                verdict = self._provision([first], (offering,), {}, fence, also)
            if not isinstance(verdict, Provisioned):
                return verdict
            facts[first.worker], lacking = verdict.facts[0], lacking[1:]
            source = find_source(kind, facts, self._targets, lacking)
        if source is None:
            return self._provision(self._targets, (kind,), facts, fence, also)
        have = self._copy(kind, source, lacking, facts, fence)
        if isinstance(have, Wait):
            return have
        made = kind.made_of(source.facts, [facts[target.worker] for target in lacking])
        return self._provision(self._targets, (kind,), facts, fence, also, dict.fromkeys(have, (made,)))

    def _copy(
        self,
        kind: Shareable,
        source: SharingHost,
        lacking: Sequence[HostTarget],
        facts: Mapping[int, FactsReply],
        fence: int,
    ) -> frozenset[int] | Wait:
        """Those workers that have the contents now; others have to do without."""
        able = able_to_copy(kind, source.offer, facts, lacking)
        if not able:
            return frozenset()
        sent = distribute(
            self._agent,
            able,
            Content(source.offer.tree, lambda _: ()),
            clock=self._services.clock,
            emit=self._services.emit,
            until=self._services.clock.now() + self._watch_s,
            job=CopyJob(self._owner, fence),
            complete=[source.target],
            where=source.offer.where,
        )
        if sent.copying:
            return Wait(f"workers copy {kind.name} from worker {source.target.worker}")
        return frozenset(target.worker for target in able) - sent.unfinished - set(sent.failed)

    def _provision(
        self,
        targets: Sequence[HostTarget],
        kinds: Sequence[Kind],
        facts: Mapping[int, FactsReply],
        fence: int,
        also: Collection[Section],
        others: Mapping[int, Sequence[Kind]] = {},
    ) -> Verdict:
        """One step of `kinds`, or of `others` by worker, on each of the `targets`."""
        return provision(
            self._agent,
            targets,
            lambda target: others.get(target.worker, kinds),
            slice_name=self._slice,
            fence=fence,
            deliver=deliver_files(self._services, self._agent, self._until),
            retry=self._retry,
            also=also,
            told=[facts[target.worker] for target in targets if target.worker in facts],
            patience_s=self._patience_s,
        )


def provision_slice(
    services: Services,
    record: SliceRecord,
    kinds: Sequence[Kind],
    *,
    until: float,
    workers: Collection[int] = (),
) -> Provisioning:
    """The hosts of a slice (or some) on their way to `kinds`, for a step that ends at `until`."""
    owner = f"{record.name}-{record.incarnation.number if record.incarnation is not None else 0}"
    agent = HostAgent(TimedRemote(services.remote, services.clock, until), services.agent_source)
    targets = [each for each in host_targets(services, record) if not workers or each.worker in workers]
    return Provisioning(services, agent, targets, record.name, kinds, owner=owner, until=until)


def explain(found: Verdict, slice_name: str, *, tries: float = TRIES) -> Done | Wait | Blocked | Failed:
    """What a step came to, as all loops say it. A failure is waited out until so many `tries`, a silence for
    ever; without tries both count at once."""
    if isinstance(found, Provisioned):
        return Done()
    if isinstance(found, Unanswered):
        workers, first = [reply.worker for reply in found.replies], found.replies[0]
        why = f"worker {fold_workers(workers)} of {slice_name} did not answer: {first.message or first.error}"
        hint = f"tpuctl status {slice_name}"
        return Wait(why) if tries else Failed(UnreachableError(why, hint=hint, details={"workers": workers}))
    if not isinstance(found, Failures):
        return found
    worst = found.worst
    if not worst.permanent and worst.tries < tries:
        return Wait(f"{found.why}; it is tried again")
    details = {"workers": [each.worker for each in found.failures], "log": worst.log}
    why = f"{found.why} ({counted(worst.tries, 'try', 'tries')})"
    return Failed(PartialError(why, hint=found.hint(slice_name), details=details))


def bring_hosts(
    services: Services,
    record: SliceRecord,
    kinds: Sequence[Kind],
    *,
    workers: Collection[int] = (),
    deadline: float | None = None,
    unseen: bool = False,
    owner: str = "",
    retry: bool = True,
) -> Rows:
    """Until every host (or some) is as `kinds` ask; what each says of it. Raises PartialError for what cannot
    be, TpuctlError for what only a person can change, PendingError once `deadline` (epoch seconds) passed.
    Without `retry` a failure or a host that does not answer (UnreachableError) ends it at once.

    `unseen` begins at once: for what no host can have yet, such as a disk that was attached just now. That is
    one call of each host instead of two, and what stands in the way is found all the same, by its job."""
    agent = HostAgent(services.remote, services.agent_source)
    targets = [each for each in host_targets(services, record) if not workers or each.worker in workers]
    driver = Provisioning(services, agent, targets, record.name, kinds, owner=owner, retry=retry, alone=True)
    rows: list[Rows] = [()]
    told = [UNSEEN for _ in targets] if unseen else []

    def step() -> Outcome:
        with take_lease(services, record.name) as held:
            found = driver.step(held.fence, tuple(told))
        told.clear()
        if isinstance(found, Provisioned):
            rows[0] = found.rows
        if isinstance(found, Unanswered):
            _check_wanted(services, record)
        return Outcome(explain(found, record.name, tries=TRIES if retry else 0), acted=False)

    limit = services.clock.now() + LIMIT_S if deadline is None else deadline
    converge(services, record.name, step, deadline=limit)
    return rows[0]


def _check_wanted(services: Services, record: SliceRecord) -> None:
    """Raises ConflictError where the slice was taken down, or has other hosts, since this began: the old ones
    never answer again."""
    now = get_slice(services, record.name).record
    if now.desired is Desired.DOWN or now.last_incarnation != record.last_incarnation:
        why = f"{record.name} was taken down" if now.desired is Desired.DOWN else f"{record.name} has new hosts"
        raise ConflictError(
            f"{why} meanwhile", hint=f"tpuctl status {record.name}, then the same command again"
        )
