"""An environment on the hosts of a slice, installed and proved once: one host installs it from its wheels and
seals it, the others copy the files that it became, and look at them as they would at their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tpuctl.engine.services import Services
from tpuctl.envs.facts import find_sealed, free_bytes
from tpuctl.envs.pinned import ARCHIVE, PinnedEnvironment, SealedFile, bytes_of_archive, environment_key
from tpuctl.envs.plan import SPARE_BYTES, EnvironmentKind
from tpuctl.envs.spec import InstallFrom
from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.hosts.facts import Facts, Section
from tpuctl.hosts.provision import (
    PATIENCE_ALONE_S,
    PATIENCE_S,
    Provisioned,
    Unanswered,
    Verdict,
    provision,
    sections_of,
)
from tpuctl.model.hosts import HostTarget
from tpuctl.model.verdict import Blocked, Wait
from tpuctl.transfer.distribute import distribute_in_steps
from tpuctl.transfer.host_copies import CopyJob
from tpuctl.transfer.lacking import Where
from tpuctl.transfer.prepare import SLICE_S, deliver_files
from tpuctl.transfer.tree import Blob, Content, TreeFile, render_tree

BRISK_S = 3.0
"""So long a step that has other things to do watches copies."""
AREA = Where("sealed", hosts_only=True)
MakeKind = Callable[[bool, Sequence[SealedFile]], EnvironmentKind]
"""The environment on a host that is to seal it, or that is made of what is sealed."""


class SharedInstall:
    """One environment on all `targets`; `step` is called until it says Provisioned, under the slice's lease.

    A command that is `alone`, and waits for nothing else, uses all of a step's time to watch hosts at work.
    `owner` is whose copies and tries they are, `until` the end of the step, `also` what else its caller wants
    to know of hosts, `retry` whether what failed is tried again.

    Nothing is remembered from step to step: which host has sealed it, how far a copy is and what is installed
    the hosts say.
    """

    def __init__(
        self,
        services: Services,
        agent: HostAgent,
        targets: Sequence[HostTarget],
        pinned: PinnedEnvironment,
        make_kind: MakeKind,
        *,
        slice_name: str,
        owner: str,
        alone: bool,
        retry: bool = False,
        until: float | None = None,
        also: Collection[Section] = (),
    ) -> None:
        self._services = services
        self._agent = agent
        self._targets = targets
        self._pinned = pinned
        self._make_kind = make_kind
        self._plain = make_kind(False, ())
        self._slice = slice_name
        self._owner = owner
        self._retry = retry
        self._until = until
        self._also = also
        self._patience_s = PATIENCE_ALONE_S if alone else PATIENCE_S
        self._watch_s = SLICE_S if alone else BRISK_S

    @property
    def sections(self) -> frozenset[Section]:
        """Of the facts of hosts, those that `step` looks at."""
        return self._plain.sections

    def step(self, fence: int, told: Sequence[Facts] = ()) -> Verdict:
        """Where that leaves the hosts, after no more than STEP_MAX_S. They are not asked what they just `told`,
        in the order of the targets."""
        until = self._services.clock.now() + self._watch_s - self._patience_s
        facts = {target.worker: each for target, each in zip(self._targets, told, strict=False)}
        if not told:
            asked = {
                "sections": sorted(sections_of([self._plain], self._also)),
                "patience_s": self._patience_s,
            }
            answers = self._agent.facts(self._targets, asked)
            facts = {answer.worker: answer.value for answer in answers if answer.value is not None}
            if len(facts) < len(self._targets):
                return Unanswered(tuple[Reply[Facts], ...](each for each in answers if each.value is None))
        lacking = [target for target in self._targets if self._plain.lacks(facts[target.worker])]
        blocked = any(isinstance(self._plain.plan(each), Blocked) for each in facts.values())
        if blocked or not lacking or not self._shareable():
            return self._provision(self._targets, facts, fence)
        source = self._source(facts, lacking)
        if source is None and len(lacking) == len(self._targets) > 1:
            first = lacking[0]
            verdict = self._provision([first], facts, fence, seal=True)
            while isinstance(verdict, Wait) and self._services.clock.now() < until:
                # The others have nothing to tell until it is done.
                verdict = self._provision([first], {}, fence, seal=True)
            if not isinstance(verdict, Provisioned):
                return verdict
            facts[first.worker] = verdict.facts[0]
            source, lacking = self._source(facts, lacking[1:]), lacking[1:]
        if source is None:
            return self._provision(self._targets, facts, fence)
        host, sealed = source
        have = self._copy(host, sealed, lacking, facts, fence)
        if isinstance(have, Wait):
            return have
        return self._provision(self._targets, facts, fence, sealed=dict.fromkeys(have, sealed))

    def _shareable(self) -> bool:
        """Whether it is made of wheels by uv, so that its files are the same everywhere."""
        spec = self._pinned.spec
        return spec.unmanaged is None and spec.install_from is not InstallFrom.INDEX

    def _source(
        self, facts: Mapping[int, Facts], lacking: Sequence[HostTarget]
    ) -> tuple[HostTarget, tuple[SealedFile, ...]] | None:
        """A host that has sealed it, with the Python that those have who lack it."""
        wanted = {self._plain.minor(facts[target.worker]) for target in lacking}
        if len(wanted) != 1 or (minor := wanted.pop()) is None:
            return None
        key = environment_key(self._pinned, minor)
        for target in self._targets:
            if target not in lacking and (found := find_sealed(facts[target.worker], key)):
                return target, found
        return None

    def _copy(
        self,
        source: HostTarget,
        sealed: Sequence[SealedFile],
        lacking: Sequence[HostTarget],
        facts: Mapping[int, Facts],
        fence: int,
    ) -> frozenset[int] | Wait:
        """Those workers that have the sealed contents now; others have to do without."""
        need = sum(each.size for each in sealed) + bytes_of_archive(sealed) + SPARE_BYTES
        able = [
            target
            for target in lacking
            if not any(job.going for job in facts[target.worker].jobs or ())
            and ((free := free_bytes(facts[target.worker])) is None or free >= need)
        ]
        if not able:
            return frozenset()
        tree = render_tree(
            TreeFile(
                each.path if each.path == ARCHIVE else f"env/{each.path}",
                each.mode,
                Blob(each.sha256, each.size),
            )
            for each in sealed
        )
        sent = distribute_in_steps(
            self._agent,
            able,
            Content(tree, lambda _: ()),
            clock=self._services.clock,
            emit=self._services.emit,
            until=self._services.clock.now() + self._watch_s,
            job=CopyJob(self._owner, fence),
            complete=[source],
            where=AREA,
        )
        if sent.copying:
            return Wait(f"workers copy environment {self._pinned.spec.name} from worker {source.worker}")
        return frozenset(target.worker for target in able) - sent.unfinished - set(sent.failed)

    def _provision(
        self,
        targets: Sequence[HostTarget],
        facts: Mapping[int, Facts],
        fence: int,
        *,
        seal: bool = False,
        sealed: Mapping[int, Sequence[SealedFile]] = {},
    ) -> Verdict:
        return provision(
            self._agent,
            targets,
            lambda target: (self._make_kind(seal, sealed.get(target.worker, ())),),
            slice_name=self._slice,
            fence=fence,
            deliver=deliver_files(self._services, self._agent, self._until),
            retry=self._retry,
            also=self._also,
            told=[facts[target.worker] for target in targets if target.worker in facts],
            patience_s=self._patience_s,
        )
