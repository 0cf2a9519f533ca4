"""Sitting out what passes: refusals for being too fast, and servers that are not themselves for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tpuctl.errors import RateLimitedError, TransientError

T = TypeVar("T")

TRIES = 5
PAUSE_S = 0.3
PATIENCE_S = 5.0
"""After so long nothing is tried once more: somebody waits for the command, and a pass comes again. The pauses
alone make 4.5 s, so only calls that take long themselves are tried less often."""


def pause_after(tries_left: int) -> float:
    """Seconds to wait before the next of `TRIES`: each pause is twice the one before."""
    return PAUSE_S * 2.0 ** (TRIES - 1 - tries_left)


def patiently(call: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """`call`, which may be repeated without harm, through passing trouble. Raises what it raised last."""
    began = time.monotonic()
    for left in reversed(range(TRIES)):
        try:
            return call()
        except (TransientError, RateLimitedError):
            if left == 0 or time.monotonic() - began > PATIENCE_S:
                raise
            sleep(pause_after(left))
    raise AssertionError("unreachable")
