"""`pause`: all watchdogs of the fleet rest."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.context import open_context
from tpuctl.cli.options import DryRun
from tpuctl.errors import UsageError


def parse_until(text: str, now: float) -> float:
    """`8h`, `30m`, `2d`, or a time such as 2026-11-30T08:00 (UTC if it names no zone), in epoch seconds.

    Raises UsageError for anything else, and for a time that is past.
    """
    from tpuctl.lib.time import parse_duration, parse_moment

    try:
        at = now + parse_duration(text, "--until")
    except UsageError:
        try:
            at = parse_moment(text, "--until")
        except UsageError as error:
            hint = "--until 8h, or --until 2026-11-30T08:00"
            raise UsageError(f"--until {text!r} is neither a span nor a time", hint=hint) from error
    if at <= now:
        raise UsageError(f"--until {text} is in the past", hint="--until 8h")
    return at


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
    from tpuctl.watch.pause import pause_fleet, paused_why

    with open_context(ctx) as context:
        end = None if until is None else parse_until(until, context.store.now())
        if dry_run:
            context.console.sentence("would pause every watchdog of this store")
            return
        pause_fleet(context, until=end, reason=reason)
        context.console.say(paused_why(context))
