"""`disk gc`: removes old copies that nobody uses, with the snapshots that were made for them."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Yes
from tpuctl.lib.options import Option


def gc(
    context: AppContext,
    keep: Annotated[int, Option("Newest clones to keep of each master.", metavar="N", minimum=0)] = 2,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete old clones that no host uses, and their snapshots.

    Keeps masters, the newest clones of each that are there, what is attached, unfinished or not yours, and the
    snapshots of `disk snapshot`. In a zone that could not be read nothing is deleted.
    """
    from tpuctl.disks.remove import remove_disk, unused_copies

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
