"""The console script."""

from __future__ import annotations

import atexit
import gc
import os
import sys

from tpuctl.cli.starting import begin_start

# Importing Google's libraries makes hundreds of thousands of objects that live until the end. The collector
# would look at them again and again, and once more when the interpreter ends: a fifth of the CPU of `ls`.
gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)


def main() -> None:
    """Runs the command line of this process and exits."""
    begin_start()
    from tpuctl.cli.app import app  # the collector is set, and Ctrl-C has an answer

    _open_standard_files()
    app(prog_name="tpuctl")


def _open_standard_files() -> None:
    """Closed standard files (`>&-`) lead nowhere: else the next file to be opened, such as the store, gets
    their number, and what is printed goes into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
