"""Files that docstrings, comments and the documents for developers name are there."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache

from tests.support.session import ROOT

FOLDERS = ("tpuctl", "tests", "templates", "manifests")
SPAN = re.compile(r"`([^`]+)`")
FILE = re.compile(r"(?<![\w./-])[\w./-]+\.py\b")
NOT_OURS = {
    "cli/commands/NAME.py": "any command",
    "train.py": "a user's program",
    "threading.py": "of Python",
    "json/decoder.py": "of Python",
}
IN_DOCUMENTS = {
    "tpuctl/cli/commands/NAME.py": "any command",
}


def named_files(source: str) -> Iterator[str]:
    """The files that the docstrings and comments of a program name between backticks."""
    if ".py" not in source:
        return
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


@cache
def named_in_package() -> dict[str, list[str]]:
    """By the path of the file that names them."""
    sources = sorted((ROOT / "tpuctl").rglob("*.py"))
    return {
        str(path.relative_to(ROOT)): list(named_files(path.read_text(encoding="utf-8"))) for path in sources
    }


def dead_names(names: Iterable[str], paths: list[str]) -> list[str]:
    """Those of them that no path ends with."""
    return [name for name in names if not any(path.endswith(f"/{name}") for path in paths)]


def files_in_text(text: str) -> Iterator[str]:
    """The files that a Markdown document names between backticks, outside of blocks of code."""
    for span in SPAN.findall(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)):
        yield from FILE.findall(span)


def all_paths() -> list[str]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return [f"/{path.relative_to(ROOT)}" for path in found]


def test_every_file_that_a_docstring_names_exists() -> None:
    paths = all_paths()
    dead = {path: dead_names(names, paths) for path, names in named_in_package().items()}
    found = {path: [n for n in names if n not in NOT_OURS] for path, names in dead.items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_every_file_that_a_document_for_developers_names_exists() -> None:
    paths = all_paths()
    pages = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/develop").rglob("*.md"))]
    dead = {page.name: dead_names(files_in_text(page.read_text(encoding="utf-8")), paths) for page in pages}
    left = {page: sorted(set(names) - set(IN_DOCUMENTS)) for page, names in dead.items()}
    assert {page: names for page, names in left.items() if names} == {}
    assert set(IN_DOCUMENTS) <= set().union(*dead.values())


def test_each_exception_is_needed() -> None:
    assert {name for names in named_in_package().values() for name in names} >= set(NOT_OURS)


def test_a_dead_name_is_found() -> None:
    source = '"""Sent by `gone.py` and `lib/text.py:clip`."""\n# See `text.py` and `env/lib/text.py`.\n'
    assert dead_names(named_files(source), ["/tpuctl/lib/text.py"]) == ["env/lib/text.py", "gone.py"]
