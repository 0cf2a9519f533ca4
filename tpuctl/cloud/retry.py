"""Reads are asked again after passing trouble; calls that change something are sent once, by their callers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tpuctl.cloud import errors
from tpuctl.errors import NoCapacityError, QuotaError, RateLimitedError, TpuctlError, TransientError

READ_TRIES = 4
READ_PAUSE_S = 0.5
PATIENCE_S = 5.0
"""After so long nothing is tried once more: a call that hangs takes as long as a step may by itself, and the
loop of the workflow comes again."""

T = TypeVar("T")


def read(
    what: str, call: Callable[[], T], translate: Callable[[Exception, str], TpuctlError] = errors.translate
) -> T:
    """The answer of `call`, which changes nothing; `what` says in errors what was being done.

    Raises subclasses of TpuctlError for whatever a Google client or its transport raises.
    """
    began = time.monotonic()
    for remaining in reversed(range(READ_TRIES)):
        try:
            return call()
        except Exception as error:  # every vendor and transport error becomes ours
            ours = of_read(translate(error, what))
            late = time.monotonic() - began > PATIENCE_S
            if not isinstance(ours, TransientError) or remaining == 0 or late:
                raise ours from error
            time.sleep(READ_PAUSE_S * 2 ** (READ_TRIES - 1 - remaining))
    raise AssertionError("unreachable")


def of_read(error: TpuctlError) -> TpuctlError:
    """A 429 is about the rate where nothing is asked for, whatever its text says of quota or capacity."""
    if isinstance(error, NoCapacityError | QuotaError):
        return RateLimitedError(error.message, details={**error.details, "kind": "rate-limit"})
    return error
