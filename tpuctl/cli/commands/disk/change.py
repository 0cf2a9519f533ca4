"""A disk becomes another one, or goes: `disk resize`, `throughput`, `rm` and `gc`."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.commands.disk.shared import rules_of
from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Yes
from tpuctl.lib.options import Option, argument
from tpuctl.model.requests import DiskName


def resize(
    context: AppContext,
    name: DiskName,
    size: Annotated[int, Option("The new size.", metavar="GIB", minimum=1)],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Make a disk larger; it never becomes smaller again.

    The file system on it grows, too, where a slice writes to it, and else when it is mounted next. After an
    interruption the same command goes on."""
    from tpuctl.disks.resize import resize_disk

    if not dry_run:
        confirm(context, f"make disk {name} {size} GiB large, for good?", yes=yes)
    found = resize_disk(context, name, size, dry_run=dry_run)
    context.console.answer(found, found["said"])


def throughput(
    context: AppContext,
    name: DiskName,
    mib_s: Annotated[int, argument("MIBS", "The new throughput, in MiB/s.", minimum=1)],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Change the throughput of a hyperdisk-ml.

    Also while hosts read it. It is paid for, and can be changed once in six hours. More than 20 hosts need
    100 MiB/s each.
    """
    from tpuctl.disks.throughput import set_throughput

    rules = rules_of(None)
    planned = set_throughput(context, rules, name, mib_s, dry_run=True)
    if dry_run or planned["was"] == mib_s:
        context.console.answer(planned, planned["said"])
        return
    confirm(context, f"{planned['said'].removeprefix('would ')}?", yes=yes)
    done = set_throughput(context, rules, name, mib_s, dry_run=False)
    context.console.answer(done, done["said"])


def rm(
    context: AppContext,
    names: Annotated[list[str], argument("DISK...", "Names of the disks.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete disks, with all that is on them.

    A clone goes with the snapshot that was made for it. One that is attached is refused."""
    from tpuctl.disks.remove import check_removable, remove_disk

    for name in names:
        check_removable(context, name)
    if not dry_run:
        confirm(context, f"delete {', '.join(names)} with all that is on them?", yes=yes)
        for name in names:
            remove_disk(context, name)
            context.console.say(f"{name}: gone")
    elif not context.console.json_mode:
        context.console.say(f"would delete {', '.join(names)}")
    if context.console.json_mode:
        context.console.data([{"name": name, "gone": not dry_run} for name in names])


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
