"""`disk repair`: replays the journal of a copy that was made while programs wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.commands.disk.shared import Allow, DiskName, rules_of
from tpuctl.cli.context import open_context
from tpuctl.cli.options import DryRun


def repair(
    ctx: typer.Context,
    name: DiskName,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="SLICE", help="A slice of one host, to attach it to for the repair."),
    ] = None,
    allow: Allow = None,
    dry_run: DryRun = False,
) -> None:
    """Repair a clone that was made while programs wrote.

    Replays its journal on a slice of one host. Data that programs had not yet written to the disk is not in it.
    """
    from tpuctl.disks.use import repair_disk
    from tpuctl.slices.choose import resolve_slice

    with open_context(ctx) as context:
        target = resolve_slice(context, on, flag="--on").name
        found = repair_disk(context, rules_of(allow), name, on=target, dry_run=dry_run)
        context.console.answer(found, found["said"])
