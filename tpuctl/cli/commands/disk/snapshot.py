"""`disk snapshot`: a snapshot of a disk, with its file system held still."""

from __future__ import annotations

import typer

from tpuctl.cli.commands.disk.shared import DiskName, rules_of
from tpuctl.cli.context import open_context
from tpuctl.cli.options import Json, Quiet


def snapshot(
    ctx: typer.Context,
    name: DiskName,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Make a snapshot of a disk as it is now."""
    from tpuctl.disks.clone import clone as make_clone
    from tpuctl.disks.clone_request import CloneRequest

    with open_context(ctx) as context:
        record = make_clone(context, rules_of(None), CloneRequest(name, snapshot_only=True))
        made = {"master": name, "snapshot": record.snapshot}
        context.console.answer(made, f"made snapshot {record.snapshot} of {name}")
