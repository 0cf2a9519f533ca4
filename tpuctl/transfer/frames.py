"""The frames in which contents travel to hosts and back, as `tpuctl/agent/frames.py` has them.

Nothing of what comes back is trusted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.errors import TpuctlError
from tpuctl.hosts.protocol import MalformedReplyError
from tpuctl.transfer.tree import Blob, parse_size, parse_time

HEAD = 8
PIECE = 1 << 18
NOTE_MAX = 4 << 20
"""Far more than a worker puts into one."""
OPENED = b'{"frames"'
"""Begins the line behind which frames come."""
REFUSED = b'{"error"'
"""Begins the line that the agent ends with instead, also between frames: as long as a head, it is none."""
MAX_WORDS = 300
CHANGED = "changed"
"""The code of a file that was written to while it was read: another try may succeed."""


class Want(Struct, frozen=True):
    """A file that is asked for. `have` bytes of it lie here with this digest: all of it, or its beginning."""

    name: str
    have: int = 0
    sha256: str = ""
    whole: bool = False


class Begin(Struct, frozen=True):
    """The file with this number in the request comes, from byte `start`; `size` is that of the whole."""

    number: int
    start: int
    size: int
    mode: int
    mtime_ns: int


class Piece(Struct, frozen=True):
    data: bytes


class End(Struct, frozen=True):
    number: int
    sha256: str


class GivenUp(Struct, frozen=True):
    """The worker could not send this file."""

    number: int
    code: str
    message: str


Frame = Begin | Piece | End | GivenUp


def render_wants(wants: Sequence[Want]) -> bytes:
    """What follows a request to send."""
    return json.dumps([[want.name, want.have, want.sha256, want.whole] for want in wants]).encode()


def render_contents(
    contents: Iterable[tuple[Blob, int, Iterable[bytes]]], may_go_on: Callable[[int], bool] = lambda _: True
) -> Iterator[bytes]:
    """Frames of each content from the byte of its row on, made of the data of the whole. `may_go_on` is asked
    before each piece with how long that is; nothing follows its no."""
    for blob, start, data in contents:
        yield render_note({"file": blob.sha256, "size": blob.size, "from": start})
        at = start
        for piece in _pieces_behind(start, blob.size, data):
            if not may_go_on(len(piece)):
                return
            at += len(piece)
            yield b"".join((_render_head(len(piece)), piece))
        if at < blob.size:
            message = "a file became shorter while it was sent"
            yield render_note({"failed": blob.sha256, "code": CHANGED, "message": message})
            return
    yield render_note({"done": True})


def _pieces_behind(start: int, end: int, data: Iterable[bytes]) -> Iterator[memoryview]:
    at = 0
    for part in data:
        first, at = at, at + len(part)
        for begin in range(max(start - first, 0), min(len(part), end - first), PIECE):
            yield memoryview(part)[begin : min(begin + PIECE, end - first)]


def _render_head(count: int) -> bytes:
    return count.to_bytes(HEAD, "big", signed=True)


def render_note(fields: Mapping[str, Any]) -> bytes:
    """What is said between pieces."""
    data = json.dumps(fields).encode()
    return _render_head(-len(data)) + data


class NoteReader:
    """Bytes in, notes and pieces out; what a login script prints before them is passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._raw_left = 0
        self._open = False

    def read(self, data: bytes) -> Iterator[bytes | Mapping[str, Any]]:
        """What is complete now; pieces are passed on as they come. Raises MalformedReplyError, and TpuctlError
        with what the host says instead."""
        self._rest += data
        while self._rest:
            if self._raw_left:
                piece, self._rest = self._rest[: self._raw_left], self._rest[self._raw_left :]
                self._raw_left -= len(piece)
                yield piece
            elif not self._open or self._rest.startswith(REFUSED):
                line, newline, rest = self._rest.partition(b"\n")
                if not newline:
                    _check_end(len(line))
                    return
                self._rest, self._open = rest, self._open or line.startswith(OPENED)
                if line.startswith(REFUSED):
                    raise _refusal(line)
            else:
                count = int.from_bytes(self._rest[:HEAD], "big", signed=True) if len(self._rest) >= HEAD else 0
                _check_end(-count)
                end = HEAD + max(0, -count)
                if len(self._rest) < end:
                    return
                note, self._rest = self._rest[HEAD:end], self._rest[end:]
                self._raw_left = max(0, count)
                if count <= 0:
                    yield _parse_note(note)


class FrameReader(NoteReader):
    """The same as frames of files."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """See `read`."""
        for each in self.read(data):
            yield Piece(each) if isinstance(each, bytes) else _frame(each)


def _check_end(size: int) -> None:
    if size > NOTE_MAX:
        raise MalformedReplyError("the host sent a line without an end")


def _parse_note(content: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedReplyError(f"the host sent {content[:80]!r} between files") from error
    if not isinstance(data, dict):
        raise MalformedReplyError(f"the host sent {content[:80]!r} between files")
    return data


def _refusal(line: bytes) -> TpuctlError:
    data = _parse_note(line)
    return TpuctlError(str(data.get("message", data["error"]))[:MAX_WORDS])


def _frame(data: Mapping[str, Any]) -> Frame:
    try:
        if "file" in data:
            number, start, size = (parse_size(data[key]) for key in ("file", "from", "size"))
            return Begin(number, start, size, int(data["mode"]) & 0o777, parse_time(data["mtime_ns"]))
        if "end" in data:
            return End(int(data["end"]), str(data["sha256"]))
        return GivenUp(int(data["failed"]), str(data["code"]), str(data["message"]))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise MalformedReplyError(f"the host sent {str(data)[:80]} between files") from error
