"""Sitting out what passes: refusals for being too fast, and servers that are not themselves for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tpuctl.errors import RateLimitedError, TransientError
from tpuctl.lib.retry import retry

T = TypeVar("T")

TRIES = 5
PAUSE_S = 0.3
"""The pauses make 4.5 s, less than `RETRY_MAX_S`: only calls that take long themselves are tried less often."""


def pause_after(tries_left: int) -> float:
    """Seconds to wait before the next of `TRIES`: each pause is twice the one before."""
    return PAUSE_S * 2.0 ** (TRIES - 1 - tries_left)


def patiently(call: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """`call`, which may be repeated without harm, through passing trouble. Raises what it raised last."""
    return retry(call, (TransientError, RateLimitedError), tries=TRIES, pause_s=PAUSE_S, sleep=sleep)
