"""What the house is measured by: how long things are, and how often one idea is written down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def nodes(kind: type, folder: str = "tpuctl") -> Iterator[tuple[str, ast.AST]]:
    """With the file of each, below the package."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.walk(ast.parse(path.read_text()))
        yield from ((str(path.relative_to(ROOT / "tpuctl")), node) for node in tree if isinstance(node, kind))


def callers(*names: str) -> set[str]:
    """The files in which one of these is called; `.name` is a method."""
    words = {ast.Attribute: lambda func: f".{func.attr}", ast.Name: lambda func: func.id}
    calls = ((file, call.func) for file, call in nodes(ast.Call))
    return {file for file, func in calls if type(func) in words and words[type(func)](func) in names}


def test_no_function_is_longer_than_a_screen():
    found = {f"{file} {node.name}": node.end_lineno - node.lineno + 1 for file, node in nodes(ast.FunctionDef)}
    assert len(found) > 3000
    assert {name: lines for name, lines in found.items() if lines > 60} == {}


def test_exceptions_from_lint_stay_few():
    files = [path.read_text() for folder in ("tpuctl", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert 0 < sum("# noqa" in line for text in files for line in text.splitlines()) <= 76


def test_a_run_is_its_table_and_little_more():
    lines = {path.stem: len(path.read_text().splitlines()) for path in (ROOT / "tpuctl/runs").glob("*.py")}
    assert max(lines.values()) <= 400
    assert sum(lines[name] for name in ("plan", "effects", "attempt")) <= 1_100


def test_one_idea_is_written_down_once():
    """Four types of an environment, one driver that provisions hosts, one way to prove and delete."""
    classes = [node.name for part in ("model", "envs") for _, node in nodes(ast.ClassDef, f"tpuctl/{part}")]
    kinds = {name for name in classes if "Environment" in name and not name.endswith("OfSlice")}
    assert kinds == {"EnvironmentSpec", "PinnedEnvironment", "EnvironmentRef", "EnvironmentKind"}
    assert callers("provision") == {"things/driver.py"}
    deletes = callers(".delete_node", ".delete_queued", ".delete_disk", ".delete_snapshot")
    assert {file for file in deletes if not file.startswith("sim/")} == {"inventory/delete.py"}
