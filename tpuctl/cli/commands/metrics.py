"""`tpuctl metrics`: the numbers that the program of a run printed."""

from __future__ import annotations

import csv as tables
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import RunId
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.lib.options import Option

if TYPE_CHECKING:
    from tpuctl.model.records import RunRecord
    from tpuctl.views.metrics import AttemptMetrics

METRICS = (
    Column("name", "METRIC"),
    Column("last", "LAST", right=True),
    Column("low", "LEAST", right=True),
    Column("high", "MOST", right=True),
    Column("line", "ALL ATTEMPTS", whole=True),
)
EXAMPLE = r"tpuctl run --progress 'step (?P<step>\d+) loss (?P<loss>\S+)' …"


def metrics(
    context: AppContext,
    run_id: RunId = "last",
    csv: Annotated[bool, Option("Print every row that is kept, as a table for other programs.")] = False,
) -> None:
    """Show the numbers that the program of a run printed.

    They are those that `run --progress` names, and the rate of its steps, by the worker that came furthest.
    The hosts of a run that goes on are asked. A row of a long run stands for COUNT matches: it has their mean,
    least and most. With --json, null stands for what is infinite or no number.
    """
    from tpuctl.runs.fetch import fetch_metrics
    from tpuctl.state.repository import get_run
    from tpuctl.views.metrics import csv_rows, data_rows, run_metrics

    if csv and context.console.json_mode:
        raise UsageError("--json and --csv exclude each other", hint=f"tpuctl metrics {run_id} --csv")
    run = get_run(context, run_id).record
    if not run.spec.progress:
        raise NotFoundError(f"run {run.id} has no --progress, which finds numbers in its output", hint=EXAMPLE)
    if not run.state.final:
        fetch_metrics(context, run)
    found = run_metrics(context, run)
    if context.console.json_mode:
        context.console.data(data_rows(found))
    elif csv:
        tables.writer(sys.stdout, lineterminator="\n").writerows(csv_rows(found))
    else:
        _show(context, run, found)


def _show(context: AppContext, run: RunRecord, attempts: Sequence[AttemptMetrics]) -> None:
    from tpuctl.cli.run_status import number
    from tpuctl.views.metrics import columns

    rows = [
        {
            "name": each.name,
            "last": number(each.last),
            "low": number(each.low),
            "high": number(each.high),
            "line": each.line,
        }
        for each in columns(attempts)
    ]
    for each in attempts:
        context.console.say(each.said)
    none = f"nothing that --progress '{run.spec.progress}' finds is on this machine"
    context.console.table(rows, METRICS, empty=f"{none}; `tpuctl logs {run.id}` shows its output")
