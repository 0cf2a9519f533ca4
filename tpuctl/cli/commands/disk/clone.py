"""`disk clone`: a copy of one moment, on every host of a slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.commands.disk.shared import Allow, DiskName, For, Path, To, Unmount, rules_of
from tpuctl.cli.context import open_context
from tpuctl.cli.options import DryRun, Timeout

if TYPE_CHECKING:
    from tpuctl.cli.console import Console
    from tpuctl.disks.clone_request import Plan


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
    purpose: For = "",
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
    unmount: Unmount = False,
    allow: Allow = None,
    timeout: Timeout = None,
    dry_run: DryRun = False,
) -> None:
    """Clone a disk, and mount the clone read-only on a whole slice.

    Freezes the file system while the copy begins, for ten minutes at most; programs that write wait. After an
    interruption the same command continues. A clone of a clone is the same one in another zone: --zone, also of
    another --type.
    """
    from tpuctl.disks.clone import clone as make_clone
    from tpuctl.disks.clone_request import CloneRequest, plan_clone
    from tpuctl.disks.fitting import Purpose, parse_purpose
    from tpuctl.errors import UsageError
    from tpuctl.lib.names import check_zone_name
    from tpuctl.slices.choose import resolve_slice

    if to is not None and (zone or snapshot_only):
        flag = "--zone" if zone else "--snapshot-only"
        raise UsageError(f"with {flag} the copy is attached nowhere", hint=f"without {flag}, or without --to")
    if to is not None and purpose:
        raise UsageError(f"--to {to} says what the copy is for", hint="without --for, or without --to")
    with open_context(ctx) as context:
        rules = rules_of(allow)
        nowhere = zone or snapshot_only or (rw and to is None)
        request = CloneRequest(
            name,
            to=None if nowhere else resolve_slice(context, to, flag="--to").name,
            name=copy,
            path=path,
            zone=check_zone_name(zone) if zone else "",
            type=type,
            purpose=parse_purpose(purpose) if purpose else Purpose(),
            throughput_mib_s=throughput,
            snapshot_only=snapshot_only,
            from_snapshot=from_snapshot,
            rw=rw,
            crash_consistent=crash_consistent,
            on=on,
            unmount=unmount,
        )
        plan = plan_clone(context, rules, request)
        with context.interruptible(f"`{context.shared.typed}` goes on with {plan.record.name}"):
            if not dry_run and not plan.done:
                deadline = context.deadline(timeout)
                make_clone(context, rules, request, plan, deadline=deadline)
            _report(context.console, name, plan, dry_run=dry_run, snapshot_only=snapshot_only)


def _report(console: Console, master: str, plan: Plan, *, dry_run: bool, snapshot_only: bool) -> None:
    from tpuctl.disks.rules import monthly_cost

    copy, wanted = plan.record, plan.record.request
    price = monthly_cost(wanted.type, wanted.size_gib, wanted.throughput_mib_s)
    where = plan.target.name if plan.target is not None else wanted.zone
    if console.json_mode:
        made = {"name": copy.name, "master": master, "generation": copy.generation, "snapshot": copy.snapshot}
        placed = {"type": wanted.type, "to": where, "path": plan.path}
        console.data({**made, **placed, "usd_per_month": price, "dry_run": dry_run})
    elif plan.done:
        at = f"at {plan.path} of {where}; for a newer one: --path DIR"
        if plan.target is None:
            at = f"in {where}; for another: --name NAME"
        console.say(f"{copy.name} is a copy of {master} already, {at}")
    elif snapshot_only:
        console.say(f"{'would make' if dry_run else 'made'} snapshot {copy.snapshot} of {master}")
    else:
        cost = f", about ${price:.2f} a month" if price is not None else ""
        verb = "would copy" if dry_run else "copied"
        at = f"at {plan.path} of {where}"
        if plan.target is None:
            at = f"in {where}; tpuctl disk attach {copy.name} --to SLICE"
        console.say(f"{verb} {master} to {copy.name} ({wanted.type}{cost}), {at}")
