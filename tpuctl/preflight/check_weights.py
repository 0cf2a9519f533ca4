"""Has a model's parameters looked at in a process of the pinned environment; `agent/weights.py` says what is
wrong with them, there and in runs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from tpuctl.errors import TpuctlError, UsageError
from tpuctl.lib.codec import from_data
from tpuctl.model.shipped_files import read_agent_module
from tpuctl.preflight.bounded import ask_program, last_words
from tpuctl.preflight.local_env import LocalPython

READ_S = 900.0
"""For a checkpoint of a few billion parameters from a disk."""
INITIALISERS = ("lecun", "he", "glorot", "torch")


class WeightFinding(Struct, frozen=True):
    """What is wrong with a leaf: `error` is certain, the other level is `warning`."""

    level: str
    leaf: str
    what: str


class Weights(Struct, frozen=True):
    """The statistics of each leaf, and what is wrong, errors first."""

    rows: Sequence[Mapping[str, Any]]
    findings: Sequence[WeightFinding]


def check_initialiser(words: str) -> str:
    """`lecun`, `he`, `glorot`, `torch` or a deviation. Raises UsageError."""
    try:
        number = math.inf if words in INITIALISERS else float(words)
    except ValueError:
        number = 0.0
    if words not in INITIALISERS and not 0 < number < math.inf:
        named = ", ".join(INITIALISERS)
        raise UsageError(f"--init {words}: no such initialiser", hint=f"--init {named}, or a number as 0.02")
    return words


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


def check_weights(
    path: Path,
    function: str,
    init: str | None,
    interpreter: LocalPython,
    variables: Mapping[str, str],
    timeout_s: float = READ_S,
) -> Weights:
    """Raises TpuctlError with the reason where the parameters cannot be had."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-weights-") as name:
        folder = Path(name)
        (folder / "tpuctl_weights.py").write_bytes(read_agent_module("weights.py"))
        request = {"path": str(path), "function": function, "init": init}
        status, result = ask_program(folder, "weights_probe.py", request, interpreter, variables, timeout_s)
        if status is None:
            raise TpuctlError(
                f"{path.name} was not read within {timeout_s:.0f} s", hint="a smaller model, or --timeout 1h"
            )
        if not result:
            raise TpuctlError(
                f"{path.name}: the process ended with status {status}: {last_words(folder / 'log')[-600:]}"
            )
    if "error" in result:
        raise TpuctlError(f"{path.name}: {result['error']}", hint="--env or --python names another environment")
    return Weights(result["rows"], [from_data(WeightFinding, row) for row in result["findings"]])
