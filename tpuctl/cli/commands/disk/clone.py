"""New disks and snapshots: `disk create`, `disk clone` and `disk snapshot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from tpuctl.cli.commands.disk.shared import Allow, rules_of
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Timeout
from tpuctl.model.requests import CloneRequest, CreateRequest, DiskName, Unmount

if TYPE_CHECKING:
    from tpuctl.cli.console import Console
    from tpuctl.disks.clone_request import ClonePlan


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


def clone(
    context: AppContext,
    request: CloneRequest,
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
    from tpuctl.disks.clone_request import check_place_of_copy, plan_clone
    from tpuctl.slices.choose import resolve_slice

    check_place_of_copy(request)
    if request.for_slice:
        or_zone = "; for a copy on no slice: --zone ZONE"
        target = resolve_slice(context, request.to, flag="--to", otherwise=or_zone)
        request = replace(request, to=target.name)
    rules = rules_of(allow)
    plan = plan_clone(context, rules, request)
    with context.interruptible(f"`{context.shared.typed}` goes on with {plan.record.name}"):
        if not dry_run and not plan.done:
            make_clone(context, rules, request, plan, deadline=context.deadline(timeout))
        _report(context.console, request, plan, dry_run=dry_run)


def snapshot(context: AppContext, name: DiskName, unmount: Unmount = False, timeout: Timeout = None) -> None:
    """Make a snapshot of a disk as it is now."""
    from tpuctl.disks.clone import clone as make_clone

    request = CloneRequest(name, snapshot_only=True, unmount=unmount)
    record = make_clone(context, rules_of(None), request, deadline=context.deadline(timeout))
    made = {"master": name, "snapshot": record.snapshot}
    context.console.answer(made, f"made snapshot {record.snapshot} of {name}")


def _report(console: Console, request: CloneRequest, plan: ClonePlan, *, dry_run: bool) -> None:
    from tpuctl.disks.rules import monthly_cost

    master, copy, wanted = request.master, plan.record, plan.record.request
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
    elif request.snapshot_only:
        console.say(f"{'would make' if dry_run else 'made'} snapshot {copy.snapshot} of {master}")
    else:
        cost = f", about ${price:.2f} a month" if price is not None else ""
        verb = "would copy" if dry_run else "copied"
        at = f"at {plan.path} of {where}"
        if plan.target is None:
            at = f"in {where}; tpuctl disk attach {copy.name} --to SLICE"
        console.say(f"{verb} {master} to {copy.name} ({wanted.type}{cost}), {at}")
