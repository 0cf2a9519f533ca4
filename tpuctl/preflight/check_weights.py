"""Reads the statistics of a model's parameters in a process of the pinned environment."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tpuctl.errors import TpuctlError, UsageError
from tpuctl.lib.codec import from_data
from tpuctl.model.shipped_files import read_template
from tpuctl.preflight.bounded import last_words, run_bounded
from tpuctl.preflight.fits import environment
from tpuctl.preflight.local_env import Interpreter
from tpuctl.preflight.weights import Leaf

READ_S = 900.0
"""For a checkpoint of a few billion parameters from a disk."""


def parse_target(words: str) -> tuple[Path, str]:
    """`FILE:FUNCTION`, or the path of a checkpoint with an empty function. Raises UsageError."""
    path, colon, function = words.rpartition(":")
    if colon and function.isidentifier() and Path(path).is_file():
        return Path(path).absolute(), function
    target = Path(words).absolute()
    if target.suffix == ".py":
        raise UsageError(
            f"{words}: name the function that makes the parameters", hint=f"tpuctl check weights {words}:init"
        )
    if not target.exists():
        raise UsageError(f"{words}: there is no such file or folder", hint="a checkpoint, or FILE:FUNCTION")
    return target, ""


def read_leaves(
    path: Path, function: str, interpreter: Interpreter, variables: Mapping[str, str], timeout_s: float = READ_S
) -> list[Leaf]:
    """The statistics of each leaf. Raises TpuctlError with the reason where they cannot be had."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-weights-") as name:
        folder = Path(name)
        program, asked, answer = folder / "weights_probe.py", folder / "request.json", folder / "result.json"
        program.write_bytes(read_template("weights_probe.py"))
        asked.write_text(json.dumps({"path": str(path), "function": function}), encoding="utf-8")
        words = [str(interpreter.python), str(program), str(asked), str(answer)]
        status = run_bounded(words, environment(interpreter, variables), folder / "log", timeout_s)
        if status is None:
            raise TpuctlError(
                f"{path.name} was not read within {timeout_s:.0f} s", hint="a smaller model, or --timeout 1h"
            )
        if not answer.exists():
            raise TpuctlError(
                f"{path.name}: the process ended with status {status}: {last_words(folder / 'log')[-600:]}"
            )
        result = json.loads(answer.read_bytes())
    if "error" in result:
        raise TpuctlError(f"{path.name}: {result['error']}", hint="--env or --python names another environment")
    return [from_data(Leaf, row) for row in result["rows"]]
