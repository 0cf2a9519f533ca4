"""What a process is doing, by its stack: it compiles, loads data, waits for its devices, and so on. Pure.

The rows are the activities of `manifests/tables/hangs.yaml`. What no row knows is told by where it is in the
program itself.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from tpuctl.hosts.protocol import ProcessStack


class Part(StrEnum):
    """What an activity is in a program of several processes."""

    WAITS = "waits"
    """For the others, or for chips."""
    WORKS = "works"
    """Others may wait for it."""
    ASIDE = "aside"
    """It is of a process beside the program itself."""
    UNKNOWN = "unknown"


class StackFrame(Struct, frozen=True):
    """One call of a stack. `path` is what the tool says: absolute, or below an entry of sys.path."""

    path: str
    line: int
    function: str

    @property
    def key(self) -> str:
        """What patterns are searched in."""
        return f"{self.path}:{self.function}"

    @property
    def said(self) -> str:
        """`train.py:21 next_batch`."""
        inner = "" if self.function.startswith("<") else f" {self.function}"
        return f"{PurePosixPath(self.path).name}:{self.line}{inner}"


class ActivityRow(Struct, frozen=True):
    """One row of the table."""

    id: str
    says: str
    part: Part
    samples: tuple[str, ...]
    source: str
    frames: tuple[re.Pattern[str], ...] = ()
    kernel: tuple[re.Pattern[str], ...] = ()


class Activities(Struct, frozen=True):
    """The rows in order, and whose frames are not the program's own."""

    rows: tuple[ActivityRow, ...]
    libraries: re.Pattern[str]


class Doing(Struct, frozen=True):
    """What one process does: the row by its `id`, in words, and where in the program that is."""

    id: str
    says: str
    part: Part
    at: str = ""

    @property
    def said(self) -> str:
        """`compiling (train.py:21 train_step)`."""
        return f"{self.says} ({self.at})" if self.at and self.at != self.says else self.says


NO_STACK = Doing("unknown", "not known what it does", Part.UNKNOWN)
HELD = Doing("stopped", "stopped by a signal", Part.UNKNOWN)
_JOINED = r"tpuctl_(?:\w+_hook|weights)\.py$"
"""What `tpuctl/agent/join.py` puts into programs; it stands between a program and the compiler."""
_PY_SPY = re.compile(r"^\s+(?P<function>\S.*?) \((?P<path>[^()]+):(?P<line>\d+)\)$")
_FAULTHANDLER = re.compile(r'^\s+File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_THREAD = re.compile(r"^(?:Thread|Current thread)\b.*$")


def parse_activities(data: Mapping[str, Any]) -> Activities:
    """The first parts of `manifests/tables/hangs.yaml`. Patterns begin at a name of a path."""

    def compiled(_: type, text: str) -> re.Pattern[str]:
        return re.compile(f"(?:^|/)(?:{text})")

    rows = msgspec.convert(data["activities"], tuple[ActivityRow, ...], dec_hook=compiled)
    return Activities(rows, re.compile(rf"(?:^|/)(?:(?:{data['libraries']})/|{_JOINED})"))


def parse_frames(text: str) -> tuple[StackFrame, ...]:
    """The calls of the main thread, the innermost first; none where `text` has no Python. faulthandler tells
    the main thread last, py-spy names it."""
    threads: list[tuple[str, list[StackFrame]]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append((line, []))
            continue
        match = _FAULTHANDLER.match(line) or _PY_SPY.match(line)
        if match is not None and threads:
            function = match["function"].rpartition(".")[2]
            threads[-1][1].append(StackFrame(match["path"], int(match["line"]), function))
    named = [frames for head, frames in threads if '"MainThread"' in head]
    found = named[0] if named else threads[-1][1] if threads else []
    return tuple(frame for frame in found if not frame.path.startswith("<frozen"))


def classify_process(table: Activities, process: ProcessStack) -> Doing:
    """What one process does. Of a shell and other programs only whether they are stopped is told."""
    frames = parse_frames(process.text)
    at = _own_frame(table, frames)
    if process.state in ("T", "t"):
        return Doing(HELD.id, HELD.says, HELD.part, at)
    if not frames and not is_python(process):
        return NO_STACK
    for row in table.rows:
        texts = [frame.key for frame in frames] if row.frames else [process.waits_in]
        if any(pattern.search(text) for text in texts for pattern in (*row.frames, *row.kernel)):
            return Doing(row.id, row.says, row.part, at)
    if not frames:
        return NO_STACK
    return Doing("program", "in its own code", Part.WORKS, at)


def is_python(process: ProcessStack) -> bool:
    """Whether an interpreter runs there, also one whose stack nobody could read."""
    return re.search(r"(?:^|/)python[\d.]*$", process.command.partition(" ")[0]) is not None


def choose_process(found: Iterable[tuple[ProcessStack, Doing]]) -> tuple[ProcessStack | None, Doing]:
    """Which of the processes of one command is the program, and what that does: the first one with a Python
    stack that is none beside it. What waits for a program that is not Python, is that itself."""
    rows = list(found)
    known = [row for row in rows if row[1].id != NO_STACK.id]
    ours = [row for row in known if row[1].part is not Part.ASIDE]
    for process, doing in (*ours, *known):
        return process, Doing(doing.id, doing.says, Part.WORKS, doing.at) if doing.part is Part.ASIDE else doing
    return (rows[0][0] if rows else None), NO_STACK


def _own_frame(table: Activities, frames: Sequence[StackFrame]) -> str:
    """The innermost call in the program itself, else the outermost."""
    own = [frame for frame in frames if not _of_library(table, frame.path)]
    return own[0].said if own else frames[-1].said if frames else ""


def _of_library(table: Activities, path: str) -> bool:
    """py-spy cuts paths off: `threading.py` is of the standard library, and so is `json/decoder.py`."""
    first = path.partition("/")[0].removesuffix(".py")
    return table.libraries.search(path) is not None or first in sys.stdlib_module_names
