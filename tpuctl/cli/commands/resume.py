"""`tpuctl resume`: let the watchdogs work again."""

from __future__ import annotations

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun


def resume(context: AppContext, dry_run: DryRun = False) -> None:
    """End a pause of the watchdogs."""
    from tpuctl.watch.pause import paused_why, resume_fleet

    if dry_run:
        context.console.sentence(f"would lift: {paused_why(context) or 'nothing, the fleet is not paused'}")
        return
    context.console.say("resumed" if resume_fleet(context) else "the fleet was not paused")
