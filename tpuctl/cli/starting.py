"""Ctrl-C while Python still imports: one line, as ever. A KeyboardInterrupt would show the traceback of an
import, or be lost in a callback of the interpreter."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

INTERRUPTED_STATUS = 130
"""As `InterruptedByUserError` has it, which is not imported yet."""


def begin_start() -> None:
    """Until `end_start` Ctrl-C ends this process at once: nothing is at work that could be left half done. A
    process that ignores Ctrl-C, as a shell's background jobs do, still does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def end_start() -> None:
    """From now on Ctrl-C is an exception, which the command reports with what goes on without it."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: object) -> NoReturn:
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(INTERRUPTED_STATUS)
