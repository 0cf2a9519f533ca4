"""Standard input of this process, for a command on a host."""

from __future__ import annotations

import array
import os
import select
import stat
import termios
from fcntl import ioctl
from pathlib import Path

from tpuctl.errors import TpuctlError

PIECE = 128 * 1024
WAIT_S = 0.1


def find_input(handle: int = 0) -> StandardInput | None:
    """What was given to read; None for a terminal, /dev/null and what cannot be read."""
    found = os.fstat(handle)
    if os.isatty(handle) or stat.S_ISDIR(found.st_mode) or found.st_rdev == Path(os.devnull).stat().st_rdev:
        return None
    return StandardInput(handle, seekable=stat.S_ISREG(found.st_mode))


class StandardInput:
    """Implements `ports.Input`. A file's place, which others may share, such as the loop of a shell, moves by
    what was really taken of it."""

    def __init__(self, handle: int, *, seekable: bool) -> None:
        self._handle = handle
        self._seekable = seekable
        self._place = os.lseek(handle, 0, os.SEEK_CUR) if seekable else 0
        self._given = 0
        self.lost = 0

    def has_some(self) -> bool:
        """See `Input.has_some`."""
        if self._seekable:
            return os.fstat(self._handle).st_size > self._place
        if not select.select([self._handle], [], [], 0)[0]:
            return False
        waiting = array.array("i", [0])
        try:
            ioctl(self._handle, termios.FIONREAD, waiting)
        except OSError:
            return True  # a device that does not say, but that can be read
        return waiting[0] > 0

    def read(self) -> bytes | None:
        """See `Input.read`."""
        try:
            if self._seekable:
                piece = os.pread(self._handle, PIECE, self._place + self._given)
            elif select.select([self._handle], [], [], WAIT_S)[0]:
                piece = os.read(self._handle, PIECE)
            else:
                return None
        except OSError as error:
            raise TpuctlError(f"cannot read standard input: {error.strerror}") from error
        self._given += len(piece)
        return piece

    def note_taken(self, count: int) -> None:
        """See `Input.note_taken`."""
        if self._seekable:
            os.lseek(self._handle, self._place + count, os.SEEK_SET)
        else:
            self.lost = self._given - count
