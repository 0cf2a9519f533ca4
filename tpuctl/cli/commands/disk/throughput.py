"""`disk throughput`: how fast a hyperdisk-ml is."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.commands.disk.shared import rules_of
from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Yes
from tpuctl.lib.options import argument
from tpuctl.model.requests import DiskName


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
