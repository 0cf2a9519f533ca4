"""A program with code of the user in it: a group of processes with a time limit, of which nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TAIL_BYTES = 4000


def run_bounded(words: Sequence[str], environ: Mapping[str, str], log: Path, timeout_s: float) -> int | None:
    """Runs it to its end, both streams into `log`. Returns its exit status, or None where the time ran out.

    Its group is killed in each case, also at Ctrl-C: a child that it left goes on for nobody.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=dict(environ),
            start_new_session=True,
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def last_words(log: Path) -> str:
    """The end of what it said, without the notes that libtpu makes where no TPU is."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    noise = (
        "WARNING: Logging before",
        "Failed to find host bounds",
        "=== Source Location",
        "learning/",
        "E0000",
        "I0000",
        "W0000",
    )
    return "\n".join(line for line in lines if line.strip() and not line.startswith(noise))
