"""The time of whoever keeps the files of a directory: the same for all machines that share it."""

from __future__ import annotations

import time
from pathlib import Path

FRESH_S = 60.0
"""How long a measured difference between two clocks is believed: clocks drift little in a minute."""
COARSE_S = 1.0
"""A smaller difference is the grain of the file system's timestamps, not another clock."""


class FileTime:
    """Seconds since the epoch by the clock of the machine that keeps the file `path`, which is made if needed.

    Touching a file over NFS sets the server's time (RFC 1813, `SET_TO_SERVER_TIME`), on a local disk this
    machine's own. Where nothing can be written this machine's clock has to do; nothing is decided there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ahead_s = 0.0
        self._measured_at: float | None = None

    def now(self) -> float:
        ticks = time.monotonic()
        if self._measured_at is None or ticks - self._measured_at > FRESH_S:
            self._ahead_s = self._measure()
            self._measured_at = ticks
        return time.time() + self._ahead_s

    def _measure(self) -> float:
        """How far the clock of the files is ahead of this machine's."""
        try:
            self._path.touch(mode=0o600)
            ahead_s = self._path.stat().st_mtime - time.time()
        except OSError:
            return 0.0
        return ahead_s if abs(ahead_s) > COARSE_S else 0.0
