"""`disk clone`: a copy of one moment, on every host of a slice."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.commands.disk.shared import Allow, DiskName, Path, To, rules_of
from tpuctl.cli.context import open_context
from tpuctl.cli.options import DryRun, Json, Quiet, Timeout


def clone(
    ctx: typer.Context,
    name: DiskName,
    to: To = None,
    copy: Annotated[str, typer.Option("--name", metavar="NAME", help="Of the copy.", show_default=False)] = "",
    path: Path = "",
    zone: Annotated[
        str,
        typer.Option(
            "--zone",
            metavar="ZONE",
            help="Create the clone in this zone, and do not attach it.",
            show_default=False,
        ),
    ] = "",
    type: Annotated[str, typer.Option("--type", metavar="TYPE", help="Of the copy.", show_default=False)] = "",
    throughput: Annotated[
        int | None,
        typer.Option("--throughput", metavar="MIBS", help="Throughput of a hyperdisk-ml clone, in MiB/s."),
    ] = None,
    snapshot_only: Annotated[bool, typer.Option("--snapshot-only", help="Make the snapshot and stop.")] = False,
    from_snapshot: Annotated[
        str,
        typer.Option("--from-snapshot", metavar="NAME", help="Clone this older snapshot.", show_default=False),
    ] = "",
    rw: Annotated[
        bool, typer.Option("--rw", help="Create a master of its own, not attached; needs --name.")
    ] = False,
    crash_consistent: Annotated[
        bool,
        typer.Option("--crash-consistent", help="Do not freeze the file system; repair the clone afterwards."),
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="SLICE", help="With --crash-consistent: repair it on this slice of one host."
        ),
    ] = None,
    allow: Allow = None,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Clone a disk, and mount the clone read-only on a whole slice.

    Freezes the file system while the snapshot is taken, for two minutes at most. After an interruption the same
    command continues. A clone of a clone is the same one in another zone: --zone.
    """
    from tpuctl.disks.clone import clone as make_clone
    from tpuctl.disks.clone_request import CloneRequest, plan_clone
    from tpuctl.disks.costs import monthly_cost
    from tpuctl.errors import UsageError
    from tpuctl.lib.names import check_zone_name
    from tpuctl.slices.choose import resolve_slice

    if to is not None and (zone or snapshot_only):
        flag = "--zone" if zone else "--snapshot-only"
        raise UsageError(f"with {flag} the copy is attached nowhere", hint=f"without {flag}, or without --to")
    with open_context(ctx) as context:
        rules = rules_of(allow)
        nowhere = zone or snapshot_only or (rw and to is None)
        request = CloneRequest(
            name,
            None if nowhere else resolve_slice(context, to, flag="--to").name,
            copy,
            path,
            check_zone_name(zone) if zone else "",
            type,
            throughput,
            snapshot_only,
            from_snapshot,
            rw,
            crash_consistent,
            on,
        )
        plan = plan_clone(context, rules, request)
        wanted = plan.record.request
        price = monthly_cost(wanted.type, wanted.size_gib, wanted.throughput_mib_s)
        context.shared.if_interrupted = f"`tpuctl disk clone {name}` goes on with {plan.record.name}"
        if not dry_run:
            deadline = None if timeout is None else context.clock.now() + timeout
            make_clone(context, rules, request, deadline=deadline)
        where = plan.target.name if plan.target is not None else wanted.zone
        told = {
            "name": plan.record.name,
            "master": name,
            "generation": plan.record.generation,
            "snapshot": plan.record.snapshot,
            "type": wanted.type,
            "to": where,
            "path": plan.path,
            "usd_per_month": price,
            "dry_run": dry_run,
        }
        if context.console.json_mode:
            context.console.data(told)
        elif snapshot_only:
            context.console.say(
                f"{'would make' if dry_run else 'made'} snapshot {plan.record.snapshot} of {name}"
            )
        else:
            cost = f", about ${price:.2f} a month" if price is not None else ""
            verb = "would copy" if dry_run else "copied"
            at = f"at {plan.path} of {where}"
            if plan.target is None:
                at = f"in {where}; tpuctl disk attach {plan.record.name} --to SLICE"
            context.console.say(f"{verb} {name} to {plan.record.name} ({wanted.type}{cost}), {at}")
