"""Which worker keeps a program that stands still: what all of them do and where their chips are. Pure.

Facts of every worker become signs; the verdicts of `manifests/tables/hangs.yaml` say which signs mean
what. What is not known, such as chips whose runtime nobody answers for, is no sign.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tpuctl.hosts.protocol import WorkerStacks, WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.text import Place, fold_workers, group_equal
from tpuctl.model.processes import place_of, worker_of
from tpuctl.runs.activity import (
    NO_STACK,
    Activities,
    Doing,
    Part,
    choose_process,
    classify_process,
    is_python,
    parse_activities,
)
from tpuctl.telemetry.sample import CoreState

PLACES_MAX = 3
"""So many different things that workers do are told; the rest is counted."""


class HangFacts(Struct, frozen=True):
    """What is known of one worker, or one process of it, of a program that stands still."""

    place: Place
    doing: Doing = NO_STACK
    pid: int | None = None
    answers: bool = True
    gone: bool = False
    """Its command lives, and nothing of it is Python any more."""
    ended: bool = False
    """Nothing of it runs any more: it keeps nobody."""
    step: float | None = None
    moves: bool = False
    """Its step is fresh: it is not at that one for as long as a stall takes."""
    launch: int | None = None
    """The last program that its chips were given; the lowest of its cores."""
    fingerprint: str = ""
    """Which program that is."""
    error: str = ""
    """What a core of it says is wrong."""


class TriageRule(Struct, frozen=True):
    """One verdict of the table."""

    id: str
    named: tuple[str, ...]
    says: str
    next: str
    source: str
    rest: tuple[str, ...] | None = None


class HangTable(Struct, frozen=True):
    """All of `manifests/tables/hangs.yaml`."""

    activities: Activities
    rules: tuple[TriageRule, ...]


class HangCause(Struct, frozen=True):
    """What keeps a program, by the row of the table: whose doing, in words, and what to type next."""

    id: str
    places: tuple[Place, ...]
    said: str
    next: str


def parse_hangs(data: Mapping[str, Any]) -> HangTable:
    return HangTable(parse_activities(data), msgspec.convert(data["verdicts"], tuple[TriageRule, ...]))


def judge_hang(table: HangTable, facts: Sequence[HangFacts], run: str, slice_name: str) -> HangCause | None:
    """The first verdict that fits; None where stacks and chips say nothing."""
    signs = {fact.place: _signs(fact, facts) for fact in facts}
    live = [fact for fact in facts if not fact.ended]
    for rule in table.rules:
        named = [fact for fact in live if signs[fact.place] & set(rule.named)]
        rest = [fact for fact in live if fact not in named]
        if named and _fits_rest(rule, [signs[fact.place] for fact in rest]):
            return _cause(rule, named, rest, facts, run, slice_name)
    return None


def _fits_rest(rule: TriageRule, rest: Sequence[frozenset[str]]) -> bool:
    """Whether there are others, and each has one of the signs; without signs there must be no others."""
    if rule.rest is None:
        return True
    return bool(rest) == bool(rule.rest) and all(signs & set(rule.rest) for signs in rest)


def gather_facts(
    table: HangTable,
    workers: Sequence[WorkerStatus],
    stacks: Sequence[WorkerStacks],
    cores: Sequence[CoreState] = (),
    stall_s: float = 0.0,
) -> list[HangFacts]:
    """What the hosts said of their processes and chips, one row for each process of the program. A step that is
    younger than `stall_s` is no sign of standing still."""
    status = {worker.worker: worker for worker in workers}
    moving = {w.worker for w in workers if w.step_at is not None and w.time - w.step_at < stall_s}
    facts = [
        replace(fact, moves=each.worker in moving)
        for each in stacks
        for fact in _facts_of(table.activities, each, status.get(each.worker), cores)
    ]
    asked = {each.worker for each in stacks}
    silent = [worker.worker for worker in workers if worker.state is WorkerState.UNREACHABLE]
    return [*facts, *(HangFacts(worker, answers=False) for worker in silent if worker not in asked)]


def _facts_of(
    table: Activities, stacks: WorkerStacks, status: WorkerStatus | None, cores: Sequence[CoreState]
) -> list[HangFacts]:
    if stacks.error:
        return [HangFacts(stacks.worker, answers=False)]
    if stacks.ended:
        return [HangFacts(stacks.worker, ended=True)]
    several = sorted({each.process for each in stacks.processes if each.process is not None})
    found: list[HangFacts] = []
    for own in several or (None,):
        processes = [each for each in stacks.processes if each.process == own]
        process, doing = choose_process((each, classify_process(table, each)) for each in processes)
        gone = doing is NO_STACK and not any(is_python(each) for each in processes)
        pid = process.pid if process is not None else None
        step = status.step if status is not None else None
        ports = {port for each in processes for port in each.ports}
        its = [core for core in cores if core.worker == stacks.worker and (own is None or core.port in ports)]
        fact = HangFacts(place_of(stacks.worker, own), doing, pid, gone=gone, step=step)
        found.append(_with_cores(fact, its))
    return found


def _with_cores(fact: HangFacts, cores: Sequence[CoreState]) -> HangFacts:
    """The core that was given the fewest programs is the one that others wait for."""
    launched = [core for core in cores if core.launch_id is not None]
    last = min(launched, key=lambda core: core.launch_id or 0, default=None)
    error = next((core.error for core in cores if core.error), "")
    if last is None:
        return replace(fact, error=error)
    return replace(fact, error=error, launch=last.launch_id, fingerprint=last.fingerprint)


def _signs(fact: HangFacts, facts: Sequence[HangFacts]) -> frozenset[str]:
    """The activity, its part, and the signs of the table of functions."""
    if not fact.answers:
        return frozenset({"no-answer"})
    own = {fact.doing.id, str(fact.doing.part)}
    return frozenset(own | {name for name, holds in SIGNS.items() if holds(fact, facts)})


def _is_behind(fact: HangFacts, facts: Sequence[HangFacts]) -> bool:
    return fact.launch is not None and fact.launch < max(f.launch for f in facts if f.launch is not None)


def _is_step_behind(fact: HangFacts, facts: Sequence[HangFacts]) -> bool:
    if fact.step is None or fact.moves:
        return False
    return fact.step < max(f.step for f in facts if f.step is not None)


def _is_other_program(fact: HangFacts, facts: Sequence[HangFacts]) -> bool:
    same = [other.fingerprint for other in facts if other.launch == fact.launch and other.fingerprint]
    return bool(fact.fingerprint) and _is_rare(fact.fingerprint, same)


def _is_elsewhere(fact: HangFacts, facts: Sequence[HangFacts]) -> bool:
    return bool(fact.doing.at) and _is_rare(fact.doing.at, [f.doing.at for f in facts if f.doing.at])


def _is_gone(fact: HangFacts, facts: Sequence[HangFacts]) -> bool:
    return fact.gone and any(other.doing is not NO_STACK for other in facts)


def _is_rare(value: str, values: Sequence[str]) -> bool:
    """Whether most others have one value, and this is another."""
    usual, count = Counter(values).most_common(1)[0]
    return value != usual and count > len(values) / 2


SIGNS: Mapping[str, Callable[[HangFacts, Sequence[HangFacts]], bool]] = {
    "alone": lambda _, facts: sum(not fact.ended for fact in facts) == 1,
    "left": lambda fact, facts: fact.doing.part is Part.WAITS and any(other.ended for other in facts),
    "core-error": lambda fact, _: bool(fact.error),
    "program-gone": _is_gone,
    "behind": _is_behind,
    "step-behind": _is_step_behind,
    "other-program": _is_other_program,
    "elsewhere": _is_elsewhere,
}


def _cause(
    rule: TriageRule,
    named: Sequence[HangFacts],
    rest: Sequence[HangFacts],
    facts: Sequence[HangFacts],
    run: str,
    slice_name: str,
) -> HangCause:
    workers = {worker_of(each.place) for each in named}
    words = {
        "named": _describe(named, facts),
        "others": _describe(rest, facts) if rest else "no other worker",
        "run": run,
        "slice": slice_name,
        "workers": fold_workers(workers),
        "pids": " ".join(str(each.pid) for each in named if each.pid is not None),
    }
    places = tuple(each.place for each in named)
    ended = [each.place for each in facts if each.ended]
    said = rule.says.format(**words) + (f"; worker {fold_workers(ended)}: ended" if ended else "")
    return HangCause(rule.id, places, said, rule.next.format(**words))


def _describe(facts: Sequence[HangFacts], every: Sequence[HangFacts]) -> str:
    """`worker 2: compiling (train.py:21), worker 0-1: …`: those that do the same together."""
    groups = group_equal(facts, lambda fact: _words(fact, every))
    told = [f"worker {fold_workers([f.place for f in group])}: {words}" for words, group in groups]
    more = [f"and {len(told) - PLACES_MAX} more"] if len(told) > PLACES_MAX else []
    return ", ".join([*told[:PLACES_MAX], *more])


def _words(fact: HangFacts, every: Sequence[HangFacts]) -> str:
    if not fact.answers:
        return "no answer"
    if fact.gone and _is_gone(fact, every):
        return "its program has ended, although its command lives"
    words = [fact.doing.said] if fact.doing.id != NO_STACK.id else []
    if fact.error:
        words.append(f"a core of it says: {fact.error}")
    if fact.launch is not None:
        most = max(other.launch for other in every if other.launch is not None)
        words.append(f"at launch {fact.launch}" + (f" of {most}" if fact.launch < most else ""))
    if _is_other_program(fact, every):
        words.append(f"in program {fact.fingerprint[:12]}")
    if _is_step_behind(fact, every):
        words.append(f"at step {fact.step:g}")
    return ", ".join(words) or NO_STACK.says
