"""`tpuctl keep`: the logs and disks of a run stay."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, RunId
from tpuctl.errors import UsageError
from tpuctl.lib.options import Option


def keep(
    context: AppContext,
    run_id: RunId = "last",
    until: Annotated[str | None, Option("Keep them until then: 90d, 2027-06-30.", metavar="TIME")] = None,
    release: Annotated[bool, Option("Stop keeping them.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Keep the logs and disks of a run.

    `disk gc` does not delete the clones that the run read, so that they can be mounted again, and its logs stay
    where they are, whatever the setting logs_limit_mib.
    """
    from tpuctl.lib.time import parse_until, render_moment
    from tpuctl.provenance.keep import keep_run, release_run
    from tpuctl.state.repository import get_run

    if release and until is not None:
        raise UsageError("--until and --release exclude each other", hint="keep one of them")
    run = get_run(context, run_id).record
    end = None if until is None else parse_until(until, "--until", context.store.now())
    if dry_run:
        would = "release" if release else "keep"
        context.console.sentence(f"would {would} the logs and disks of run {run.id}")
    elif release:
        had = release_run(context, run)
        context.console.say(f"run {run.id} {'is' if had else 'was'} not kept{' any more' if had else ''}")
    else:
        kept = keep_run(context, run, end)
        limit = "" if end is None else f" until {render_moment(end)}"
        context.console.say(f"kept {', '.join((f'the logs of {run.id}', *kept.disks))}{limit}")
