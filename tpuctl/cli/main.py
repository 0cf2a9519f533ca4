"""The console script."""

from __future__ import annotations

import atexit
import gc

# Importing Google's libraries makes hundreds of thousands of objects that live until the end. The collector
# would look at them again and again, and once more when the interpreter ends: a fifth of the CPU of `ls`.
gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)

from tpuctl.cli.app import app  # noqa: E402 - the collector is set first


def main() -> None:
    """Runs the command line of this process and exits."""
    app(prog_name="tpuctl")
