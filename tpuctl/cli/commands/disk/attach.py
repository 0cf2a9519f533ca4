"""`disk attach` and `disk detach`."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.commands.disk.shared import Allow, DiskName, Path, To, rules_of
from tpuctl.cli.context import open_context
from tpuctl.cli.options import DryRun


def attach(
    ctx: typer.Context,
    name: DiskName,
    to: To = None,
    rw: Annotated[bool, typer.Option("--rw/--ro", help="Read-write on one host, or read-only.")] = True,
    path: Path = "",
    no_mount: Annotated[bool, typer.Option("--no-mount", help="Attach it and do not mount it.")] = False,
    allow: Allow = None,
    dry_run: DryRun = False,
) -> None:
    """Attach a disk to a slice and mount it on its hosts.

    An empty disk that `disk create` made is formatted.
    """
    from tpuctl.disks.use import use_disk
    from tpuctl.slices.choose import resolve_slice

    with open_context(ctx) as context:
        target = resolve_slice(context, to, flag="--to").name
        found = use_disk(
            context, rules_of(allow), name, to=target, rw=rw, path=path, mounted=not no_mount, dry_run=dry_run
        )
        context.console.answer(found, found["said"])


def detach(
    ctx: typer.Context,
    name: DiskName,
    to: To = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also from a host that does not answer: what it has not written is lost."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Unmount a disk on the hosts of a slice and detach it.

    A disk that can be written is detached once nothing uses it any more; who has a file open is named.
    """
    from tpuctl.disks.use import leave_disk

    with open_context(ctx) as context:
        found = leave_disk(context, name, to=to, detached=True, dry_run=dry_run, force=force)
        context.console.answer(found, found["said"])
