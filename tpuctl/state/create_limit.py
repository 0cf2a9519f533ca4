"""How many creates a minute all commands on this machine may make, kept in one small locked file.

The API refuses more than about 90 node creates a minute per project ("Maximum number of CreateNode requests per
minute", quota `tpu.googleapis.com/qps/create`); fleet tools stay at 60.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import TextIO

from tpuctl.errors import TpuctlError
from tpuctl.lib.codec import parse_json

CREATES_PER_MINUTE = 60
BURST = 10
"""Creates that may go out at once after a pause."""


class FileRateLimiter:
    """Implements `ports.RateLimiter` as a token bucket in the file `path`."""

    def __init__(self, path: Path, *, per_minute: float = CREATES_PER_MINUTE, burst: int = BURST) -> None:
        self._path = path
        self._rate = per_minute / 60.0
        self._burst = float(burst)

    def take(self) -> float:
        """Raises TpuctlError when the file cannot be used."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            with os.fdopen(handle, "r+", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                return self._take(file)
        except OSError as error:
            raise TpuctlError(f"cannot use {self._path}: {error}") from error

    def _take(self, file: TextIO) -> float:
        now = time.time()
        left, at = _parse(file.read(), self._burst, now)
        left = min(self._burst, left + max(0.0, now - at) * self._rate)
        wait = 0.0 if left >= 1.0 else (1.0 - left) / self._rate
        if wait == 0.0:
            left -= 1.0
        file.seek(0)
        file.truncate()
        json.dump({"left": left, "at": now}, file)
        return wait


def _parse(text: str, burst: float, now: float) -> tuple[float, float]:
    """What was left and when; a file that a crash left empty or torn means a full allowance."""
    try:
        data = parse_json(text)
        return float(data["left"]), float(data["at"])
    except (ValueError, KeyError, TypeError):
        return burst, now
