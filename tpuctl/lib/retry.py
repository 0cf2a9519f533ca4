"""Retry: a call once more after trouble that passes. What passes, and how long to wait, the caller says."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from tpuctl.errors import RateLimitedError, TransientError

T = TypeVar("T")

RETRY_MAX_S = 5.0
"""After so long nothing is tried once more: somebody waits for the command, a call that hangs takes as long as
a step may by itself, and the loop or a pass comes again."""


def retry(
    call: Callable[[], T],
    passing: tuple[type[Exception], ...],
    *,
    tries: int,
    pause_s: float = 0.0,
    growth: float = 2.0,
    sleep: Callable[[float], None] = time.sleep,
    max_s: float = math.inf,
) -> T:
    """The answer of `call`, which may be repeated without harm, after at most `tries`. Each pause is `growth`
    times the one before; none comes after `max_s`. Raises what it raised last, or at once if that is none of
    `passing`."""
    began = time.monotonic()
    for done in range(tries - 1):
        try:
            return call()
        except passing:
            if time.monotonic() - began > max_s:
                raise
            sleep(pause_s * growth**done)
    return call()


TRIES = 5
PAUSE_S = 0.3
"""The pauses make 4.5 s, less than `RETRY_MAX_S`: only calls that take long themselves are tried less often."""


def patiently(call: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """`call`, which may be repeated without harm, through passing trouble. Raises what it raised last."""
    passing = (TransientError, RateLimitedError)
    return retry(call, passing, tries=TRIES, pause_s=PAUSE_S, sleep=sleep, max_s=RETRY_MAX_S)
