"""`disk snapshot`: a snapshot of a disk, with its file system held still."""

from __future__ import annotations

import typer

from tpuctl.cli.commands.disk.shared import DiskName, Unmount, rules_of
from tpuctl.cli.context import open_context
from tpuctl.cli.options import Timeout


def snapshot(
    ctx: typer.Context,
    name: DiskName,
    unmount: Unmount = False,
    timeout: Timeout = None,
) -> None:
    """Make a snapshot of a disk as it is now."""
    from tpuctl.disks.clone import clone as make_clone
    from tpuctl.disks.clone_request import CloneRequest

    with open_context(ctx) as context:
        request = CloneRequest(name, snapshot_only=True, unmount=unmount)
        record = make_clone(context, rules_of(None), request, deadline=context.deadline(timeout))
        made = {"master": name, "snapshot": record.snapshot}
        context.console.answer(made, f"made snapshot {record.snapshot} of {name}")
