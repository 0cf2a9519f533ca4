"""stdout and stderr: tables that fit, JSON with stable keys, colour only where a person looks.

stdout is data, stderr is talk. Nothing else in tpuctl writes to either.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from msgspec import Struct

from tpuctl.cli.wrapping import (
    MAX_WIDTH,
    cell_len,
    cut,
    hang,
    hint_lines,
    longest_word,
    terminal_width,
    widest,
    wrap,
)

_SURROGATES = re.compile("[\ud800-\udfff]")
GAP = "  "
MIN_ROOM = 24
"""A last column with less room than this is written beneath its row where it does not fit."""
BENEATH = 4
MIN_COLUMN = 6
LEAST_CUT = 16
"""So much of a text that is cut to one line is worth more than a column that may be left out."""

_COLOURS: Mapping[str, str] = {
    **dict.fromkeys(("ready", "READY", "ACTIVE", "succeeded", "done", "ok"), "32"),
    **dict.fromkeys(("requested", "provisioning", "booting", "waiting", "preparing", "stopping"), "33"),
    **dict.fromkeys(("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "deleting"), "33"),
    "warning": "33",
    **dict.fromkeys(
        ("problem", "lost", "refused", "failed", "gave-up", "blocked", "PREEMPTED", "FAILED", "synthetic"), "31"
    ),
}


class Column(Struct, frozen=True):
    """One column: `key` of the row, `title` in the header.

    The highest `give` is made narrow first; what does not fit goes on in the next line. `most`: cut after so
    many lines, for what may be very long. `whole`: for words, such as a zone, that are broken last; where the
    table is too wide, such a column with a `give` goes beneath each row, behind its title. `drop`: where rows
    would not fit on one line each, such columns are left out, the highest first: `--json` has them.
    """

    key: str
    title: str
    right: bool = False
    give: int = 0
    most: int | None = None
    whole: bool = False
    drop: int = 0


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Only on a terminal, and not with NO_COLOR (https://no-color.org) or TERM=dumb."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def paint(text: str, word: str, *, colour: bool) -> str:
    """`text` in the colour that the state `word` stands for."""
    code = _COLOURS.get(word) if colour else None
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def cell(value: Any) -> str:
    """A value in a table: nothing is a dash, yes and no are words, control characters are shown."""
    if type(value) is str and value.isprintable():
        return value or "-"
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(cell(item) for item in value) or "-"
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def render_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, width: int, colour: bool = False
) -> list[str]:
    """Lines of at most `width` columns: the header, then the rows, on several lines where a cell needs them.

    A last column that is left with too little room goes beneath its row instead; a name in the first column
    that would have to be broken stands on a line of its own, above its row.
    """
    cells = [[column.title, *map(cell, [row.get(column.key) for row in rows])] for column in columns]
    stacks = [[*dict.fromkeys(texts)] for texts in cells]
    kept = _kept(stacks, columns, width)
    moved = [i for i, column in enumerate(columns) if i not in kept and not column.drop]
    notes = [_note(texts, columns, moved) for texts in zip(*cells, strict=True)] if moved else []
    columns = [columns[i] for i in kept]
    cells, stacks = [cells[i] for i in kept], [stacks[i] for i in kept]
    widths = _fit(stacks, columns, width)
    above = widths[0] < longest_word(stacks[0], breaks=False)
    if above:
        shown = [text for text in stacks[0] if cell_len(text) <= width // 6]
        widths = _fit([[columns[0].title, *shown], *stacks[1:]], columns, width)
    last = columns[-1]
    beneath = (
        len(columns) > 1
        and last.give > 0
        and not last.whole
        and last.most != 1
        and widths[-1] < min(widest(stacks[-1]), MIN_ROOM)
    )
    if beneath:
        widths = _fit(stacks[:-1], columns, width)
        widths.append(max(0, width - _total(widths) - len(GAP)))
    blocks = [_blocks(*each, colour=colour) for each in zip(stacks, columns, widths, strict=True)]
    heads = {text: wrap(text, width) for text in _too_long(stacks[0], widths[0])} if above else {}
    blocks[0].update({key: [" " * widths[0]] for key in heads})
    tails = {text: _tail(text, last, width) for text in _too_long(stacks[-1], widths[-1])} if beneath else {}
    blocks[-1].update({key: [" " * widths[-1]] for key in tails})
    if not (moved or heads or tails or any(len(block) > 1 for found in blocks for block in found.values())):
        plain = [[found[text][0] for text in texts] for found, texts in zip(blocks, cells, strict=True)]
        return [GAP.join(row).rstrip() for row in zip(*plain, strict=True)]
    lines: list[str] = []
    for number, texts in enumerate(zip(*cells, strict=True)):
        lines += heads.get(texts[0], ())
        lines += _side_by_side([found[text] for found, text in zip(blocks, texts, strict=True)], widths)
        lines += tails.get(texts[-1], ())
        if number and moved:
            lines += [" " * BENEATH + line for line in wrap(notes[number], width - BENEATH) if line]
    return lines


def _kept(stacks: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[int]:
    """Which columns stand side by side: those that may be dropped leave until each row has room on one line,
    then whole ones, the highest `give` first, until the rest has room."""
    kept, full = list(range(len(columns))), [*map(widest, stacks)]
    one_line = [min(full[i], LEAST_CUT) if columns[i].most == 1 else full[i] for i in kept]
    for index in sorted((i for i in kept if columns[i].drop), key=lambda i: -columns[i].drop):
        if _total([one_line[i] for i in kept]) > width:
            kept.remove(index)
    movable = [i for i in kept if columns[i].whole and columns[i].give and not columns[i].drop]
    leaving = sorted(movable, key=lambda i: columns[i].give)

    def least(index: int) -> int:
        return full[index] if columns[index].whole else len(columns[index].title)

    while leaving and _total([least(i) for i in kept]) > width:
        kept.remove(leaving.pop())
    return kept


def _note(texts: Sequence[str], columns: Sequence[Column], moved: Sequence[int]) -> str:
    """The cells of a row that stand in the `moved` columns, with their titles."""
    return GAP.join(f"{columns[i].title} {texts[i]}" for i in moved if texts[i] != "-")


def _too_long(texts: Sequence[str], width: int) -> list[str]:
    return [text for text in texts if cell_len(text) > width]


def _tail(text: str, column: Column, width: int) -> list[str]:
    """The lines beneath a row of a last cell that does not fit."""
    return [" " * BENEATH + line for line in wrap(text, width - BENEATH)[: column.most]]


def _blocks(texts: Sequence[str], column: Column, width: int, *, colour: bool) -> dict[str, list[str]]:
    """The lines of each cell of a column, filled up to its width. Most cells of a long table are alike."""
    found = {}
    for text in texts:
        lines = []
        for line in _cell_lines(text, column, width):
            shown = paint(line, text, colour=colour and bool(line) and text != column.title)
            space = " " * (width - cell_len(line))
            lines.append(space + shown if column.right else shown + space)
        found[text] = lines
    return found


def _side_by_side(blocks: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """The lines of one row: what has fewer of them than its neighbours ends first."""
    padded = zip(blocks, widths, strict=True)
    height = max(map(len, blocks))
    columns = [[*block, *[" " * width] * (height - len(block))] for block, width in padded]
    return [GAP.join(line).rstrip() for line in zip(*columns, strict=True)]


def _cell_lines(text: str, column: Column, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    if column.most == 1:
        return [cut(text, width - 1) + "…"]
    lines = wrap(text, width)
    if column.most is not None and len(lines) > column.most:
        lines = lines[: column.most]
        lines[-1] = cut(lines[-1], width - 1) + "…"
    return lines


def _fit(stacks: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[int]:
    """Columns are made narrower until the table fits: first to their longest word, then as far as it takes."""
    widths = [*map(widest, stacks)]
    if _total(widths) <= width:
        return widths
    words = [longest_word(stack) for stack in stacks]
    words = [min(word, LEAST_CUT) if columns[i].most == 1 else word for i, word in enumerate(words)]
    unbroken = [widths[i] if columns[i].whole else word for i, word in enumerate(words)]
    for floors in (unbroken, [MIN_COLUMN] * len(columns)):
        for index in sorted(range(len(stacks)), key=lambda i: -columns[i].give):
            excess = _total(widths) - width
            floor = max(len(columns[index].title), floors[index])
            widths[index] -= max(0, min(excess, widths[index] - floor))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def render_json(value: Any) -> str:
    """A JSON document that is valid UTF-8: what stands for bytes that are no text is replaced."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


def put(text: str) -> None:
    """One line on stdout, at once."""
    print(text, flush=True)


_GCLOUD = re.compile(r"\bgcloud (?:alpha|beta|compute|projects|resource-manager|services|storage) ")


class Console:
    """Where one command writes. `label` (`sim`) marks every header and status line; `gcloud_first` is what a
    shell needs before gcloud means the same cloud."""

    def __init__(self, *, json_mode: bool, quiet: bool, label: str = "", gcloud_first: str = "") -> None:
        self.json_mode = json_mode
        self.quiet = quiet
        self.label = label
        self._gcloud_first = gcloud_first
        self._names_gcloud = False
        self.out: TextIO = sys.stdout
        self.err: TextIO = sys.stderr
        self.before_line: Callable[[], None] = lambda: None
        """Takes what is drawn at the foot of the terminal away before a line is written."""

    @property
    def mark(self) -> str:
        """`[sim] ` on a simulated cloud, else nothing."""
        return f"[{self.label}] " if self.label else ""

    @property
    def width(self) -> int:
        """Of a terminal its own width; of a pipe no limit, so that nothing is cut from data."""
        if not self.out.isatty():
            return 10_000
        return terminal_width(self.out)

    @property
    def prose_width(self) -> int:
        """How wide sentences on stdout are made."""
        return min(terminal_width(self.out), MAX_WIDTH)

    def line(self, text: str = "") -> None:
        """One line of data."""
        self._notice_gcloud(text)
        self.before_line()
        self.out.write(_SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text) + "\n")
        self.out.flush()

    def sentence(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        """A result in words on stdout, marked; at a terminal on several lines if it is long. Under --json it is
        `facts`, which all commands have that take it."""
        if facts is not None and self.json_mode:
            self.data(facts)
            return
        self.line(hang(text, self.out, first=self.mark, indent=len(self.mark) + 2))

    def say(self, text: str) -> None:
        """One line of talk; none with --quiet or --json."""
        if not self.quiet:
            self._talk(text)

    def verbatim(self, text: str) -> None:
        """Talk that is shown as it is, such as the content of a file: never wrapped or marked."""
        if not self.quiet and not self.json_mode:
            self.before_line()
            self.err.write(f"{text}\n")
            self.err.flush()

    def warn(self, text: str) -> None:
        """Talk about what may go wrong; none with --quiet or --json."""
        if not self.quiet:
            self._talk(text, "warning: ", "warning")

    def caveat(self, text: str) -> None:
        """What a result lacks: a part of the answer, which --quiet does not silence."""
        self._talk(text, "warning: ", "warning")

    def alarm(self, text: str, hint: str) -> None:
        """A warning that must not be overlooked: red where a person looks."""
        if self.quiet:
            return
        self._talk(text, "warning: ", "failed")
        if not self.json_mode:
            self.err.write(f"{hint_lines(hint, self.err)}\n")
            self.err.flush()

    def _talk(self, text: str, kind: str = "", word: str = "") -> None:
        """A line on stderr, at a terminal on several if it is long; `word` gives it its colour."""
        if self.json_mode:
            return
        self._notice_gcloud(text)
        shown = hang(kind + text, self.err, first=self.mark, indent=len(self.mark) + 2)
        body = shown.removeprefix(self.mark)
        self.before_line()
        painted = paint(body, word, colour=bool(word) and wants_colour(self.err))
        self.err.write(f"{self.mark}{painted}\n")
        self.err.flush()

    def _notice_gcloud(self, text: str) -> None:
        self._names_gcloud |= bool(_GCLOUD.search(text)) and self._gcloud_first not in text

    def close(self) -> None:
        """Says once what has to come before the commands of gcloud that were shown."""
        if self._gcloud_first and self._names_gcloud:
            self._names_gcloud = False
            self.say(f"before gcloud: `{self._gcloud_first}`")

    def data(self, value: Any) -> None:
        """A JSON document on stdout."""
        self.line(render_json(value))

    def answer(self, value: Any, text: str) -> None:
        """A result: `value` under --json, else `text` as `say` does."""
        self.data(value) if self.json_mode else self.say(text)

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, empty: str = "") -> None:
        """Rows as a table, or as a JSON list with all their keys under --json."""
        if self.json_mode:
            self.data([dict(row) for row in rows])
            return
        if not rows:
            self.say(empty or "nothing to show")
            return
        colour = wants_colour(self.out)
        lines = render_table(rows, columns, width=self.width - len(self.mark), colour=colour)
        self.line(self.mark + f"\n{' ' * len(self.mark)}".join(lines))

    def fields(self, pairs: Mapping[str, Any]) -> None:
        """Names and values in two columns, or the mapping as JSON."""
        if self.json_mode:
            self.data(dict(pairs))
            return
        room = max((len(name) for name in pairs), default=0) + len(GAP)
        colour = wants_colour(self.out)
        for index, (name, value) in enumerate(pairs.items()):
            mark = self.mark if index == 0 else " " * len(self.mark)
            left = f"{mark}{name.replace('_', ' ').ljust(room)}"
            lines = wrap(cell(value), self.width - len(left))
            painted = [paint(line, str(value), colour=colour) for line in lines]
            self.line(left + ("\n" + " " * len(left)).join(painted))

    @property
    def interactive(self) -> bool:
        """Whether a person can be asked."""
        return sys.stdin.isatty() and self.err.isatty()
