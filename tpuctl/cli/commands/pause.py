"""`pause`: all watchdogs of the fleet rest."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun
from tpuctl.lib.options import Option


def pause(
    context: AppContext,
    until: Annotated[str | None, Option("When it ends by itself: 8h, 2d, 2026-11-30.", metavar="TIME")] = None,
    reason: Annotated[str, Option("Shown to everybody.", metavar="TEXT")] = "",
    dry_run: DryRun = False,
) -> None:
    """Pause all watchdogs of this fleet.

    Commands that you type go on working.
    """
    from tpuctl.lib.time import parse_until
    from tpuctl.watch.pause import pause_fleet, paused_why

    end = None if until is None else parse_until(until, "--until", context.store.now())
    if dry_run:
        context.console.sentence("would pause every watchdog of this store")
        return
    pause_fleet(context, until=end, reason=reason)
    context.console.say(paused_why(context))
