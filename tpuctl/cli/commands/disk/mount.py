"""`disk mount` and `disk umount`."""

from __future__ import annotations

import typer

from tpuctl.cli.commands.disk.shared import DiskName, Path, To
from tpuctl.cli.context import open_context


def mount(
    ctx: typer.Context,
    name: DiskName,
    to: To = None,
    path: Path = "",
) -> None:
    """Mount an attached disk on every host of its slice."""
    from tpuctl.disks.use import mount_disk

    with open_context(ctx) as context:
        found = mount_disk(context, name, to=to, path=path)
        context.console.answer(found, found["said"])


def umount(
    ctx: typer.Context,
    name: DiskName,
    to: To = None,
) -> None:
    """Unmount a disk on every host of its slice; it stays attached."""
    from tpuctl.disks.use import leave_disk

    with open_context(ctx) as context:
        found = leave_disk(context, name, to=to, detached=False)
        context.console.answer(found, found["said"])
