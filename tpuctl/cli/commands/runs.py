"""`runs`, `logs`, `stop`, `attach`, `manifest`: runs that were started before."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import typer

from tpuctl.cli.console import Column
from tpuctl.cli.context import open_context
from tpuctl.cli.options import Json

RUNS = (
    Column("id", "RUN"),
    Column("slice", "SLICE", give=1),
    Column("state", "STATE", whole=True),
    Column("attempts", "ATTEMPTS"),
    Column("created", "CREATED (UTC)"),
    Column("command", "COMMAND", give=2, most=2),
)


def runs(ctx: typer.Context, json: Json = False) -> None:  # noqa: ARG001 - acts through its callback
    """List runs, newest first."""
    from tpuctl.views.slices import run_rows

    with open_context(ctx) as context:
        rows, json_mode = run_rows(context), context.console.json_mode
        shown = rows if json_mode else [_run_line(row) for row in rows]
        context.console.table(shown, RUNS, empty="no runs; start one with `tpuctl run SCRIPT`")


def _run_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """A run as a person reads it; its command can be pasted."""
    failure = row["failure"] if row["state"] in ("failed", "gave-up") else None
    lost = f", {row['preemptions']} lost" if row["preemptions"] else ""
    return {
        **row,
        "state": f"{row['state']}: {failure['signature']}" if failure else row["state"],
        "attempts": f"{row['attempts']}{lost}",
        "created": row["created"][: len("2026-11-21T10:15")].replace("T", " "),
        "command": shlex.join(row["command"]),
    }
