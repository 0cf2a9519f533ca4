"""What slows a run's program down from inside: functions that are compiled again, operations on the CPU. Pure.

Programs are compiled before the first step, and that may take long. After it a function that had been compiled
is not expected to come to the compiler again: its arguments have changed their shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from tpuctl.envs.compile_cache import describe_cache
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import CompiledFunction, CompileReport, WorkerStatus
from tpuctl.lib.text import Place, counted, fold_workers
from tpuctl.lib.time import render_seconds
from tpuctl.model.attempts import COMPILED, ON_CPU, RECOMPILED, Attempt, ProgramTrouble
from tpuctl.model.processes import place_of
from tpuctl.model.records import RunRecord
from tpuctl.model.verdict import wait_for
from tpuctl.runs.metrics import watches_steps
from tpuctl.runs.states import News, RunEvent, RunFinding

MANY = 5
"""Where nobody looks for steps, so many programs of one function are told: two or three are usual."""
GRAPHS = "PyTorch/XLA"
"""As in `tpuctl/agent/compile_hook.py`: all graphs that it compiles. Its first steps have graphs of their own,
so MANY after the first are told, and without steps nobody knows which those are."""
USUAL_ON_CPU = frozenset({"aten::_local_scalar_dense", "aten::nonzero"})
"""Operations that take a value to the host as they are meant to (pytorch/xla, TROUBLESHOOTING.md)."""
AGAIN = 2
"""What was told is brought up to date when it is so many times as much."""
TROUBLES_MAX = 16
SETTLED_S = 300.0
"""Where nobody looks for steps, what was compiled is summed up after so long."""


class ProgramChange(Struct, frozen=True):
    """What is to be written down: what was compiled until the first step, and all troubles; `new` is told."""

    compiled: str
    troubles: tuple[ProgramTrouble, ...]
    new: tuple[ProgramTrouble, ...]


def judge_program(run: RunRecord, attempt: Attempt, workers: Sequence[WorkerStatus]) -> ProgramChange | None:
    """What the workers of the run's attempt tell that is new; None for nothing."""
    known = {(each.kind, each.subject): each for each in attempt.troubles}
    found = dict(known)
    for each in find_troubles(run, workers):
        key = (each.kind, each.subject)
        if key in known and each.times < AGAIN * known[key].times:
            continue
        if key in known or len(found) < TROUBLES_MAX:
            found[key] = each
    compiled = attempt.compiled or (describe_compiles(workers) if _settled(run, workers) else "")
    if found == known and compiled == attempt.compiled:
        return None
    new = tuple(each for key, each in found.items() if key not in known)
    return ProgramChange(compiled, tuple(found.values()), new)


def find_compiles(run: RunRecord, attempt: Attempt, workers: Sequence[WorkerStatus]) -> RunFinding | None:
    """What was compiled until the first step, once, and troubles that are new or have grown."""
    changed = judge_program(run, attempt, workers)
    if changed is None:
        return None
    first = () if changed.compiled == attempt.compiled else (News(COMPILED, changed.compiled),)
    news = tuple(News(each.kind, each.said, each.said, warns=True) for each in changed.new)
    why = "; ".join(each.said for each in changed.new) or "its programs were compiled"
    changes = {"compiled": changed.compiled, "troubles": changed.troubles}
    return RunFinding(RunEvent.COMPILES, why, wait_for("the run"), changes, news=(*first, *news))


def find_troubles(run: RunRecord, workers: Sequence[WorkerStatus]) -> list[ProgramTrouble]:
    """All that slows the program down, as its workers tell it now."""
    rows: dict[tuple[str, str], list[tuple[Place, CompiledFunction]]] = {}
    for place, report in _reports(workers):
        for function in report.functions:
            rows.setdefault((function.name, function.place), []).append((place, function))
    found = []
    for (name, where), group in rows.items():
        subject = f"{name} ({where})" if where else name
        trouble = _recompiled(subject, group, stepless=not watches_steps(run.spec))
        found += [trouble] if trouble is not None else []
    return [*found, *_on_cpu(workers)]


def describe_compiles(workers: Sequence[WorkerStatus]) -> str:
    """`cold: 0 of 3 programs loaded, 2 functions in 42 s`; empty where nothing was compiled. Of several
    processes the one that has most."""
    reports = [report for _, report in _reports(workers)]
    functions = max((len(report.functions) for report in reports), default=0)
    seconds = max((sum(each.seconds for each in report.functions) for report in reports), default=0.0)
    cache = describe_cache(sum(r.loaded for r in reports), sum(r.asked for r in reports))
    took = f" in {render_seconds(seconds)}" if seconds >= 1 else ""
    said = f"{counted(functions, 'function')}{took}" if functions else ""
    return ", ".join(filter(None, (cache, said)))


def describe_compiling(workers: Sequence[WorkerStatus]) -> str:
    """`compiling train_step 23 min` of the process that has been at it longest; empty for none."""
    at_it = [
        (worker.time - report.now.since, report.now.name)
        for worker in workers
        for report in worker.compiles
        if report.now is not None and worker.state is WorkerState.RUNNING
    ]
    seconds, name = max(at_it, default=(0.0, ""))
    return f"compiling {name} {render_seconds(max(0.0, seconds))}" if name else ""


def compiles_of(run: RunRecord, worker: WorkerStatus) -> Mapping[str, str]:
    """For the row of a host: what of the compile cache its programs loaded, and what was compiled again."""
    troubles = "; ".join(each.said for each in find_troubles(run, [worker]))
    cache = describe_cache(sum(r.loaded for r in worker.compiles), sum(r.asked for r in worker.compiles))
    return {"compile_cache": cache, "compiled_again": troubles}


def _settled(run: RunRecord, workers: Sequence[WorkerStatus]) -> bool:
    """Whether what has to be compiled before the first step is."""
    if watches_steps(run.spec):
        return any(worker.step is not None for worker in workers)
    return any(w.started_at is not None and w.time - w.started_at >= SETTLED_S for w in workers)


def _reports(workers: Iterable[WorkerStatus]) -> Iterable[tuple[Place, CompileReport]]:
    return ((place_of(w.worker, report.process), report) for w in workers for report in w.compiles)


def _on_cpu(workers: Sequence[WorkerStatus]) -> Iterable[ProgramTrouble]:
    rows: dict[str, list[tuple[Place, int]]] = {}
    reports = list(_reports(workers))
    for place, report in reports:
        for name, times in report.on_cpu.items():
            if name not in USUAL_ON_CPU:
                rows.setdefault(name, []).append((place, times))
    for name, group in rows.items():
        where = f" of worker {fold_workers(place for place, _ in group)}" if len(group) < len(reports) else ""
        times = max(count for _, count in group)
        yield ProgramTrouble(ON_CPU, name, times, f"{name} ran on the CPU{where}, {counted(times, 'time')}")


def _recompiled(
    subject: str, group: Sequence[tuple[Place, CompiledFunction]], *, stepless: bool
) -> ProgramTrouble | None:
    """By the process that compiled the function most often, and where that was if others did not."""
    least = MANY if subject == GRAPHS else 1
    again = [
        (place, each)
        for place, each in group
        if each.again.times >= least or (stepless and each.times >= MANY and subject != GRAPHS)
    ]
    if not again:
        return None
    most = max((each for _, each in again), key=lambda each: (each.again.times, each.times))
    times, seconds = most.again.times, most.again.seconds
    shapes: Sequence[str] = most.again.shapes
    since = f" since step {most.again.step:g}" if most.again.step is not None else ""
    if not times:
        times, seconds, shapes = most.times, most.seconds, most.shapes
    elif times == 1:
        since = since.replace("since", "again at")
    often = "" if times == 1 and since else f" {counted(times, 'graph' if subject == GRAPHS else 'time')}"
    places = [place for place, _ in again]
    where = f" on worker {fold_workers(places)}" if len(places) < len(group) else ""
    named = [shape for shape in dict.fromkeys(shapes) if shape]
    more = ", …" if most.more else ""
    same = "" if subject == GRAPHS else ", with the same shapes"
    told = f": {', '.join(named)}{more}" if named else same
    took = f" ({render_seconds(seconds)})" if seconds >= 1 else ""
    said = f"{subject} compiled{often}{since}{where}{took}{told}"
    return ProgramTrouble(RECOMPILED, subject, times, said)
