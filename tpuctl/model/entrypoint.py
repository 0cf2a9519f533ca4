"""What a run executes, from what was typed: a script, a module or any command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from tpuctl.errors import UsageError

PYTHON = "python3"
"""The interpreter on the host: the pinned environment's when there is one (it is first on PATH)."""


def render_argv(
    *, script: str | None, module: str | None, command: Sequence[str], arguments: Sequence[str]
) -> tuple[str, ...]:
    """The argument vector of a run. Exactly one of `script`, `module` and `command` must be given.

    Raises UsageError otherwise. Nothing is quoted or expanded: arguments arrive as they are.
    """
    given = [bool(script), bool(module), bool(command)]
    if sum(given) != 1:
        raise UsageError(
            "say what to run: a script, -m MODULE, or -- COMMAND",
            hint="tpuctl run train.py, or tpuctl run -m pkg.train, or tpuctl run -- bash scripts/x.sh",
        )
    if script:
        return (PYTHON, script, *arguments)
    if module:
        return (PYTHON, "-m", module, *arguments)
    return tuple(command)


def is_inside(path: str) -> bool:
    """Whether a relative POSIX path stays below where it starts."""
    pure = PurePosixPath(path)
    depth = 0
    for part in pure.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return not pure.is_absolute()
