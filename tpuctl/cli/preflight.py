"""What `fits` and `check` share: the interpreter that has the user's packages, and its variables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import UsageError

if TYPE_CHECKING:
    from tpuctl.cli.context import AppContext
    from tpuctl.preflight.local_env import LocalPython


def parse_variables(words: Sequence[str]) -> dict[str, str]:
    """Of `--var K=V`. Raises UsageError."""
    pairs = [word.partition("=") for word in words]
    for name, equals, _ in pairs:
        if not equals or not name.isidentifier():
            raise UsageError(f"--var {name}{equals} is not K=V", hint="--var LR=3e-4")
    return {name: value for name, _, value in pairs}


def find_interpreter(
    context: AppContext, env: str | None, python: Path | None, *, jax: bool = False
) -> LocalPython:
    """What `--python` names, else the environment's, installed on this machine. With `jax` it must be one of
    JAX.

    Raises UsageError, NotFoundError, and what an installation does.
    """
    from tpuctl.envs.load import environment_folder, pin, read_environment
    from tpuctl.envs.spec import Backend
    from tpuctl.preflight.local_env import ensure_interpreter, given_interpreter

    if python is not None:
        return given_interpreter(python)
    name = env or context.config.env or "jax-tpu"
    found = read_environment(name, environment_folder())
    if jax and found.spec.backend is not Backend.JAX:
        raise UsageError(
            f"environment {name} is for {found.spec.backend}: only JAX compiles for TPUs where none is",
            hint="--env jax-tpu, or one of yours with jax and libtpu",
        )
    return ensure_interpreter(pin(found), context.config.state_base / "preflight", context.console.say)
