"""What it costs a program of JAX that its compiles are counted: a start of Python, a compile, a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.bench.harness import BenchError, Budget, Contender, Line, Plan, Report, compare, lines, scratch
from tests.support.hooks import write_hooks
from tests.support.jax_python import flax_packages

PLAIN, HOOKED = "without the hook", "with the hook"
COMPILES, STEPS, ARGUMENTS = 20, 10_000, 100
PROGRAM = """
import json, sys, time, jax, jax.numpy as jnp
compiles, steps, arguments = map(int, sys.argv[1:])
def spent(work, clock):
    began, cpu = time.perf_counter(), clock()
    work()
    return time.perf_counter() - began, clock() - cpu
@jax.jit
def train_step(params, batch): return [each + batch.sum() for each in params[:3]], batch * 2
params, few = [jnp.ones(2)] * arguments, [jnp.ones(2)] * 3
batches = [jnp.ones((n + 1,)) for n in range(compiles)]
def compile_all():
    for batch in batches: train_step(params, batch)[1].block_until_ready()
train_step(few, batches[0])
def step_all():
    for _ in range(steps): train_step(few, batches[0])
compiled = spent(compile_all, time.process_time)  # its threads, too
stepped = [spent(step_all, time.thread_time) for _ in range(6)]
print(json.dumps([compiled, min(stepped, key=lambda row: row[1])]))
"""


def measure(plan: Plan) -> list[Report]:
    """Needs JAX in the cache of the tests, or an index."""
    packages = flax_packages()
    counts = (5, 1000, ARGUMENTS) if plan.quick else (COMPILES, STEPS, ARGUMENTS)
    with scratch() as folder:
        hooks = folder / "join"
        write_hooks(hooks)
        variables = {
            PLAIN: {"PYTHONPATH": str(packages), "JAX_PLATFORMS": "cpu"},
            HOOKED: {
                "PYTHONPATH": os.pathsep.join((str(hooks), str(packages))),
                "JAX_PLATFORMS": "cpu",
                "TPUCTL_JOIN": str(hooks),
            },
        }
        starts = [Contender(name, [sys.executable, "-c", "pass"], env) for name, env in variables.items()]
        compare(starts, 1)
        found = compare(starts, plan.rounds)
        spent: dict[str, list[list[list[float]]]] = {name: [] for name in variables}
        for _ in range(plan.rounds):
            for name, env in variables.items():
                spent[name].append(_run(env, counts))
        _check_counted(hooks, counts[0])
    more_ms = (found[HOOKED].cpu_s - found[PLAIN].cpu_s) * 1000
    start = Report(
        title="A start of Python in a run",
        setting="an interpreter that does nothing, with and without the module that PYTHONPATH begins with",
        baseline=PLAIN,
        lines=lines(starts, found),
        budgets=(Budget("CPU that it adds", more_ms, 20.0, unit=" ms"),),
    )
    return [start, *_reports(spent, counts)]


def _run(env: Mapping[str, str], counts: tuple[int, int, int]) -> list[list[float]]:
    """(wall, CPU) of the compiles, and of the steps."""
    words = [sys.executable, "-c", PROGRAM, *map(str, counts)]
    done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True, timeout=600)
    if done.returncode != 0 or done.stderr:
        raise BenchError(f"a program of JAX: exit status {done.returncode}: {done.stderr[-600:]}")
    found: list[list[float]] = json.loads(done.stdout)
    return found


def _check_counted(hooks: Path, compiles: int) -> None:
    for path in hooks.glob("*.compiles"):
        (row,) = json.loads(path.read_text())["functions"]
        if row["times"] != compiles + 1:
            raise BenchError(f"{path.name} counts {row['times']} compiles, not {compiles + 1}")


def _reports(spent: Mapping[str, list[list[list[float]]]], counts: tuple[int, int, int]) -> list[Report]:
    compiles, steps, arguments = counts
    titles = (
        (f"{compiles} compiles of a function of {arguments} arguments", 1.05),
        (f"{steps:,} steps of a compiled function", 1.1),
    )
    found = []
    for at, (title, limit) in enumerate(titles):
        rows = [
            Line(name, min(each[at][0] for each in rounds), min(each[at][1] for each in rounds))
            for name, rounds in spent.items()
        ]
        # The best of the rounds: what else the machine does only ever adds.
        budget = Budget("CPU, of that without the hook", rows[1].cpu_s / rows[0].cpu_s, limit)
        found.append(Report(title, "JAX 0.10.2 on the CPU, in one process", PLAIN, tuple(rows), (budget,)))
    return found
