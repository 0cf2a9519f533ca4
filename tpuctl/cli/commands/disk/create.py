"""`disk create`: a new, empty disk."""

from __future__ import annotations

from tpuctl.cli.commands.disk.shared import Allow, rules_of
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun
from tpuctl.model.requests import CreateRequest


def create(context: AppContext, request: CreateRequest, allow: Allow = None, dry_run: DryRun = False) -> None:
    """Create an empty disk. The first mount formats it."""
    from tpuctl.disks.clone import create_master
    from tpuctl.disks.fitting import resolve_new
    from tpuctl.disks.plan import fs_label
    from tpuctl.disks.rules import monthly_cost

    rules = rules_of(allow)
    disk = resolve_new(rules, request, default_zone=next(iter(context.config.zone), ""))
    price = monthly_cost(disk.type, disk.size_gib, disk.throughput_mib_s)
    told = {"name": disk.name, "zone": disk.zone, "type": disk.type, "size_gib": disk.size_gib}
    if not dry_run:
        create_master(context, rules, disk, fs_label(disk.name))
    verb = "would make" if dry_run else "made"
    cost = f", about ${price:.2f} a month" if price is not None else ""
    said = f"{verb} disk {disk.name}: {disk.size_gib} GiB, {disk.type}, {disk.zone}{cost}"
    context.console.answer({**told, "usd_per_month": price, "dry_run": dry_run}, said)
