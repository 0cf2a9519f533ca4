"""`why`: the decisions about a slice, run or sweep, with their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import SliceOrRun


def why(context: AppContext, name: SliceOrRun = None) -> None:
    """Show what was decided about a slice, run or sweep, and why.

    The oldest comes first. With them come holds of the slice's disks for a copy. A sweep has how its rows began
    and ended, and when it took its slices and gave them back. `tpuctl why fleet` shows pauses, and warnings of
    grants that end.
    """
    from tpuctl.slices.choose import resolve_slice, run_called
    from tpuctl.views.decisions import decisions
    from tpuctl.views.slices import describe_condition, synthetic_runs

    subject = name if name is not None else resolve_slice(context, None).name
    if name == "last" and (newest := run_called(context, name)) is not None:
        subject = newest.id
    rows = decisions(context, subject)
    if not context.console.json_mode:
        told = zip(rows, _moments(rows), _deciders(rows), strict=True)
        rows = [{**row, "at": moment, "by": by} for row, moment, by in told]
    several = any(_deciders(rows))
    context.console.table(rows, [each for each in _COLUMNS if several or each.key != "by"])
    for run in synthetic_runs(context, subject):
        context.console.alarm(f"run {run} runs on synthetic data", f"tpuctl manifest show {run}")
    condition = describe_condition(context, subject)
    if condition:
        context.console.warn(condition)


_COLUMNS = (
    Column("at", "WHEN (UTC)"),
    Column("subject", "ABOUT", give=1),
    Column("by", "BY", give=1),
    Column("action", "DECISION"),
    Column("reason", "BECAUSE", give=2),
)


def _deciders(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who decided: the user where there are several, the machine where there are several; else nothing."""
    parts = [[str(row.get(key, "")) for row in rows] for key in ("user", "machine")]
    shown = [part for part in parts if len(set(part)) > 1]
    return ["@".join(filter(None, names)) for names in zip(*shown, strict=True)] if shown else [""] * len(rows)


def _moments(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """When, to the second; without the year where that is the same for all, so that reasons have room."""
    years = {row["at"][:4] for row in rows}
    begin = len("2026-") if len(years) == 1 else 0
    return [row["at"][begin:].removesuffix("Z").replace("T", " ") for row in rows]
