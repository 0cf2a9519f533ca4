"""Sitting out what passes: refusals for being too fast, and servers that are not themselves for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tpuctl.errors import RateLimitedError, TransientError
from tpuctl.lib.retry import RETRY_MAX_S, retry

T = TypeVar("T")

TRIES = 5
PAUSE_S = 0.3
"""The pauses make 4.5 s, less than `RETRY_MAX_S`: only calls that take long themselves are tried less often."""


def patiently(call: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """`call`, which may be repeated without harm, through passing trouble. Raises what it raised last."""
    passing = (TransientError, RateLimitedError)
    return retry(call, passing, tries=TRIES, pause_s=PAUSE_S, sleep=sleep, max_s=RETRY_MAX_S)
