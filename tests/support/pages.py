"""The command lines in the examples of a page, as a person copies them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_EXAMPLE = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def section(page: Path, heading: str) -> str:
    """What stands below a heading, or below words in bold at the beginning of a paragraph."""
    text = page.read_text()
    begin = text.index(heading)
    level = re.match(r"#+ ", heading)
    end = re.compile(rf"^{level[0]}" if level else r"^(\*\*|#)", re.MULTILINE).search(
        text, begin + len(heading)
    )
    return text[begin : end.start() if end else None]


def typed_lines(text: str, meant: Mapping[str, str]) -> list[str]:
    """The lines of the examples, with what stands for something else replaced; continued lines are one."""
    lines = [
        line
        for example in _EXAMPLE.findall(text)
        for line in example.replace("\\\n", " ").splitlines()
        if line.strip()
    ]
    for word, value in meant.items():
        lines = [re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w])", value, line) for line in lines]
    return lines
