"""What is said of a run whose program is compiled again, by what its workers tell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import (
    CompiledFunction,
    CompileReport,
    Compiling,
    Recompiles,
    WorkerStatus,
)
from tpuctl.model.attempts import ON_CPU, RECOMPILED, AttemptPhase, ProgramTrouble
from tpuctl.notify.events import run_events
from tpuctl.runs.compiles import (
    MANY,
    SETTLED_S,
    TROUBLES_MAX,
    compiles_of,
    describe_compiling,
    find_troubles,
    judge_program,
)
from tpuctl.runs.plan import RunObservation, plan_run
from tpuctl.runs.states import RunEffect, RunEvent
from tpuctl.slices.states import ObservedEvent, SliceEvent

NOW = 50_000.0
ALIVE = ObservedEvent(SliceEvent.NODE_READY, "node big-1 is READY")
SHAPES = ("(8,3)", "(8,4)", "(8,5)", "(8,7)")
STEP = CompiledFunction("train_step", "train.py:7", 4, 60.0, shapes=SHAPES)


def again(times: int, *shapes: str, step: float = 100.0, seconds: float = 0.0, **more: Any) -> CompiledFunction:
    return CompiledFunction(
        "train_step",
        "train.py:7",
        times + 1,
        shapes=SHAPES,
        again=Recompiles(times, seconds, step, shapes),
        **more,
    )


def worker(number: int, *functions: CompiledFunction, process: int | None = None, **more: Any) -> WorkerStatus:
    said = {
        "started_at": NOW - 100.0,
        "time": NOW,
        "compiles": (CompileReport(7, process, functions=functions),),
    }
    return WorkerStatus(number, WorkerState.RUNNING, **{**said, **more})


SAID = [
    (again(0), again(0), None),
    (again(3, "(8,4)", "(8,5)", "(8,7)"), again(3), "compiled 3 times since step 100: (8,4), (8,5), (8,7)"),
    (again(1, "(8,5)", seconds=42.0), again(1), "compiled again at step 100 (42 s): (8,5)"),
    (again(2, ""), again(2, ""), "compiled 2 times since step 100, with the same shapes"),
    (again(0), again(2, "(8,5)"), "compiled 2 times since step 100 on worker 1: (8,5)"),
    (again(9, "(8,5)", more=3), again(9), "compiled 9 times since step 100: (8,5), …"),
]


@pytest.mark.parametrize(("first", "second", "said"), SAID)
def test_what_is_compiled_again_is_said(
    first: CompiledFunction, second: CompiledFunction, said: str | None
) -> None:
    found = find_troubles(a_run(progress="step (.*)"), [worker(0, first), worker(1, second)])
    assert [each.said for each in found] == ([] if said is None else [f"train_step (train.py:7) {said}"])


def test_of_several_processes_the_one_is_named() -> None:
    run = a_run(progress="step (.*)")
    rows = [worker(0, again(0), process=0), worker(0, again(1, "(8,5)"), process=1)]
    assert "at step 100 on worker 0.1: " in find_troubles(run, rows)[0].said


@pytest.mark.parametrize(("times", "said"), [(MANY - 1, []), (MANY, [f" compiled {MANY} times (1 min): "])])
def test_without_steps_many_programs_are_said(times: int, said: list[str]) -> None:
    function = CompiledFunction("train_step", "", times, 60.0, shapes=SHAPES)
    found = [each.said for each in find_troubles(a_run(), [worker(0, function)])]
    assert found == [f"train_step{text}{', '.join(SHAPES)}" for text in said]
    assert find_troubles(a_run(progress="step (.*)"), [worker(0, function)]) == []


def test_graphs_are_counted_and_those_of_the_first_steps_expected() -> None:
    run = a_run(progress="step (.*)")
    rows = [
        CompiledFunction("PyTorch/XLA", "", 9, again=Recompiles(n, 12.0, 3.0, ("",))) for n in (MANY - 1, MANY)
    ]
    assert find_troubles(run, [worker(0, rows[0])]) == []
    assert [each.said for each in find_troubles(run, [worker(0, rows[1])])] == [
        f"PyTorch/XLA compiled {MANY} graphs since step 3 (12 s)"
    ]
    assert find_troubles(a_run(), [worker(0, rows[1])])[0].times == MANY


def test_operations_on_the_cpu_are_named() -> None:
    usual = {"aten::_local_scalar_dense": 500}
    counts = [{"aten::linalg_eig": 2, **usual}, {"aten::linalg_eig": 3}, usual]
    rows = [worker(n, compiles=(CompileReport(7, on_cpu=each),)) for n, each in enumerate(counts)]
    (found,) = find_troubles(a_run(), rows)
    assert found == ProgramTrouble(
        ON_CPU, "aten::linalg_eig", 3, "aten::linalg_eig ran on the CPU of worker 0-1, 3 times"
    )
    assert find_troubles(a_run(), rows[:2])[0].said == "aten::linalg_eig ran on the CPU, 3 times"


def test_a_function_is_told_once_and_brought_up_to_date_when_it_is_twice_as_much() -> None:
    run = a_run(progress="step (.*)")
    told, updates = 0, []
    attempt = an_attempt(compiled="1 function in 60 s")
    for times in range(40):
        found = judge_program(run, attempt, [worker(0, again(times, "(8,4)"), step=101.0)])
        if found is not None:
            told += len(found.new)
            updates.append(times)
            attempt = an_attempt(compiled=found.compiled, troubles=found.troubles)
    assert (told, updates) == (1, [1, 2, 4, 8, 16, 32])


def test_what_is_kept_is_bounded() -> None:
    functions = [CompiledFunction(f"f{n}", "", 2, again=Recompiles(1, 0.0, 5.0, ())) for n in range(40)]
    run = a_run(progress="step (.*)")
    found = judge_program(run, an_attempt(compiled="x"), [worker(0, *functions)])
    assert found is not None
    assert len(found.troubles) == TROUBLES_MAX
    assert (
        judge_program(run, an_attempt(compiled="x", troubles=found.troubles), [worker(0, *functions)]) is None
    )


SUMMED = [
    ("step (.*)", {"step": None}, ""),
    ("step (.*)", {"step": 1.0}, "1 function in 1 min"),
    ("", {}, ""),
    ("", {"started_at": NOW - SETTLED_S}, "1 function in 1 min"),
]


@pytest.mark.parametrize(("progress", "more", "said"), SUMMED)
def test_what_came_to_the_compiler_until_the_first_step_is_summed_up(
    progress: str, more: dict[str, Any], said: str
) -> None:
    found = judge_program(a_run(progress=progress), an_attempt(), [worker(0, STEP, **more)])
    assert (found.compiled if found is not None else "") == said


@pytest.mark.parametrize(
    ("loaded", "said"), [(0, "cold: 0 of 2 programs loaded"), (1, "warm: 1 of 2 programs loaded")]
)
def test_a_cold_cache_and_a_warm_one_are_told_apart(loaded: int, said: str) -> None:
    report = CompileReport(7, asked=2, loaded=loaded, functions=(again(1, "(8,5)"),))
    row = compiles_of(a_run(progress="step (.*)"), worker(0, compiles=(report,)))
    assert row == {
        "compile_cache": said,
        "compiled_again": "train_step (train.py:7) compiled again at step 100: (8,5)",
    }


def test_what_is_being_compiled_is_named_with_the_time() -> None:
    busy = [
        CompileReport(n, now=Compiling(name, NOW - since)) for n, name, since in ((1, "a", 5.0), (2, "b", 90.0))
    ]
    assert describe_compiling([worker(0, compiles=tuple(busy)), worker(1)]) == "compiling b 1 min 30 s"
    assert describe_compiling([worker(0)]) == ""


def test_an_event_of_it_is_written_down_and_told_to_hooks() -> None:
    run = a_run(progress="step (.*)", attempt=an_attempt(state=AttemptPhase.RUNNING, compiled="x"))
    plan = plan_run(RunObservation(run, a_slice(), ALIVE, [worker(0, again(1, "(8,5)"))], NOW))
    said = "train_step (train.py:7) compiled again at step 100: (8,5)"
    assert (plan.event, plan.effect) == (RunEvent.COMPILES, RunEffect.RECORD)
    assert plan.found.why == said
    assert [(each.event, each.said, each.warns) for each in plan.found.news] == [(RECOMPILED, said, True)]
    assert plan.found.changes["troubles"] == (ProgramTrouble(RECOMPILED, "train_step (train.py:7)", 1, said),)
    journal = {"00001-00000": {"at": NOW, "action": RECOMPILED, "reason": said}}
    told = run_events("runs/r", journal, {"state": "running", "created_at": 0.0})
    assert [(each.kind, each.detail) for each in told] == [("needs-human", said)]


def test_what_a_program_wrote_there_itself_is_left_out() -> None:
    said: dict[str, Any] = {"state": "running", "boot_id": "b", "time": 1.0}
    said["compiles"] = [{"pid": 1, "functions": [{"name": "f", "times": 2}]}, {"pid": "x"}, "y", {}]
    (report,) = WorkerStatus.parse(said, 0).compiles
    assert [(each.name, each.times) for each in report.functions] == [("f", 2)]
    assert WorkerStatus.parse({**said, "compiles": 7}, 0).compiles == ()
