"""What a command line says to run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any


def program_of(before: Sequence[str], behind: Sequence[str], module: str | None) -> dict[str, Any]:
    """The words before and behind `--` as fields of the request: a script or module with its
    arguments, or a command."""
    if module is not None:
        return {"module": module, "args": (*before, *behind)}
    if before:
        return {"script": _below(before[0]), "args": (*before[1:], *behind)}
    return {"command": tuple(behind)}


def _below(script: str) -> str:
    """`script` as seen from this directory: on the hosts its parents have other names."""
    path = PurePath(script)
    return os.path.relpath(script) if ".." in path.parts or path.is_absolute() else script
