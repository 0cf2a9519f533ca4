"""`ssh-config`: entries with which ssh, scp, rsync and editors reach the workers."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.completion import slice_names
from tpuctl.cli.context import AppContext
from tpuctl.lib.options import Option, argument
from tpuctl.lib.text import counted


def ssh_config(
    context: AppContext,
    name: Annotated[
        str | None,
        argument("[NAME]", "Name of the slice; all that are ready if left out.", complete=slice_names),
    ] = None,
    write: Annotated[bool, Option("Keep them in a file that follows the slice; prints how to use it.")] = False,
) -> None:
    """Print ssh config entries for the workers of a slice.

    The workers are called NAME-0, NAME-1, …; their host keys are pinned. Your own ~/.ssh/config is never
    changed.
    """
    from tpuctl.hosts.targets import host_targets
    from tpuctl.model.records import HOSTS_ANSWER
    from tpuctl.state.repository import get_slice, list_slices

    if name is not None:
        records = [get_slice(context, name).record]
    else:
        records = [record for record in list_slices(context) if record.state in HOSTS_ANSWER]
    if records:
        context.make_key_pair()
    for record in records:
        targets = host_targets(context, record)
        if write:
            path = context.ssh_entries.write(record.name, targets)
            context.console.say(f"{record.name}: {counted(len(targets), 'worker')} in {path}")
        else:
            context.ssh_entries.write_pins(record.name, targets)
            context.console.line(context.ssh_entries.render(targets))
    if write and records:
        context.console.say("put this line at the top of ~/.ssh/config, once:")
        context.console.line(context.ssh_entries.include)
