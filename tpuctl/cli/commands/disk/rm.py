"""`disk rm`: deletes disks that nobody uses."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Yes
from tpuctl.lib.options import argument


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
