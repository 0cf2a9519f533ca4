"""stdout and stderr: tables that fit, JSON with stable keys, colour only where a person looks.

stdout is data, stderr is talk. Nothing else in tpuctl writes to either.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

DEFAULT_WIDTH = 80
GAP = "  "
ELLIPSIS = "…"

_COLOURS: Mapping[str, str] = {
    **dict.fromkeys(("ready", "READY", "ACTIVE", "succeeded", "done", "ok"), "32"),
    **dict.fromkeys(("requested", "provisioning", "booting", "waiting", "preparing", "stopping"), "33"),
    **dict.fromkeys(("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "deleting"), "33"),
    "warning": "33",
    **dict.fromkeys(
        ("problem", "lost", "refused", "failed", "gave-up", "blocked", "PREEMPTED", "FAILED"), "31"
    ),
}


@dataclass(frozen=True)
class Column:
    """One column: `key` of the row, `title` in the header. The highest `give` is cut first."""

    key: str
    title: str
    right: bool = False
    give: int = 0


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Only on a terminal, and not with NO_COLOR (https://no-color.org) or TERM=dumb."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def paint(text: str, word: str, *, colour: bool) -> str:
    """`text` in the colour that the state `word` stands for."""
    code = _COLOURS.get(word) if colour else None
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def cell(value: Any) -> str:
    """A value in a table: nothing is a dash, yes and no are words, control characters are shown."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(cell(item) for item in value) or "-"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(value))


def render_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, width: int, colour: bool = False
) -> list[str]:
    """Lines of at most `width` characters: header, then one line per row."""
    cells = [[cell(row.get(column.key)) for column in columns] for row in rows]
    natural = [max([len(c.title), *(len(line[i]) for line in cells)]) for i, c in enumerate(columns)]
    widths = _fit(natural, columns, width)
    titles = [column.title for column in columns]
    return [_line(line, columns, widths, colour=colour) for line in [titles, *cells]]


def _fit(natural: Sequence[int], columns: Sequence[Column], width: int) -> list[int]:
    widths = list(natural)
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    for index in sorted(range(len(columns)), key=lambda i: -columns[i].give):
        if excess <= 0:
            break
        floor = min(widths[index], max(len(columns[index].title), 6))
        taken = min(excess, widths[index] - floor)
        widths[index] -= taken
        excess -= taken
    return widths


def _line(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int], *, colour: bool) -> str:
    parts = []
    for text, column, width in zip(texts, columns, widths, strict=True):
        shown = text if len(text) <= width else text[: width - 1] + ELLIPSIS
        padded = shown.rjust(width) if column.right else shown.ljust(width)
        parts.append(padded.replace(shown, paint(shown, text, colour=colour), 1) if shown else padded)
    return GAP.join(parts).rstrip()


def put(text: str) -> None:
    """One line on stdout, at once."""
    print(text, flush=True)


class Console:
    """Where one command writes. `label` (`sim`) marks every header and status line."""

    def __init__(self, *, json_mode: bool, quiet: bool, label: str = "") -> None:
        self.json_mode = json_mode
        self.quiet = quiet
        self.label = label
        self.out: TextIO = sys.stdout
        self.err: TextIO = sys.stderr

    @property
    def mark(self) -> str:
        """`[sim] ` on a simulated cloud, else nothing."""
        return f"[{self.label}] " if self.label else ""

    @property
    def width(self) -> int:
        """Of a terminal its own width; of a pipe no limit, so that nothing is cut from data."""
        if not self.out.isatty():
            return 10_000
        return shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns

    def line(self, text: str = "") -> None:
        """One line of data."""
        self.out.write(text + "\n")
        self.out.flush()

    def say(self, text: str) -> None:
        """One line of talk; none with --quiet or --json."""
        if not (self.quiet or self.json_mode):
            self.err.write(f"{self.mark}{text}\n")
            self.err.flush()

    def warn(self, text: str) -> None:
        """Talk that --quiet does not silence."""
        if not self.json_mode:
            self.err.write(f"{self.mark}warning: {text}\n")
            self.err.flush()

    def alarm(self, text: str, hint: str) -> None:
        """A warning that must not be overlooked: red where a person looks."""
        if not self.json_mode:
            red = paint(f"warning: {text}", "failed", colour=wants_colour(self.err))
            self.err.write(f"{self.mark}{red}\nhint: {hint}\n")
            self.err.flush()

    def data(self, value: Any) -> None:
        """A JSON document on stdout."""
        self.line(json.dumps(value, indent=2, ensure_ascii=False, default=str))

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
        self.line(self.mark + lines[0])
        for line in lines[1:]:
            self.line(" " * len(self.mark) + line)

    def fields(self, pairs: Mapping[str, Any]) -> None:
        """Names and values in two columns, or the mapping as JSON."""
        if self.json_mode:
            self.data(dict(pairs))
            return
        room = max((len(name) for name in pairs), default=0)
        colour = wants_colour(self.out)
        for index, (name, value) in enumerate(pairs.items()):
            mark = self.mark if index == 0 else " " * len(self.mark)
            self.line(
                f"{mark}{name.replace('_', ' ').ljust(room)}  {paint(cell(value), str(value), colour=colour)}"
            )

    @property
    def interactive(self) -> bool:
        """Whether a person can be asked."""
        return sys.stdin.isatty() and self.err.isatty()
