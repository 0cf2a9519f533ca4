"""The changes of a fleet file as `apply` and `diff` show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext

if TYPE_CHECKING:
    from tpuctl.fleet.load import LoadedFleet
    from tpuctl.fleet.plan import FleetChange

EXIT_CHANGES = 10
"""`diff` and `apply --dry-run` found something to change; see `errors.EXIT_MEANINGS`."""


COLUMNS = (
    Column("item", "ITEM", give=1),
    Column("change", "CHANGE"),
    Column("why", "WHY", give=2),
)


def read_file(context: AppContext, file: Path | None) -> LoadedFleet:
    """The fleet file, which is then the project's file, too."""
    from tpuctl.fleet.load import find_fleet_file, load_fleet

    path = find_fleet_file(file)
    context.shared.project_file = path
    return load_fleet(context, path, lambda: context.config)


def show_changes(context: AppContext, changes: Sequence[FleetChange], costs: Mapping[str, str]) -> None:
    """What would change and what it costs, as a table, or everything as JSON. Exits with 10 if there is
    something."""
    from tpuctl.fleet.plan import IN_STEP, Change, ItemKind

    shown = [c for c in changes if c.change is not Change.NONE or context.console.json_mode]
    rows = [
        {**change_row(change), "cost": costs.get(change.name) if change.kind is ItemKind.SLICE else None}
        for change in shown
    ]
    context.console.table(rows, COLUMNS, empty="nothing to change")
    for line in costs.values():
        context.console.say(line)
    for change in shown:
        if change.hint:
            context.console.say(f"{change.subject}: {change.hint}")
    if any(change.change not in IN_STEP for change in changes):
        raise typer.Exit(EXIT_CHANGES)


def change_row(change: FleetChange) -> dict[str, object]:
    return {
        "item": change.subject,
        "kind": str(change.kind),
        "name": change.name,
        "change": str(change.change),
        "why": change.why,
        "differs": list(change.differs),
        "hint": change.hint or None,
        "run": change.record or None,
    }
