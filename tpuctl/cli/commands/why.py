"""`why`: the decisions about a slice or run, with their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from tpuctl.cli.console import Column
from tpuctl.cli.context import open_context
from tpuctl.cli.options import Json, SliceOrRun


def why(ctx: typer.Context, name: SliceOrRun = None, json: Json = False) -> None:  # noqa: ARG001 - acts through its callback
    """Show the decisions about a slice or run, and their reasons.

    The oldest comes first.
    """
    from tpuctl.slices.choose import resolve_slice
    from tpuctl.views.slices import decisions, describe_condition, synthetic_runs

    columns = (
        Column("at", "WHEN (UTC)"),
        Column("subject", "ABOUT", give=1),
        Column("action", "DECISION"),
        Column("reason", "BECAUSE", give=2),
    )
    with open_context(ctx) as context:
        subject = name if name is not None else resolve_slice(context, None).name
        rows = decisions(context, subject)
        if not context.console.json_mode:
            rows = [{**row, "at": moment} for row, moment in zip(rows, _moments(rows), strict=True)]
        context.console.table(rows, columns)
        for run in synthetic_runs(context, subject):
            context.console.alarm(f"run {run} runs on synthetic data", f"tpuctl manifest show {run}")
        condition = describe_condition(context, subject)
        if condition:
            context.console.warn(condition)


def _moments(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """When, to the second; without the year where that is the same for all, so that reasons have room."""
    years = {row["at"][:4] for row in rows}
    begin = len("2026-") if len(years) == 1 else 0
    return [row["at"][begin:].removesuffix("Z").replace("T", " ") for row in rows]
