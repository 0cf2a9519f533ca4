"""`disk gc`: removes old copies that nobody uses, with the snapshots that were made for them."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import open_context
from tpuctl.cli.options import DryRun, Yes


def gc(
    ctx: typer.Context,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=0, help="Newest clones to keep of each master.")
    ] = 2,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete old clones that no host uses, and their snapshots.

    Keeps masters, the newest clones of each that are there, what is attached, unfinished or not yours, and the
    snapshots of `disk snapshot`. In a zone that could not be read nothing is deleted.
    """
    from tpuctl.disks.remove import remove_disk, unused_copies

    with open_context(ctx) as context:
        found = unused_copies(context, keep)
        names = [record.name for record in found.records]
        if found.unread:
            context.console.caveat(f"not read: {', '.join(found.unread)}; what is there stays")
        if names and not dry_run:
            confirm(context, f"delete {', '.join(names)} with their snapshots?", yes=yes)
            for name in names:
                remove_disk(context, name)
        verb = "would delete" if dry_run else "deleted"
        said = f"{verb} {', '.join(names)}" if names else "nothing to delete"
        context.console.answer([{"name": name, "gone": not dry_run} for name in names], said)
