"""Reads are asked again after passing trouble; calls that change something are sent once, by their callers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tpuctl.cloud import errors
from tpuctl.errors import NoCapacityError, QuotaError, RateLimitedError, TpuctlError, TransientError
from tpuctl.lib.retry import RETRY_MAX_S, retry

READ_TRIES = 4
READ_PAUSE_S = 0.5

T = TypeVar("T")


def read(
    what: str,
    call: Callable[[], T],
    translate: Callable[[Exception, str], TpuctlError] = errors.translate,
    passing: tuple[type[TpuctlError], ...] = (TransientError,),
    sleep: Callable[[float], None] | None = None,
) -> T:
    """The answer of `call`, which changes nothing; `what` says in errors what was being done, `passing` what is
    tried once more.

    Raises subclasses of TpuctlError for whatever a Google client or its transport raises.
    """

    def once() -> T:
        try:
            return call()
        except Exception as error:  # every vendor and transport error becomes ours
            raise of_read(translate(error, what)) from error

    tries, pause_s = READ_TRIES, READ_PAUSE_S
    return retry(once, passing, tries=tries, pause_s=pause_s, sleep=sleep or time.sleep, max_s=RETRY_MAX_S)


def of_read(error: TpuctlError) -> TpuctlError:
    """A 429 is about the rate where nothing is asked for, whatever its text says of quota or capacity."""
    if isinstance(error, NoCapacityError | QuotaError):
        return RateLimitedError(error.message, details={**error.details, "kind": "rate-limit"})
    return error
