"""Pinned environments on hosts, as a slice, a run or a person asks for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.engine.events import Note
from tpuctl.engine.services import Services
from tpuctl.envs.drift import DISK, HOLDERS, HUGEPAGES, LOOKED_AT, HostReading, compare_hosts
from tpuctl.envs.hosts import EnvironmentKind
from tpuctl.envs.pinned import PinnedEnvironment, environment_keys, parse_frozen
from tpuctl.envs.verify import describe_drift, drift_error, observe_hosts
from tpuctl.envs.wheelhouse import blobs_of
from tpuctl.errors import PartialError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.facts import FactsReply, Section
from tpuctl.hosts.provision import sections_of
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.shell import quote
from tpuctl.lib.text import counted, fold_workers
from tpuctl.model.attempts import Attempt
from tpuctl.model.records import RunRecord, SliceRecord
from tpuctl.model.refs import EnvironmentRef
from tpuctl.model.shipped_files import read_template
from tpuctl.model.verdict import Blocked
from tpuctl.things.driver import bring_hosts


class Told(Struct, frozen=True):
    """Facts of hosts, and between which moments of ours they told them."""

    facts: tuple[FactsReply, ...]
    began: float
    ended: float


LEFT_TO_OTHERS = frozenset({HOLDERS, DISK, HUGEPAGES})
"""Columns that keep no run from starting: who holds the chips is asked by itself before a start, and the others
slow a run down at worst."""


def load_pinned(services: Services, ref: EnvironmentRef | None) -> PinnedEnvironment | None:
    """The environment that a slice or a run has, if any."""
    return None if ref is None else parse_frozen(services.store.get_blob(ref.spec))


def environment_kind(
    services: Services, pinned: PinnedEnvironment, slice_name: str, *, asked_by: str, mend: bool = True
) -> EnvironmentKind:
    """An environment with all that hosts need for it."""
    wheels = blobs_of(services, pinned)
    return EnvironmentKind(pinned, slice_name, read_template("env_install.py"), wheels, asked_by, mend)


def kind_of_run(
    services: Services, pinned: PinnedEnvironment, run: RunRecord, attempt: Attempt
) -> EnvironmentKind:
    """What an attempt asks of its hosts: what somebody changed there is not wiped away, but said, and a person
    decides."""
    asked_by = f"{run.id}-{attempt.number}"
    return environment_kind(services, pinned, run.slice_name, asked_by=asked_by, mend=False)


def sections_for_run(pinned: PinnedEnvironment) -> set[Section]:
    """Of the facts of hosts, those that a run looks at before it starts in the environment."""
    return sections_of([EnvironmentKind(pinned, "", b"")], LOOKED_AT)


def refuse_drift(kind: EnvironmentKind, run: RunRecord, seen: Sequence[HostReading]) -> None:
    """The gate: raises PartialError where a host differs from the environment or from its peers."""
    differences = compare_hosts(kind.pinned, run.slice_name, seen, kind=kind)
    allowed = LEFT_TO_OTHERS.union(run.spec.allow_drift)
    refused = [each for each in differences if each.column not in allowed]
    if refused:
        error = drift_error(run.slice_name, refused)
        mending = ", and ".join(dict.fromkeys(each.hint for each in refused))
        allowing = " ".join(f"--allow-drift {quote(each.column)}" for each in refused)
        # In one line: it becomes the reason why the attempt ended, which is all that `run` and `why` show.
        differ = describe_drift(run.slice_name, refused, " ")
        told = f"{differ}; mend it: {mending}; or start it all the same: {allowing}"
        raise PartialError(told, hint=error.hint, details=error.details)


def when_asked(facts: FactsReply, told: Told | None, began: float, ended: float) -> tuple[float, float]:
    """When the question was asked that `facts` answer, and answered: the one before, or one until `ended`,
    after something was installed."""
    if told is None:
        return began, ended
    return told.began, told.ended if any(each is facts for each in told.facts) else ended


def apply_environment(
    services: Services, record: SliceRecord, pinned: PinnedEnvironment, *, deadline: float | None = None
) -> tuple[Mapping[str, str], ...]:
    """Installs an environment on all hosts of a slice and waits until each says that it is there, in its row.

    Raises TpuctlError where a person has to do something, PartialError where an installation fails,
    UnreachableError where a host does not answer, PendingError once `deadline` passed.
    """
    kind = environment_kind(services, pinned, record.name, asked_by=services.ids.new_id())
    limit = math.inf if deadline is None else deadline
    rows = bring_hosts(services, record, [kind], owner=kind.asked_by, deadline=limit, retry=False)
    services.emit(Note(record.name, f"{kind.name} is on {counted(len(rows), 'worker')}"))
    return rows


def plan_environment(
    services: Services, record: SliceRecord, pinned: PinnedEnvironment
) -> list[dict[str, Any]]:
    """What `apply_environment` would do: a row for each group of hosts of which the same is true."""
    kind = EnvironmentKind(pinned, record.name, read_template("env_install.py"))
    groups: dict[tuple[str, str], list[int]] = {}
    agent = HostAgent(services.remote, services.agent_source)
    targets, keys = host_targets(services, record), environment_keys(pinned)
    for each in observe_hosts(services, agent, targets, kind.sections, keys):
        groups.setdefault(_planned(kind, each), []).append(each.worker)
    return [
        {"workers": fold_workers(workers), "does": does, "why": why} for (does, why), workers in groups.items()
    ]


def _planned(kind: EnvironmentKind, seen: HostReading) -> tuple[str, str]:
    if seen.facts is None:
        return "nothing", seen.why
    planned = kind.plan(seen.facts)
    if isinstance(planned, Blocked):
        return "nothing", planned.why
    if not planned:
        return "nothing", "it is installed"
    return ", ".join(each.title for each in planned), kind.why(seen.facts)
