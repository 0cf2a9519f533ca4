"""`disk resize`: a larger disk."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Yes
from tpuctl.lib.options import Option
from tpuctl.model.requests import DiskName


def resize(
    context: AppContext,
    name: DiskName,
    size: Annotated[int, Option("The new size.", metavar="GIB", minimum=1)],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Make a disk larger; it never becomes smaller again.

    The file system on it grows, too, where a slice writes to it, and else when it is mounted next. After an
    interruption the same command goes on."""
    from tpuctl.disks.resize import resize_disk

    if not dry_run:
        confirm(context, f"make disk {name} {size} GiB large, for good?", yes=yes)
    found = resize_disk(context, name, size, dry_run=dry_run)
    context.console.answer(found, found["said"])
