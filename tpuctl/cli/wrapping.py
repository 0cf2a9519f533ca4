"""Long lines for narrow terminals: broken between words, never inside a command that fits on a line."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from typing import TextIO

from tpuctl.lib.text import parse_number

DEFAULT_WIDTH = 80
MIN_WIDTH = 20
MAX_WIDTH = 100
"""Prose is not made wider than this, whatever the terminal has."""
_QUOTED = re.compile(r"`[^`]+`[^\s`]*")
_JOINT = re.compile(r"(?<=\w)(?:[-_/=]|(?<!\d)[,.:]|[,.:](?!\d))+(?=\w)")
"""Between words, never within a number."""
_GLUE = "\x00"
"""Stands for a blank that holds while lines are broken: inside a quoted command, before a unit."""
_UNIT = re.compile(r"(?<=\d) (?=(?:s|min|h|[KMGT]i?B)\b)")


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal that `stream` writes to (`COLUMNS` counts more), 80 where there is none."""
    said = os.environ.get("COLUMNS", "")
    columns = parse_number(said)
    if columns:
        return max(MIN_WIDTH, columns)
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # no terminal, or no file at all
        columns = 0
    return max(MIN_WIDTH, columns or DEFAULT_WIDTH)


def cell_len(text: str) -> int:
    """Columns that `text` takes on a terminal: two for a Chinese character, none for a combining accent."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len as measured  # not at the top: few texts need it

    return measured(text.replace(_GLUE, " "))


def cut(text: str, width: int) -> str:
    """As much of the beginning of `text` as has room in `width` columns, but at least one character."""
    used = 0
    for end, char in enumerate(text):
        used += cell_len(char)
        if end and used > width:
            return text[:end]
    return text


def wrap(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` columns; line breaks in it stay. What stands in backquotes is kept
    whole where it fits, so that it can be pasted; a word longer than a line is broken."""
    width = max(1, width)
    return [line for part in text.split("\n") for line in _wrap_line(part, width)]


def _wrap_line(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    indent = " " * min(len(text) - len(text.lstrip()), (width - 1) // 2)
    lines, line = [], indent
    for word in _UNIT.sub(_GLUE, _QUOTED.sub(lambda found: _glued(found[0], width), text)).split():
        gap = " " if line.strip() else ""
        if line.strip() and cell_len(line + gap + word) > width:
            lines.append(line)
            line, gap = indent, ""
        line += gap + word
        while cell_len(line) > width and len(line) > 1:
            at = _break(line, width)
            lines.append(line[:at])
            line = indent + line[at:]
    return [each.replace(_GLUE, " ") for each in [*lines, line]]


def _break(word: str, width: int) -> int:
    """Where to break a word that is longer than a line: behind its last slash, else its last joint, else
    anywhere."""
    most = len(cut(word, width))
    joints = [found for found in _JOINT.finditer(word) if found.end() <= most]
    slashes = [found for found in joints if "/" in found[0]]
    return (slashes or joints)[-1].end() if joints else most


def widest(texts: Collection[str]) -> int:
    """Columns that the longest of `texts` takes. Of thousands, which are plain as a rule, it is one look."""
    return max(map(len if "".join(texts).isascii() else cell_len, texts), default=0)


def longest_word(texts: Iterable[str], *, breaks: bool = True) -> int:
    """Columns that the longest piece in any of `texts` takes which `wrap` leaves whole if it can; without
    `breaks` whole words."""
    words = {word for text in texts for word in text.split()}
    pieces = {piece for word in words for piece in _JOINT.sub(r"\g<0> ", word).split()} if breaks else words
    return widest(pieces)


def _glued(quoted: str, width: int) -> str:
    return quoted.replace(" ", _GLUE) if cell_len(quoted) <= width else quoted


def hang(text: str, stream: TextIO, *, first: str = "", indent: int | None = None) -> str:
    """`first` and `text` as lines for `stream`: at a terminal wrapped to its width, with what follows the first
    line indented (as far as `first` reaches, unless said otherwise); elsewhere as it is."""
    if not stream.isatty():
        return f"{first}{text}"
    hanging = " " * (len(first) if indent is None else indent)
    lines = wrap(text, terminal_width(stream) - max(len(first), len(hanging)))
    return first + f"\n{hanging}".join(lines)


def with_first(hint: str, first: str) -> str:
    """`hint` with the command that has to come before those of gcloud in it, if there is one."""
    if not first or "gcloud " not in hint:
        return hint
    return f"{first}; {hint}" if hint.startswith("gcloud ") else f"{hint} (before gcloud: `{first}`)"


def hint_lines(hint: str, stream: TextIO) -> str:
    """The line about what to type next.

    A bare command is left in one piece: what a terminal breaks by itself is still copied as one line. Who
    writes a sentence marks the commands in it by backquotes.
    """
    return hang(hint, stream, first="hint: ") if "`" in hint else f"hint: {hint}"
