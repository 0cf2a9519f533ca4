"""The console script."""

from __future__ import annotations

import atexit
import gc
import os
import sys

# Importing Google's libraries makes hundreds of thousands of objects that live until the end. The collector
# would look at them again and again, and once more when the interpreter ends: a fifth of the CPU of `ls`.
gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)

from tpuctl.cli.app import app  # noqa: E402 - the collector is set first


def main() -> None:
    """Runs the command line of this process and exits."""
    _open_standard_files()
    app(prog_name="tpuctl")


def _open_standard_files() -> None:
    """Closed standard files (`>&-`) lead nowhere: else the next file to be opened, such as the store, gets
    their number, and what is printed goes into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
