"""Files that docstrings and comments name are there."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.support.session import ROOT

FOLDERS = ("tpuctl", "tests", "templates", "manifests")
SPAN = re.compile(r"`([^`]+)`")
FILE = re.compile(r"(?<![\w./-])[\w./-]+\.py\b")
NOT_OURS = {
    "cli/commands/NAME.py": "any command",
    "train.py": "a user's program",
}


def named_files(source: str) -> Iterator[str]:
    """The files that the docstrings and comments of a program name between backticks."""
    texts = [
        t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT
    ]
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            texts.append(node.value.value)
    for text in texts:
        for span in SPAN.findall(text):
            yield from FILE.findall(span)


def dead_names(source: str, paths: list[str]) -> list[str]:
    """Those of them that no path ends with."""
    return [name for name in named_files(source) if not any(path.endswith(f"/{name}") for path in paths)]


def all_paths() -> list[str]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return [f"/{path.relative_to(ROOT)}" for path in found]


def test_every_file_that_a_docstring_names_exists() -> None:
    paths = all_paths()
    sources: list[Path] = sorted((ROOT / "tpuctl").rglob("*.py"))
    dead = {
        str(path.relative_to(ROOT)): dead_names(path.read_text(encoding="utf-8"), paths) for path in sources
    }
    found = {path: [n for n in names if n not in NOT_OURS] for path, names in dead.items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_each_exception_is_needed() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tpuctl").rglob("*.py"))
    assert {name for source in sources for name in named_files(source)} >= set(NOT_OURS)


def test_a_dead_name_is_found() -> None:
    source = '"""Sent by `gone.py` and `lib/text.py:clip`."""\n# See `text.py` and `env/lib/text.py`.\n'
    assert dead_names(source, ["/tpuctl/lib/text.py"]) == ["env/lib/text.py", "gone.py"]
