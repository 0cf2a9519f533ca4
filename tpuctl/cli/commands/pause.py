"""`pause`: all watchdogs of the fleet rest."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.context import open_context
from tpuctl.cli.options import DryRun


def pause(
    ctx: typer.Context,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="When it ends by itself: 8h, 2d, 2026-11-30.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Shown to everybody.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Pause all watchdogs of this fleet.

    Commands that you type go on working.
    """
    from tpuctl.lib.time import parse_until
    from tpuctl.watch.pause import pause_fleet, paused_why

    with open_context(ctx) as context:
        end = None if until is None else parse_until(until, "--until", context.store.now())
        if dry_run:
            context.console.sentence("would pause every watchdog of this store")
            return
        pause_fleet(context, until=end, reason=reason)
        context.console.say(paused_why(context))
