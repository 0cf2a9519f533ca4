"""What takes the files of a copy from workers in tests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tpuctl.workers.file_list import Found, FoundFile, FoundLink, UnreadFile
from tpuctl.workers.receive_protocol import Begin, End, Frame, Piece, Room, Want


class Kept:
    """Keeps in memory what comes; `names` are those below the path that was asked for."""

    def __init__(self) -> None:
        self.names: dict[str, bytes | str] = {}
        self._wanted: list[Want] = []
        self._data = b""

    def plan(self, found: Sequence[Found]) -> None:
        self.names = {entry.name: entry.target for entry in found if isinstance(entry, FoundLink)}
        self._wanted = [Want(entry.name) for entry in found if isinstance(entry, FoundFile)]

    def room(self) -> Room:
        return Room("memory", 0, 0, 0)

    def wants(self) -> tuple[Want, ...]:
        return tuple(want for want in self._wanted if want.name not in self.names)

    def take(self, frame: Frame) -> None:
        if isinstance(frame, Begin):
            self._data = b""
        elif isinstance(frame, Piece):
            self._data += frame.data
        elif isinstance(frame, End):
            assert hashlib.sha256(self._data).hexdigest() == frame.sha256
            self.names[self._wanted[frame.number].name] = self._data

    def finish(self) -> tuple[UnreadFile, ...]:
        assert not self.wants()
        return ()

    def close(self) -> None:
        self._data = b""
