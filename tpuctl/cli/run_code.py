"""What a run takes along: its frozen code and environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.cli.context import AppContext
from tpuctl.slices.options import RunWish

if TYPE_CHECKING:
    from tpuctl.runs.submit import FrozenCode
    from tpuctl.transfer.bundle import CodeBundle


def environment_of(context: AppContext, wish: RunWish, directory: Path) -> bytes | None:
    """The frozen environment of a run, looked for from `directory`; None where it names none."""
    from tpuctl.cli.environment_files import environment_folder
    from tpuctl.envs.load import load_environment

    name = wish.env or context.config.env
    return load_environment(name, environment_folder(directory)) if name else None


def freeze_code(
    context: AppContext, directory: Path, wish: RunWish, *, without: Path | None = None
) -> CodeBundle:
    """The code of a run in `directory`; file `without` is no part of it."""
    from tpuctl.transfer.bundle import freeze

    limit = context.config.bundle_limit_mib << 20
    return freeze(directory, wish.script, limit_bytes=limit, without=without)


def frozen_code(code: CodeBundle) -> FrozenCode:
    """The bundle as the workflows take it."""
    from tpuctl.runs.submit import FrozenCode

    return FrozenCode(code.content, code.diff, code.commit, code.branch, code.dirty, code.remote_url)
