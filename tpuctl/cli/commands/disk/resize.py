"""`disk resize`: a larger disk."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.commands.disk.shared import DiskName
from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import open_context
from tpuctl.cli.options import DryRun, Yes


def resize(
    ctx: typer.Context,
    name: DiskName,
    size: Annotated[int, typer.Option("--size", metavar="GIB", min=1, help="The new size.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Make a disk larger; it never becomes smaller again.

    The file system on it grows, too, where a slice writes to it, and else when it is mounted next. After an
    interruption the same command goes on."""
    from tpuctl.disks.resize import resize_disk

    with open_context(ctx) as context:
        if not dry_run:
            confirm(context, f"make disk {name} {size} GiB large, for good?", yes=yes)
        found = resize_disk(context, name, size, dry_run=dry_run)
        context.console.answer(found, found["said"])
