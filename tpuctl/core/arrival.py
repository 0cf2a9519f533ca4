"""What workers send back: the list of what lies there, and the frames in which files come.

Nothing of it is trusted. Names are any bytes that a file system takes, in Python's surrogateescape form,
relative to what was asked for, which itself has the name "".
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpuctl.core.host_protocol import MalformedReplyError
from tpuctl.errors import TpuctlError

MAX_LINE = 64 << 10
MAX_NUMBER = (1 << 63) - 1
"""Sizes and times in ns are signed 64-bit numbers to every file system."""
CHANGED = "changed"
"""The code of a file that was written to while it was read: another try may succeed."""


@dataclass(frozen=True)
class FoundFile:
    name: str
    mode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class FoundLink:
    name: str
    target: str


@dataclass(frozen=True)
class FoundFolder:
    name: str
    mode: int


Found = FoundFile | FoundLink | FoundFolder


@dataclass(frozen=True)
class Want:
    """A file that is asked for. `have` bytes of it lie here with this digest: all of it, or its beginning."""

    name: str
    have: int = 0
    sha256: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Begin:
    """The file with this number in the request comes, from byte `start`; `size` is that of the whole."""

    number: int
    start: int
    size: int
    mode: int
    mtime_ns: int


@dataclass(frozen=True)
class Piece:
    data: bytes


@dataclass(frozen=True)
class End:
    number: int
    sha256: str


@dataclass(frozen=True)
class GivenUp:
    """The worker could not send this file."""

    number: int
    code: str
    message: str


@dataclass(frozen=True)
class Done:
    """Nothing more comes."""


Frame = Begin | Piece | End | GivenUp | Done


def render_wants(wants: Sequence[Want]) -> bytes:
    """What follows a request to send."""
    return json.dumps([[want.name, want.have, want.sha256, want.whole] for want in wants]).encode()


def parse_survey(data: Mapping[str, Any]) -> tuple[Found, ...]:
    """The entries of a survey. MalformedReplyError for what is none; TpuctlError for what leaves the target."""
    try:
        found = tuple(_entry(row) for row in data["entries"])
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise MalformedReplyError(f"not a list of files: {error}") from error
    _check(found)
    return found


def _entry(row: Sequence[Any]) -> Found:
    kind, name = row[0], row[1]
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no name")
    _check_bytes(name)
    if kind == "f":
        return FoundFile(name, int(row[2]) & 0o777, _size(row[3]), _time(row[4]))
    if kind == "l":
        _check_bytes(str(row[2]))
        return FoundLink(name, str(row[2]))
    if kind == "d":
        return FoundFolder(name, int(row[2]) & 0o777)
    raise ValueError(f"{name!r} is of kind {kind!r}")


def _check_bytes(name: str) -> None:
    """ValueError for text that stands for no bytes, or that no system call takes."""
    if "\0" in name:
        raise ValueError(f"{name!r} holds a NUL")
    name.encode("utf-8", "surrogateescape")


def _size(value: Any) -> int:
    size = int(value)
    if not 0 <= size < MAX_NUMBER:
        raise ValueError(f"{size} is no size of a file")
    return size


def _time(value: Any) -> int:
    """A time of change that `utime` takes."""
    return max(-MAX_NUMBER, min(MAX_NUMBER, int(value)))


def _check(found: Sequence[Found]) -> None:
    """Refuses names and links that lead out of the target, and what lies behind a file or a link."""
    kinds: dict[str, Found] = {}
    for entry in found:
        parts = entry.name.split("/") if entry.name else []
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise TpuctlError(f"refused: the host sent a file that leaves the target: {entry.name!r}")
        if entry.name in kinds:
            raise TpuctlError(f"refused: the host sent {entry.name!r} twice")
        kinds[entry.name] = entry
        if isinstance(entry, FoundLink):
            end = posixpath.normpath(posixpath.join(posixpath.dirname(entry.name), entry.target))
            if not entry.name or entry.target.startswith("/") or end.split("/")[0] == "..":
                raise TpuctlError(
                    f"refused: the host sent a link out of the target: {entry.name!r} to {entry.target!r}"
                )
    for entry in found:
        name = entry.name
        while name:
            name = posixpath.dirname(name)
            if not isinstance(kinds.get(name), FoundFolder):
                raise TpuctlError(f"refused: the host sent a file that lies in no directory: {entry.name!r}")


class FrameReader:
    """Bytes in, frames out; what a login script prints before them is passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._raw_left = 0
        self._open = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now; raw bytes are passed on as they come. MalformedReplyError."""
        self._rest += data
        while self._rest:
            if self._raw_left:
                piece, self._rest = self._rest[: self._raw_left], self._rest[self._raw_left :]
                self._raw_left -= len(piece)
                yield Piece(piece)
                continue
            line, newline, rest = self._rest.partition(b"\n")
            if not newline:
                if len(line) > MAX_LINE:
                    raise MalformedReplyError("the host sent a line without an end")
                return
            self._rest = rest
            frame = self._parse(line)
            if frame is not None:
                yield frame

    def _parse(self, line: bytes) -> Frame | None:
        if not self._open:
            self._open = line.startswith(b'{"sending"')
            return None
        try:
            data = json.loads(line)
            return self._frame(data)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise MalformedReplyError(f"the host sent {line[:80]!r} between files") from error

    def _frame(self, data: Mapping[str, Any]) -> Frame | None:
        if "data" in data:
            self._raw_left = max(0, int(data["data"]))
            return None
        if "file" in data:
            return Begin(
                int(data["file"]),
                _size(data["from"]),
                _size(data["size"]),
                int(data["mode"]) & 0o777,
                _time(data["mtime_ns"]),
            )
        if "end" in data:
            return End(int(data["end"]), str(data["sha256"]))
        if "failed" in data:
            return GivenUp(int(data["failed"]), str(data["code"]), str(data["message"]))
        if "done" in data:
            return Done()
        raise ValueError("no known frame")
