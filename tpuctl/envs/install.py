"""Pinned environments on hosts: the loop of provisioning with one kind, for a run's attempt or by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from tpuctl.engine.events import Note
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.envs.compile_cache import CompileCache, bytecode_directories, compile_cache
from tpuctl.envs.drift import DISK, HOLDERS, HUGEPAGES, LOOKED_AT, Seen, compare_hosts, skew_of
from tpuctl.envs.pinned import PinnedEnvironment, SealedFile, parse_frozen
from tpuctl.envs.plan import EnvironmentKind
from tpuctl.envs.share import SharedInstall
from tpuctl.envs.spec import Backend, run_variables
from tpuctl.envs.verify import drift_error, observe_hosts
from tpuctl.envs.wheelhouse import blobs_of
from tpuctl.errors import PartialError, TpuctlError, UnreachableError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.facts import Facts, Section
from tpuctl.hosts.provision import (
    Failures,
    Provisioned,
    Unanswered,
    Verdict,
    sections_of,
)
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.shell import quote
from tpuctl.lib.text import counted, fold_workers
from tpuctl.model.hosts import HostTarget
from tpuctl.model.records import Attempt, RunRecord, SliceRecord
from tpuctl.model.verdict import Blocked, Done, Wait
from tpuctl.state.leases import take_lease
from tpuctl.transfer.prepare import require_all


class Told(Struct, frozen=True):
    """Facts of hosts, and between which moments of ours they told them."""

    facts: tuple[Facts, ...]
    began: float
    ended: float


class HostEnvironment:
    """One environment on the workers of one attempt."""

    def __init__(
        self, services: Services, agent: HostAgent, pinned: PinnedEnvironment, run: RunRecord, attempt: Attempt
    ) -> None:
        self._services = services
        self._agent = agent
        self._pinned = pinned
        self._run = run
        self._attempt = attempt
        self._kind = EnvironmentKind(pinned, run.slice_name, services.environment_installer, mend=False)

    @property
    def on_cpu(self) -> bool:
        """Whether it is for computing without TPUs."""
        return self._pinned.spec.backend is Backend.CPU

    def variables(self) -> dict[str, str]:
        """What the environment sets for every run in it."""
        spec = self._pinned.spec
        # Nothing is added to what was compiled and verified. An environment of ours has a file that says so.
        only_read = {"PYTHONDONTWRITEBYTECODE": "1"} if spec.unmanaged is not None else {}
        return {**only_read, **run_variables(spec)}

    @property
    def wheelhouse(self) -> str:
        """The gs:// prefix from which hosts get its packages; empty where they get them otherwise."""
        return self._pinned.wheelhouse

    @property
    def keeps_compiled(self) -> bool:
        """Whether there is a compile cache."""
        return self._pinned.spec.compile_cache != "off"

    def compile_cache(
        self, key: str, accelerator_type: str, variables: Mapping[str, str], rank: int
    ) -> CompileCache:
        """See `compile_cache`; `key` is that of the environment on the host."""
        return compile_cache(self._pinned.spec, key, accelerator_type, variables, rank)

    def bytecode_directories(self, key: str) -> Mapping[str, str]:
        """See `bytecode_directories`."""
        return bytecode_directories(self._pinned.spec, key)

    @property
    def sections(self) -> set[Section]:
        """Of the facts of hosts, those that `ensure` looks at."""
        return sections_of([self._kind], LOOKED_AT)

    def ensure(
        self,
        targets: Sequence[HostTarget],
        rows: list[dict[str, str]],
        until: float | None = None,
        told: Told | None = None,
    ) -> str | Blocked:
        """Installs and verifies where that is not done; says what is waited for, what only a person can change
        (such as a Python that is not there), or nothing when all is there.

        Adds the columns of the environment to `rows`, one per target. Sends nothing after `until`; the hosts
        answer by then, too, where the agent's calls end with it. They are not asked what they just `told`.
        Raises PartialError when hosts do not answer, when an install failed or when hosts differ.
        """
        began = self._services.clock.now()
        # A run that starts does not wipe away what somebody changed: it says so, and a person decides.
        shared = shared_install(
            self._services,
            self._agent,
            targets,
            self._pinned,
            self._run.slice_name,
            owner=f"{self._run.id}-{self._attempt.number}",
            mend=False,
            until=until,
            also=LOOKED_AT,
        )
        verdict = shared.step(self._attempt.fence, told.facts if told is not None else ())
        ended = self._services.clock.now()
        if isinstance(verdict, Wait):
            return verdict.why
        if isinstance(verdict, Blocked):
            return verdict
        if isinstance(verdict, Unanswered):
            require_all(verdict.replies, "say what is installed")
        if not isinstance(verdict, Provisioned):
            raise trouble(verdict, self._run.slice_name, self._pinned.spec.name)
        for row, found in zip(rows, verdict.rows, strict=True):
            row.update(found)
        self._refuse_drift(
            [
                Seen(target.worker, facts, skew_of(facts, *when_asked(facts, told, began, ended)))
                for target, facts in zip(targets, verdict.facts, strict=True)
            ]
        )
        return ""

    def _refuse_drift(self, seen: Sequence[Seen]) -> None:
        """The gate: no run begins where a host differs from the environment or from its peers."""
        differences = compare_hosts(self._pinned, self._run.slice_name, seen, kind=self._kind)
        allowed = LEFT_TO_OTHERS.union(self._run.spec.allow_drift)
        refused = [each for each in differences if each.column not in allowed]
        if refused:
            error = drift_error(self._run.slice_name, refused)
            mending = ", and ".join(dict.fromkeys(each.hint for each in refused))
            allowing = " ".join(f"--allow-drift {quote(each.column)}" for each in refused)
            # In one line: it becomes the reason why the attempt ended, which is all that `run` and `why` show.
            told = (
                f"{' '.join(error.message.split())}; mend it: {mending}; or start it all the same: {allowing}"
            )
            raise PartialError(told, hint=error.hint, details=error.details)


def when_asked(facts: Facts, told: Told | None, began: float, ended: float) -> tuple[float, float]:
    """When the question was asked that `facts` answer, and answered: the one before, or one until `ended`,
    after something was installed."""
    if told is None:
        return began, ended
    return told.began, told.ended if any(each is facts for each in told.facts) else ended


LEFT_TO_OTHERS = frozenset({HOLDERS, DISK, HUGEPAGES})
"""Columns that keep no run from starting: who holds the chips is asked by itself before a start, and the others
slow a run down at worst."""


def shared_install(
    services: Services,
    agent: HostAgent,
    targets: Sequence[HostTarget],
    pinned: PinnedEnvironment,
    slice_name: str,
    *,
    owner: str,
    mend: bool = True,
    alone: bool = False,
    retry: bool = False,
    until: float | None = None,
    also: Collection[Section] = (),
) -> SharedInstall:
    """An environment for the hosts of a slice, of which one installs it; see `SharedInstall`."""
    wheels, installer = blobs_of(services, pinned), services.environment_installer

    @cache
    def make_kind(seal: bool, sealed: Sequence[SealedFile]) -> EnvironmentKind:
        return EnvironmentKind(
            pinned, slice_name, installer, wheels=wheels, asked_by=owner, mend=mend, seal=seal, sealed=sealed
        )

    return SharedInstall(
        services,
        agent,
        targets,
        pinned,
        make_kind,
        slice_name=slice_name,
        owner=owner,
        alone=alone,
        retry=retry,
        until=until,
        also=also,
    )


def host_environment(
    services: Services, agent: HostAgent, run: RunRecord, attempt: Attempt
) -> HostEnvironment | None:
    """The environment that a run was frozen with, if any."""
    if run.spec.environment is None:
        return None
    pinned = parse_frozen(services.store.get_blob(run.spec.environment.spec))
    return HostEnvironment(services, agent, pinned, run, attempt)


class Applied(Struct, frozen=True):
    """What an `apply` came to: one row per worker, as the hosts say themselves."""

    rows: tuple[Mapping[str, str], ...]


def apply_environment(
    services: Services, record: SliceRecord, pinned: PinnedEnvironment, *, deadline: float | None = None
) -> Applied:
    """Installs an environment on all hosts of a slice and waits until each says that it is there. One host does
    it from the wheels, the others from that one where they can.

    Raises TpuctlError where a person has to do something, PartialError where an installation fails,
    UnreachableError where a host does not answer, PendingError once `deadline` passed.
    """
    agent = HostAgent(services.remote, services.agent_source)
    targets = host_targets(services, record)
    owner = services.ids.new_id()
    shared = shared_install(services, agent, targets, pinned, record.name, owner=owner, alone=True)
    found: list[Verdict] = []

    def step() -> Outcome:
        with take_lease(services, record.name) as lease:
            verdict = shared.step(lease.fence)
        found.append(verdict)
        if isinstance(verdict, Provisioned):
            return Outcome(Done(""), acted=False)
        if isinstance(verdict, Wait | Blocked):
            return Outcome(verdict, acted=False)
        raise trouble(verdict, record.name, pinned.spec.name)

    converge(services, record.name, step, deadline=deadline)
    last = found[-1]
    rows = last.rows if isinstance(last, Provisioned) else ()
    services.emit(Note(record.name, f"environment {pinned.spec.name} is on {counted(len(rows), 'worker')}"))
    return Applied(rows)


def plan_environment(
    services: Services, record: SliceRecord, pinned: PinnedEnvironment
) -> list[dict[str, Any]]:
    """What `apply_environment` would do: a row for each group of hosts of which the same is true."""
    kind = EnvironmentKind(pinned, record.name, services.environment_installer)
    groups: dict[tuple[str, str], list[int]] = {}
    agent = HostAgent(services.remote, services.agent_source)
    for each in observe_hosts(services, agent, host_targets(services, record), kind.sections):
        groups.setdefault(_planned(kind, each), []).append(each.worker)
    return [
        {"workers": fold_workers(workers), "does": does, "why": why} for (does, why), workers in groups.items()
    ]


def _planned(kind: EnvironmentKind, seen: Seen) -> tuple[str, str]:
    if seen.facts is None:
        return "nothing", seen.why
    planned = kind.plan(seen.facts)
    if isinstance(planned, Blocked):
        return "nothing", planned.why
    if not planned:
        return "nothing", "it is installed"
    return ", ".join(each.title for each in planned), kind.why(seen.facts)


def trouble(verdict: Verdict, slice_name: str, environment: str) -> TpuctlError:
    """The error for a verdict that is neither success nor waiting."""
    if isinstance(verdict, Unanswered):
        replies = verdict.replies
        workers = [reply.worker for reply in replies]
        first = replies[0].message or str(replies[0].error)
        return UnreachableError(
            f"worker {fold_workers(workers)} of {slice_name} did not answer: {first}",
            hint=f"tpuctl status {slice_name}",
            details={"workers": workers},
        )
    if isinstance(verdict, Failures):
        failure = verdict.worst
        workers = [each.worker for each in verdict.failures]
        return PartialError(
            f"environment {environment} did not install on {counted(len(workers), 'worker')}:"
            f" worker {failure.worker}: {failure.message}",
            hint=verdict.hint(slice_name),
            details={"workers": workers},
        )
    if isinstance(verdict, Blocked):
        return TpuctlError(f"{slice_name}: {verdict.why}", hint=verdict.hint)
    return TpuctlError(f"{slice_name}: {verdict}")
