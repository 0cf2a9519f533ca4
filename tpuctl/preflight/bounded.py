"""A program with code of the user in it: a group of processes with a time limit, of which nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tpuctl.model.shipped_files import read_template
from tpuctl.preflight.local_env import LocalPython

TAIL_BYTES = 4000
_CLEAN = ("TPU_", "LIBTPU_", "XLA_", "JAX_", "PJRT_", "MEGASCALE_", "TF_CPP")
"""Variables that this machine may have from earlier shells and that change what is compiled."""


def ask_program(
    folder: Path,
    program: str,
    request: Mapping[str, Any],
    interpreter: LocalPython,
    variables: Mapping[str, str],
    timeout_s: float,
) -> tuple[int | None, dict[str, Any]]:
    """What a program of `templates/` answers to a request, by files in `folder`: its exit status, None where
    the time ran out, and the answer, empty where it gave none. What it says is in the file `log`."""
    asked, answer = folder / "request.json", folder / "result.json"
    (folder / program).write_bytes(read_template(program))
    asked.write_text(json.dumps(request), encoding="utf-8")
    words = [str(interpreter.python), str(folder / program), str(asked), str(answer)]
    status = run_bounded(words, environment(interpreter, variables), folder / "log", timeout_s)
    return status, json.loads(answer.read_bytes()) if answer.exists() else {}


def environment(interpreter: LocalPython, variables: Mapping[str, str]) -> dict[str, str]:
    """Variables of the process: of this machine without those of other TPU programs, then of the environment,
    of the command, and what keeps JAX from looking for chips."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith((*_CLEAN, "PYTHON"))}
    quiet = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    return {**kept, **interpreter.variables, **variables, **quiet}


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
