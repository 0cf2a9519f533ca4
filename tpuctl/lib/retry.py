"""Retry: a call once more after trouble that passes. What passes, and how long to wait, the caller says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

RETRY_MAX_S = 5.0
"""After so long nothing is tried once more: somebody waits for the command, a call that hangs takes as long as
a step may by itself, and the loop or a pass comes again."""


def retry(
    call: Callable[[], T],
    passing: tuple[type[Exception], ...],
    *,
    tries: int,
    pause_s: float,
    sleep: Callable[[float], None],
) -> T:
    """The answer of `call`, which may be repeated without harm, after at most `tries`. Each pause is twice the
    one before. Raises what it raised last, or at once if that is none of `passing`."""
    began = time.monotonic()
    for done in range(tries - 1):
        try:
            return call()
        except passing:
            if time.monotonic() - began > RETRY_MAX_S:
                raise
            sleep(pause_s * 2.0**done)
    return call()
