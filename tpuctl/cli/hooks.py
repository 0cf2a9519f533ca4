"""The user's hooks, and what keeps them from being told of anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.cli.context import AppContext
from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from tpuctl.config.hooks import Hook


def load_user_hooks(context: AppContext) -> tuple[Hook, ...]:
    from tpuctl.config.load import load_hooks

    return load_hooks(os.environ, Path.home(), context.config.profile)


def hook_problems(context: AppContext) -> list[TpuctlError]:
    """What keeps the user's hooks from being told of anything: mistakes in the file, and what it names."""
    from tpuctl.notify.send import unusable

    try:
        return [
            TpuctlError(f"hook {hook.name}: {why}", hint=f"tpuctl watch hooks --test {hook.name}")
            for hook in load_user_hooks(context)
            if (why := unusable(hook))
        ]
    except TpuctlError as error:
        return [error]
