"""The frames in which files come back from workers, and what is asked of them. Nothing of it is trusted.

The list of what lies there came before: `file_list.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.errors import TpuctlError
from tpuctl.hosts.protocol import MalformedReplyError
from tpuctl.lib.text import sized
from tpuctl.workers.file_list import parse_size, parse_time

MAX_LINE = 64 << 10
KEPT_FREE = 16 << 20
"""What a copy leaves free on this machine's disk, for everything else that writes there."""
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


class Finished(Struct, frozen=True):
    """Nothing more comes."""


Frame = Begin | Piece | End | GivenUp | Finished


class Room(Struct, frozen=True):
    """How much is still to come to a place, and what is free in the file system that `path` shares with all
    places of the same `device`."""

    path: str
    device: int
    need: int
    free: int


def judge_room(rooms: Mapping[str, Room]) -> None:
    """TpuctlError where what comes from all workers, by label, does not fit."""
    for device in {room.device for room in rooms.values()}:
        here = {label: room for label, room in rooms.items() if room.device == device}
        need, free = sum(room.need for room in here.values()), min(room.free for room in here.values())
        if need and need + KEPT_FREE > free:
            most = max(here, key=lambda label: here[label].need)
            share = f", {sized(here[most].need)} of it from {most}" if len(here) > 1 else ""
            raise TpuctlError(
                f"no room in {here[most].path}: {sized(need)} are to come{share}, and {sized(free)} are free",
                hint="free some there, copy to another place, or from fewer workers with --worker",
            )


def render_wants(wants: Sequence[Want]) -> bytes:
    """What follows a request to send."""
    return json.dumps([[want.name, want.have, want.sha256, want.whole] for want in wants]).encode()


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
                parse_size(data["file"]),
                parse_size(data["from"]),
                parse_size(data["size"]),
                int(data["mode"]) & 0o777,
                parse_time(data["mtime_ns"]),
            )
        if "end" in data:
            return End(int(data["end"]), str(data["sha256"]))
        if "failed" in data:
            return GivenUp(int(data["failed"]), str(data["code"]), str(data["message"]))
        if "done" in data:
            return Finished()
        raise ValueError("no known frame")
