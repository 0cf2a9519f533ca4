"""What takes the files of a copy from workers in tests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tpuctl.transfer.frames import Begin, End, Frame, Piece, Want
from tpuctl.transfer.tree import Entry, TreeFile, TreeLink
from tpuctl.workers.file_list import UnreadFile
from tpuctl.workers.file_receiver import Room


class Kept:
    """Keeps in memory what comes; `names` are those below the path that was asked for."""

    def __init__(self) -> None:
        self.names: dict[str, bytes | str] = {}
        self._wanted: list[Want] = []
        self._data = b""

    def plan(self, found: Sequence[Entry]) -> None:
        self.names = {entry.path: entry.target for entry in found if isinstance(entry, TreeLink)}
        self._wanted = [Want(entry.path) for entry in found if isinstance(entry, TreeFile)]

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
