"""What texts tell people to type can be typed: commands and options exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.generate import ROOT
from tests.support.typed import commands_in, strings_of, trouble

DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_command_line_in_the_documents_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    typed = re.findall(r"^\$? ?(tpuctl [^#|>\n]+)", text, flags=re.MULTILINE)
    typed += [command for line in text.splitlines() for command in commands_in(line)]
    assert [found for found in map(trouble, typed) if found] == []
    if name == "README.md":
        assert len(typed) > 60


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hint: `tpuctl sim preemt a`", "tpuctl sim has no preemt"),
        ("tpuctl up v4-8 --spott", "tpuctl up has no --spott"),
        ("tpuctl frobnicate", "tpuctl has no frobnicate"),
        ("first this; tpuctl disk attach x", "tpuctl has no disk"),
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
