"""The time of whoever keeps the files of a directory: the same for all machines that share it."""

from __future__ import annotations

import time
from pathlib import Path

FRESH_S = 60.0
"""How long it is counted on from a reading of the files' clock: clocks drift little in a minute."""
COARSE_S = 1.0
"""A smaller difference is the grain of the file system's timestamps, not another clock."""
_TICKS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock that goes on while a laptop sleeps (clock_gettime(2))."""


class FileTime:
    """Seconds since the epoch by the clock of the machine that keeps the file `path`, which is made if needed.

    Touching a file over NFS sets the server's time (RFC 1813, `SET_TO_SERVER_TIME`), on a local disk this
    machine's own. Where nothing can be written this machine's clock has to do; nothing is decided there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[float, float] | None = None

    def now(self) -> float:
        """Counted on by a clock that nobody sets: this machine's may be put right at any moment, and a lease
        would look expired."""
        ticks = time.clock_gettime(_TICKS)
        if self._read is None or ticks - self._read[1] > FRESH_S:
            ahead_s = self._measure()
            ticks = time.clock_gettime(_TICKS)
            self._read = (time.time() + ahead_s, ticks)
        at, then = self._read
        return at + ticks - then

    def _measure(self) -> float:
        """How far the clock of the files is ahead of this machine's."""
        try:
            self._path.touch(mode=0o600)
            ahead_s = self._path.stat().st_mtime - time.time()
        except OSError:
            return 0.0
        return ahead_s if abs(ahead_s) > COARSE_S else 0.0
