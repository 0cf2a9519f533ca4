"""`tpuctl runs`: what ran, how it went, and what it came to."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.run_status import cost_text, show_run
from tpuctl.errors import UsageError
from tpuctl.lib.options import Flag, Option, argument
from tpuctl.lib.text import counted

RUNS = (
    Column("id", "RUN"),
    Column("slice", "SLICE", give=1),
    Column("state", "STATE", whole=True),
    Column("row", "TAGS", give=2),
    Column("attempts", "ATTEMPTS", drop=2),
    Column("goodput", "GOODPUT", right=True, drop=3),
    Column("cost", "COST", right=True, drop=1),
    Column("created", "CREATED (UTC)", drop=4),
    Column("made_up", "DATA", whole=True),
    Column("command", "COMMAND", give=4, most=1),
)
NOT_IN_CSV = ("failure",)


def runs(
    context: AppContext,
    run_id: Annotated[str | None, argument("[RUN]", "Only this run, in full; `last` is the newest.")] = None,
    group: Annotated[str | None, Option("Only runs of this group.", metavar="NAME")] = None,
    tag: Annotated[
        list[str] | None, Option("Only runs with this tag; repeatable.", metavar="KEY[=VALUE]")
    ] = None,
    as_csv: Annotated[
        bool, Option("Print comma-separated values, all columns.", flags=(Flag("--csv"),))
    ] = False,
) -> None:
    """List runs, newest first, with what they came to.

    GOODPUT is the share of the time since the run was asked for in which its program ran and its work was not
    lost. COST is by list prices, whoever pays; it has two ends where nobody saw when a slice was taken away. A
    narrow terminal shows fewer columns.
    """
    from tpuctl.state.repository import get_run, readable_runs
    from tpuctl.views.runs import run_rows

    if as_csv and context.shared.json:
        raise UsageError("--csv and --json exclude each other", hint="keep one of them")
    if run_id is not None:
        _check_alone({"--group": group, "--tag": tag, "--csv": as_csv}, run_id)
        show_run(context, get_run(context, run_id).record)
        return
    rows, console = run_rows(context, group, tag or ()), context.console
    if as_csv:
        from tpuctl.views.metrics import last_values

        shown_ids = {row["id"] for row in rows}
        records = [record for record in readable_runs(context)[0] if record.id in shown_ids]
        console.line(_csv(rows, last_values(context, records)))
        return
    shown = rows if console.json_mode else [_run_line(row) for row in rows]
    asked = group is not None or tag
    empty = "no runs; start one with `tpuctl run SCRIPT`"
    known = {
        "made_up": any(row["synthetic"] for row in rows),
        "row": asked and any(row["tags"] for row in rows),
    }
    columns = [each for each in RUNS if known.get(each.key, True)]
    gone = context.logs.list_removed()
    removed = [row["id"] for row in rows if row["id"] in gone]
    console.table(shown, columns, empty="no such runs; `tpuctl runs` lists all" if asked else empty)
    for row in rows:
        if row["state"] == "damaged":
            console.warn(f"{row['reason']}; `tpuctl doctor` says what to type")
    if removed:
        some = ", ".join(removed[:3]) + (", …" if len(removed) > 3 else "")
        what = f"the logs of {counted(len(removed), 'run')} ({some})"
        console.say(f"{what} were removed from this machine: setting logs_limit_mib")


def _check_alone(flags: Mapping[str, Any], run_id: str) -> None:
    """Raises UsageError for what chooses among runs beside the one that is named."""
    said = [flag for flag, value in flags.items() if value]
    if said:
        raise UsageError(f"{said[0]} is for the list, not for one run", hint=f"tpuctl runs {run_id}")


def _run_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """A run as a person reads it, by the columns of `RUNS`; its command can be pasted."""
    failure = row["failure"] if row["state"] in ("failed", "gave-up") else None
    lost = f", {row['preemptions']} lost" if row["preemptions"] else ""
    stuck = row["state"] == "preparing" and row["reason"]
    chips = f":{','.join(map(str, row['chips']))}" if row["chips"] else ""
    said = f": {failure['signature'] if failure else 'blocked'}" if failure or stuck else ""
    return {
        "id": row["id"],
        "slice": row["slice"] and row["slice"] + chips,
        "state": row["state"] + said,
        "row": " ".join(row["tags"]),
        "attempts": None if row["attempts"] is None else f"{row['attempts']}{lost}",
        "goodput": None if row["goodput"] is None else f"{row['goodput']:.0%}",
        "cost": cost_text(row["usd"], row["unseen_usd"]),
        "created": (row["created"] or "")[: len("2026-11-21T10:15")].replace("T", " "),
        "made_up": "synthetic" if row["synthetic"] else None,
        "command": " ".join(map(_quoted, row["command"])),
    }


_quoted = lru_cache(maxsize=None)(shlex.quote)
"""Of thousands of commands, most words are the same."""


def _csv(rows: Sequence[Mapping[str, Any]], numbers: Mapping[str, Mapping[str, Any]]) -> str:
    """Lines by RFC 4180, with the keys of `--json` as header, then the names of the programs' last `numbers`;
    nothing for what is not known."""
    from tpuctl.views.runs import RUN_KEYS

    out = io.StringIO()
    columns = [key for key in RUN_KEYS if key not in NOT_IN_CSV]
    names = [name for each in numbers.values() for name in each if name not in RUN_KEYS]
    columns += dict.fromkeys(names)
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        lists = {key: " ".join(row[key]) for key in ("tags", "data")}
        writer.writerow({**numbers.get(row["id"], {}), **row, **lists, "command": shlex.join(row["command"])})
    return out.getvalue().rstrip("\n")
