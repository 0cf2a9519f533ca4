"""`disk repair`: replays the journal of a copy that was made while programs wrote."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.commands.disk.shared import Allow, rules_of
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun
from tpuctl.lib.options import Option
from tpuctl.model.requests import DiskName


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
