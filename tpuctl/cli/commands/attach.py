"""`tpuctl attach`: follow a run that was started before."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.context import AppContext
from tpuctl.cli.following import follow_or_leave
from tpuctl.cli.options import RunId, Timeout
from tpuctl.lib.options import Option


def attach(
    context: AppContext,
    run_id: RunId = "last",
    go_on: Annotated[bool, Option("Restart it although attempts ended without a newer checkpoint.")] = False,
    timeout: Timeout = None,
) -> None:
    """Follow a run that was started earlier.

    It may have been started on another machine. Ctrl-C stops following; the run goes on.
    """
    from tpuctl.runs import progress
    from tpuctl.state.repository import get_run

    record = get_run(context, run_id).record
    if go_on:
        record = progress.go_on(context, record.id)
    follow_or_leave(context, record, detach=False, timeout=timeout)
