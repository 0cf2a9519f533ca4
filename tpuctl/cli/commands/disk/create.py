"""`disk create`: a new, empty disk."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.commands.disk.shared import Allow, DiskName, For, rules_of
from tpuctl.cli.context import open_context
from tpuctl.cli.options import DryRun


def create(
    ctx: typer.Context,
    name: DiskName,
    size: Annotated[int, typer.Option("--size", metavar="GIB", min=1, help="GiB.")] = 100,
    zone: Annotated[
        str | None, typer.Option("--zone", metavar="ZONE", help="Zone of the slices that will use it.")
    ] = None,
    type: Annotated[str, typer.Option("--type", metavar="TYPE", help="Disk type.", show_default=False)] = "",
    purpose: For = "",
    throughput: Annotated[
        int | None, typer.Option("--throughput", metavar="MIBS", help="Throughput of hyperdisk-ml, in MiB/s.")
    ] = None,
    allow: Allow = None,
    dry_run: DryRun = False,
) -> None:
    """Create an empty disk. The first mount formats it."""
    from tpuctl.disks.clone import create_master
    from tpuctl.disks.fitting import Purpose, new_type_in, parse_purpose
    from tpuctl.disks.plan import fs_label
    from tpuctl.disks.rules import monthly_cost, refuse
    from tpuctl.errors import UsageError
    from tpuctl.lib.names import check_disk_name, check_zone_name
    from tpuctl.model.disks import DiskRequest

    with open_context(ctx) as context:
        rules = rules_of(allow)
        where = check_zone_name(zone) if zone else next(iter(context.config.zone), "")
        if not where:
            raise UsageError("in which zone?", hint="--zone ZONE: that of the slices that will use it")
        goal = parse_purpose(purpose) if purpose else Purpose()
        kind = type or new_type_in(rules, where, goal.generation)
        if throughput is None:
            throughput = rules.throughput_for(kind, size, goal.hosts)
        request = DiskRequest(check_disk_name(name), where, kind, size, {}, throughput)
        refuse([*rules.check_new(kind, size, throughput), *rules.check_type(kind, goal.generation)])
        price = monthly_cost(kind, size, throughput)
        told = {"name": name, "zone": where, "type": kind, "size_gib": size, "usd_per_month": price}
        if not dry_run:
            create_master(context, rules, request, fs_label(name))
        verb = "would make" if dry_run else "made"
        cost = f", about ${price:.2f} a month" if price is not None else ""
        said = f"{verb} disk {name}: {size} GiB, {kind}, {where}{cost}"
        context.console.answer({**told, "dry_run": dry_run}, said)
