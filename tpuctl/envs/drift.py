"""Are hosts what the environment says, and each like the others? Facts to the columns that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpuctl.envs.hosts import MIB, SHOWN_FILES, EnvironmentKind, find_environment, free_bytes, host_columns
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.spec import Backend, run_variables
from tpuctl.hosts.facts import FactsReply, Section
from tpuctl.lib.shell import quote
from tpuctl.lib.text import fold_workers

SKEW_MAX_S = 5.0
"""Logs of hosts are put in order by their clocks; tokens and certificates bear a minute."""
DISK_MIN_BYTES = 1 << 30
"""Free for logs and what a run writes beside its checkpoints."""
NONE = "none"
INSTALLED = "as installed"
NOT_INSTALLED = "not installed"
ENVIRONMENT, FILES, VARIABLES, CHIPS, HOLDERS, DISK, CLOCK, HUGEPAGES = (
    "environment",
    "files",
    "variables",
    "chips",
    "chip holders",
    "disk",
    "clock",
    "hugepages",
)
NO_ANSWER = "answer"
LOOKED_AT = frozenset(
    {
        Section.SPACE,
        Section.CHIPS,
        Section.ENVS,
        Section.KERNEL,
        Section.VARIABLES,
    }
)
"""The facts that are compared. Not which Pythons there are, nor who becomes root: that starts programs."""


@dataclass(frozen=True)
class DriftedColumn:
    """One column in which hosts differ from the environment or from each other. `found` has the workers by what
    they have instead of `expected`; `hint` is the command that mends it."""

    column: str
    expected: str
    found: Mapping[str, tuple[int, ...]]
    hint: str

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(sorted(worker for workers in self.found.values() for worker in workers))

    @property
    def said(self) -> str:
        """For a person, in one line."""
        parts = [_has(value, workers) for value, workers in sorted(self.found.items())]
        wanted = "" if set(self.found) == {NOT_INSTALLED} else f", not {self.expected}"
        return f"{self.column}: {'; '.join(parts)}{wanted}"


def _has(value: str, workers: Sequence[int]) -> str:
    where = f"worker {fold_workers(list(workers))}"
    return f"{value} on {where}" if value == NOT_INSTALLED else f"{where} has {value}"


@dataclass(frozen=True)
class HostReading:
    """What one worker said; `skew_s` is how far its clock is ahead of ours. `facts` is None for no answer, and
    then `why` says why."""

    worker: int
    facts: FactsReply | None
    skew_s: float = 0.0
    why: str = ""


def skew_of(facts: FactsReply, began: float, ended: float) -> float:
    """How far ahead a host's clock is of ours, in seconds: what the call from `began` to `ended` in which it
    told its facts does not explain."""
    return facts.time - ended if facts.time > ended else min(0.0, facts.time - began)


def compare_hosts(
    pinned: PinnedEnvironment, slice_name: str, seen: Sequence[HostReading], *, kind: EnvironmentKind
) -> list[DriftedColumn]:
    """The columns that differ, worst first. Each host is compared with the environment where that says what
    a column must be, else with what most hosts have. Pure."""
    found: list[DriftedColumn] = []
    silent = {each.worker: each.why or "no answer" for each in seen if each.facts is None}
    if silent:
        found.append(DriftedColumn(NO_ANSWER, "its facts", _by_value(silent), reviving(slice_name)))
    known = {each.worker: (each.facts, each.skew_s) for each in seen if each.facts is not None}
    rows = {w: host_row(pinned, facts, skew, kind) for w, (facts, skew) in known.items()}
    expected = expected_row(pinned)
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    for column in columns:
        values = {worker: row[column] for worker, row in rows.items() if column in row}
        wanted = expected.get(column) or _most(values)
        odd = {worker: value for worker, value in values.items() if value != wanted}
        if odd:
            first = known[min(odd)][0]
            hint = mending(column, slice_name, pinned, sorted(odd), first)
            found.append(DriftedColumn(column, wanted, _by_value(odd), hint))
    return found


def reviving(slice_name: str) -> str:
    """For hosts that do not answer: `up` gives them time, unless a person knows that they are dead."""
    again = f"tpuctl down {slice_name} && tpuctl up {slice_name}"
    return f"tpuctl up {slice_name}   # waits for what may come back; if they are dead: {again}"


def expected_row(pinned: PinnedEnvironment) -> dict[str, str]:
    """The columns of which the environment itself says what they must be."""
    found = {
        ENVIRONMENT: "installed",
        FILES: INSTALLED,
        VARIABLES: NONE,
        HOLDERS: NONE,
        DISK: "enough",
        CLOCK: "in step",
    }
    if pinned.spec.kernel.transparent_hugepages is not None:
        found[HUGEPAGES] = pinned.spec.kernel.transparent_hugepages
    return found


def host_row(
    pinned: PinnedEnvironment, facts: FactsReply, skew_s: float, kind: EnvironmentKind
) -> dict[str, str]:
    """All columns of one host."""
    row: dict[str, str] = {}
    minor = kind.minor(facts)
    key = kind.key(facts, minor) if minor is not None else ""
    found = find_environment(facts, key)
    row[ENVIRONMENT] = "installed" if found is not None and found.mark is not None else NOT_INSTALLED
    if found is not None and found.mark is not None:
        changed = list(found.changed)
        more = f" and {len(changed) - SHOWN_FILES} more" if len(changed) > SHOWN_FILES else ""
        row[FILES] = f"changed {', '.join(changed[:SHOWN_FILES])}{more}" if changed else INSTALLED
        columns = host_columns(facts, key)
        row["python"] = columns["environment_python"]
        row["packages"] = columns["packages"]
        for name in ("libtpu_path", "libtpu_sha256", "libtpu_pjrt"):
            if name in columns:
                row[name.replace("_", " ")] = columns[name]
    row[VARIABLES] = _variables(pinned, facts)
    row |= _machine(pinned, facts)
    row[CLOCK] = "in step" if abs(skew_s) <= SKEW_MAX_S else f"a clock {skew_s:+.0f} s off"
    return row


def _machine(pinned: PinnedEnvironment, facts: FactsReply) -> dict[str, str]:
    row: dict[str, str] = {}
    if facts.chips is not None and pinned.spec.backend is not Backend.CPU:
        row[CHIPS] = str(len(facts.chips.devices))
        row[HOLDERS] = _holders(facts) or NONE
    if facts.kernel is not None:
        row[HUGEPAGES] = facts.kernel.transparent_hugepages
        row["memlock"] = str(facts.kernel.memlock_bytes[0] or "unlimited")
    free = free_bytes(facts)
    if free is not None:
        row[DISK] = "enough" if free >= DISK_MIN_BYTES else f"{free // MIB} MiB free"
    return row


def _holders(facts: FactsReply) -> str:
    """Who has the chips."""
    if facts.chips is None:
        return ""
    return ", ".join(each.said for each in facts.chips.taken_by)


def _variables(pinned: PinnedEnvironment, facts: FactsReply) -> str:
    """What the host's own login sets that leads programs elsewhere; what the environment sets wins, and does
    not count."""
    own = run_variables(pinned.spec)
    set_here = {name: each for name, each in (facts.variables or {}).items() if name not in own}
    return " ".join(f"{name}={each.value}" for name, each in sorted(set_here.items())) or NONE


def mending(
    column: str, slice_name: str, pinned: PinnedEnvironment, workers: Sequence[int], facts: FactsReply
) -> str:
    """The command after which the column is as it should be."""
    on = f"tpuctl exec --worker {fold_workers(list(workers))} {slice_name} --"
    if column == VARIABLES:
        own = run_variables(pinned.spec)
        for name, each in sorted((facts.variables or {}).items()):
            if name not in own and each.file:
                sudo = "" if each.file.startswith("~") or each.file.startswith("/home") else "sudo "
                line = quote(rf"/^\s*(export\s+)?{name}=/d")
                return f"{on} {sudo}sed -i -E {line} {quote(each.file)}"
        return f"{on} env"
    if column == HOLDERS and facts.chips is not None:
        return f"{on} sudo kill {' '.join(str(each.pid) for each in facts.chips.taken_by)}"
    if column == DISK:
        return f"tpuctl env gc --on {slice_name}"
    if column == CLOCK:
        return f"{on} sudo chronyc makestep"
    if column == FILES and pinned.spec.unmanaged is not None:
        return f"{on} ls -l {quote(pinned.spec.unmanaged.path)}"
    as_peers = column == HUGEPAGES and pinned.spec.kernel.transparent_hugepages is None
    if as_peers or column in (CHIPS, "memlock"):
        return f"tpuctl status {slice_name}"
    return f"tpuctl env apply {pinned.spec.name} --on {slice_name}"


def _most(values: Mapping[int, str]) -> str:
    """What most hosts have; of several the one that the lowest worker has."""
    counted = Counter(values[worker] for worker in sorted(values))
    return counted.most_common(1)[0][0] if counted else ""


def _by_value(values: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for worker in sorted(values):
        found.setdefault(values[worker], []).append(worker)
    return {value: tuple(workers) for value, workers in found.items()}
