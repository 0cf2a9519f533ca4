"""What the shell offers for names: read from the store on this machine, without a call to the cloud.

Nothing here may fail or print: it runs while a person types. A store in a bucket offers no names.
"""

from __future__ import annotations

import os
from pathlib import Path

import typer

from tpuctl.errors import TpuctlError

GONE = "gone"


def slice_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Slices that are not gone."""
    found = _recorded(ctx, "slices")
    return [name for name, state in found.items() if state != GONE and name.startswith(incomplete)]


def slice_paths(ctx: typer.Context, incomplete: str) -> list[str]:
    """`NAME:` for `cp`; behind the colon nobody knows."""
    return [] if ":" in incomplete else [f"{name}:" for name in slice_names(ctx, incomplete)]


def run_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Runs, newest first."""
    return [name for name in reversed(list(_recorded(ctx, "runs"))) if name.startswith(incomplete)]


def _recorded(ctx: typer.Context, kind: str) -> dict[str, str]:
    from tpuctl.config.load import load_config
    from tpuctl.state.completion import recorded_states

    said = ctx.find_root().params
    flags = {"profile": said.get("profile"), "project": said.get("project")}
    try:
        config = load_config(flags, cwd=Path.cwd(), environ=os.environ, home=Path.home())
        if config.store is not None or config.project is None:
            return {}
        return recorded_states(config.state_dir / "store.sqlite", kind)
    except (TpuctlError, OSError):
        return {}
