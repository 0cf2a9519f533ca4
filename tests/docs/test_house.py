"""What the house is measured by: how long things are, and how often one idea is written down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tpuctl"
FUNCTION_LINES, FILE_LINES, RUN_LINES, NOQA = 60, 400, 1_100, 80


def parsed(folder: Path = PACKAGE) -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(folder.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        yield from ((name, node) for node in ast.walk(ast.parse(path.read_text())))


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def callers(*names: str) -> set[str]:
    """The files in which one of these is called; `.name` is a method."""
    calls = ((file, node.func) for file, node in parsed() if isinstance(node, ast.Call))
    dotted = {ast.Attribute: lambda func: f".{func.attr}", ast.Name: lambda func: func.id}
    return {file for file, func in calls if type(func) in dotted and dotted[type(func)](func) in names}


def test_no_function_is_longer_than_a_screen():
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {
        f"{file} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for file, node in parsed()
        if isinstance(node, functions)
    }
    assert len(found) > 3000
    assert {name: lines for name, lines in found.items() if lines > FUNCTION_LINES} == {}


def test_exceptions_from_lint_stay_few():
    files = [path for folder in ("tpuctl", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert 0 < sum("# noqa" in line for path in files for line in path.read_text().splitlines()) <= NOQA


def test_a_run_is_its_table_and_little_more():
    lengths = {path.name: lines_of(path) for path in (PACKAGE / "runs").glob("*.py")}
    assert max(lengths.values()) <= FILE_LINES
    assert sum(lengths[f"{name}.py"] for name in ("plan", "effects", "attempt")) <= RUN_LINES


def test_an_environment_has_four_types():
    kinds = {
        node.name
        for folder in ("model", "envs")
        for _, node in parsed(PACKAGE / folder)
        if isinstance(node, ast.ClassDef) and "Environment" in node.name and not node.name.endswith("OfSlice")
    }
    assert kinds == {"EnvironmentSpec", "PinnedEnvironment", "EnvironmentRef", "EnvironmentKind"}


def test_one_driver_provisions_hosts():
    assert callers("provision") == {"things/driver.py"}


def test_one_way_proves_and_deletes():
    deletes = callers(".delete_node", ".delete_queued", ".delete_disk", ".delete_snapshot")
    assert {file for file in deletes if not file.startswith("sim/")} == {"inventory/delete.py"}
