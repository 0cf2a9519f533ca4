"""Disks on the hosts of a slice: `disk attach`, `detach`, `mount`, `umount` and `repair`."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.commands.disk.shared import Allow, rules_of
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun
from tpuctl.lib.options import Option
from tpuctl.model.requests import AttachRequest, DiskName, MountPath, ToSlice


def attach(context: AppContext, request: AttachRequest, allow: Allow = None, dry_run: DryRun = False) -> None:
    """Attach a disk to a slice and mount it on its hosts.

    An empty disk that `disk create` made is formatted.
    """
    from tpuctl.disks.use import check_ours, use_disk
    from tpuctl.slices.choose import resolve_slice

    target = resolve_slice(context, request.to, flag="--to").name
    check_ours(context, request.name, target)
    found = use_disk(
        context,
        rules_of(allow),
        request.name,
        to=target,
        rw=request.rw,
        path=request.path,
        mounted=not request.no_mount,
        dry_run=dry_run,
    )
    context.console.answer(found, found["said"])


def detach(
    context: AppContext,
    name: DiskName,
    to: ToSlice = None,
    force: Annotated[
        bool, Option("Also from a host that does not answer: what it has not written is lost.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Unmount a disk on the hosts of a slice and detach it.

    A disk that can be written is detached once nothing uses it any more; who has a file open is named.
    """
    from tpuctl.disks.use import leave_disk

    found = leave_disk(context, name, to=to, detached=True, dry_run=dry_run, force=force)
    context.console.answer(found, found["said"])


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


def repair(
    context: AppContext,
    name: DiskName,
    on: Annotated[
        str | None, Option("A slice of one host, to attach it to for the repair.", metavar="SLICE")
    ] = None,
    allow: Allow = None,
    dry_run: DryRun = False,
) -> None:
    """Repair a clone that was made while programs wrote.

    Replays its journal on a slice of one host. Data that programs had not yet written to the disk is not in it.
    """
    from tpuctl.disks.use import repair_disk
    from tpuctl.slices.choose import resolve_slice

    target = resolve_slice(context, on, flag="--on").name
    found = repair_disk(context, rules_of(allow), name, on=target, dry_run=dry_run)
    context.console.answer(found, found["said"])
