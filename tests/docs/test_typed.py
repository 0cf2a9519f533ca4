"""What texts tell people to type can be typed: commands and options exist."""

from __future__ import annotations

import pytest

from tests.docs.generate import ROOT
from tests.support.typed import commands_in, commands_in_page, strings_of, trouble

DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)


def test_every_command_in_a_message_hint_or_docstring_exists() -> None:
    seen, wrong = 0, []
    for path in sorted((ROOT / "tpuctl").rglob("*.py")):
        for line, text in strings_of(path):
            for command in commands_in(text):
                seen += 1
                if found := trouble(command):
                    wrong.append(f"{path.relative_to(ROOT)}:{line}: {found}")
    assert wrong == []
    assert seen > 120


def typed_in(name: str) -> list[str]:
    return list(commands_in_page((ROOT / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_command_line_in_the_documents_exists(name: str) -> None:
    assert [found for found in map(trouble, typed_in(name)) if found] == []


def test_commands_are_found_in_the_documents() -> None:
    assert len(typed_in("README.md")) > 30
    assert sum(len(typed_in(name)) for name in DOCUMENTS if name.startswith("docs/tasks/")) > 150


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hint: `tpuctl sim preemt a`", "tpuctl sim has no preemt"),
        ("tpuctl up v4-8 --spott", "tpuctl up has no --spott"),
        ("tpuctl frobnicate", "tpuctl has no frobnicate"),
        ("first this; tpuctl moumt add x", "tpuctl has no moumt"),
    ],
)
def test_what_does_not_exist_is_found(text: str, said: str) -> None:
    assert [said in trouble(command) for command in commands_in(text)] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "tpuctl run train.py --all-workers -- --lr 3",
        "`tpuctl --profile sim ls --json`, or nothing",
        "tpuctl apply --again X repeats it",
        "tpuctl up X --spot, or tpuctl down X",
        "`tpuctl watch`",
    ],
)
def test_what_exists_passes(text: str) -> None:
    found = list(commands_in(text))
    assert found
    assert [trouble(command) for command in found] == [""] * len(found)
