"""`disk mount` and `disk umount`."""

from __future__ import annotations

from tpuctl.cli.context import AppContext
from tpuctl.model.requests import DiskName, MountPath, ToSlice


def mount(context: AppContext, name: DiskName, to: ToSlice = None, path: MountPath = "") -> None:
    """Mount an attached disk on every host of its slice."""
    from tpuctl.disks.use import mount_disk

    found = mount_disk(context, name, to=to, path=path)
    context.console.answer(found, found["said"])


def umount(context: AppContext, name: DiskName, to: ToSlice = None) -> None:
    """Unmount a disk on every host of its slice; it stays attached."""
    from tpuctl.disks.use import leave_disk

    found = leave_disk(context, name, to=to, detached=False)
    context.console.answer(found, found["said"])
