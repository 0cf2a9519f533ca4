"""What `tpuctl lint` costs: 400 files of Python, beside parsing them and nothing else."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import tpuctl
from tests.bench.harness import Budget, Contender, Plan, Report, compare, lines, scratch
from tests.bench.startup import TPUCTL

FILES = 400
IMPORTS = b"import jax\nimport torch\nimport torch_xla\n"
FLOOR = "python, ast.parse"
PARSE = """
import ast, gc, pathlib, sys
gc.disable()
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    ast.parse(path.read_bytes())
"""


def measure(plan: Plan) -> list[Report]:
    """The files are those of tpuctl itself, each as a program of all frameworks, so that every rule looks."""
    with scratch() as folder:
        count = _make(folder, FILES // 10 if plan.quick else FILES)
        contenders = [
            Contender(FLOOR, [sys.executable, "-c", PARSE, str(folder)]),
            Contender(
                "tpuctl lint", [TPUCTL, "lint", str(folder)], check=lambda out: b"error" not in out.read()
            ),
        ]
        found = compare(contenders, plan.rounds)
    cpu = found["tpuctl lint"].cpu_s
    return [
        Report(
            title="Lint",
            setting=f"{count} files of Python with {_lines()} lines each on average, all rules of all backends",
            baseline=FLOOR,
            lines=lines(contenders, found),
            budgets=(Budget("CPU of 400 files", cpu * FILES / count, 4.0, unit="s"),),
        )
    ]


def _sources() -> list[Path]:
    return sorted(Path(tpuctl.__file__).parent.rglob("*.py"))


def _lines() -> int:
    sources = _sources()
    return sum(path.read_bytes().count(b"\n") for path in sources) // len(sources)


def _make(folder: Path, count: int) -> int:
    made = 0
    for number, path in enumerate(_sources()[:count]):
        target = folder / f"m{number}.py"
        shutil.copyfile(path, target)
        content = target.read_bytes()
        body = ast.parse(content).body
        place = next((node.lineno for node in body if isinstance(node, ast.Import | ast.ImportFrom)), None)
        if place is not None:
            kept = content.splitlines(keepends=True)
            future = 1 if b"__future__" in kept[place - 1] else 0
            kept.insert(place - 1 + future, IMPORTS)
            target.write_bytes(b"".join(kept))
        made += 1
    return made
