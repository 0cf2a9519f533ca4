"""`tpuctl ls`: the slices of this project."""

from __future__ import annotations

from typing import Annotated

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.slice_status import fleet_cells
from tpuctl.lib.options import Option

FLEET = (
    Column("name", "NAME", give=2),
    Column("type", "TYPE", whole=True),
    Column("zone", "ZONE", whole=True),
    Column("tier", "TIER", whole=True, give=3),
    Column("hosts", "HOSTS", right=True, whole=True, give=2),
    Column("state", "STATE", whole=True),
    Column("cloud", "CLOUD", whole=True, give=5),
    Column("age", "AGE", right=True, whole=True, give=1),
    Column("hour", "$/HOUR", right=True),
    Column("user", "USER", whole=True, give=4),
)
AGE = 7
MADE_UP = Column("made_up", "DATA", whole=True)
"""In front of the age, where a run on made-up data is under way."""


def ls(
    context: AppContext,
    mine: Annotated[bool, Option("Only your own.")] = False,
) -> None:
    """List the slices and all other TPUs of the project.

    STATE is what the store has, CLOUD what the API shows now.
    """
    from tpuctl.lib.names import label_value
    from tpuctl.views.conditions import group_conditions
    from tpuctl.views.slices import fleet_rows
    from tpuctl.watch.pause import paused_why

    rows, unread = fleet_rows(context)
    if mine:
        rows = [row for row in rows if row["user"] in (context.user, label_value(context.user))]
    if unread:
        context.console.caveat(f"not read: {', '.join(unread)}; what is there is unknown")
    shown = rows if context.console.json_mode else [fleet_cells(row, context.clock.now()) for row in rows]
    synthetic = any(row["synthetic"] for row in rows)
    alone = all(row["user"] == context.user for row in rows)
    made_up = (MADE_UP,) if synthetic else ()
    columns = (*FLEET[:AGE], *made_up, *(FLEET[AGE:-1] if alone else FLEET[AGE:]))
    context.console.table(shown, columns, empty="no slices; bring one up with `tpuctl up v4-8 --spot`")
    paused = paused_why(context)
    if paused:
        context.console.warn(f"{paused}; `tpuctl resume` lifts that")
    for text in group_conditions(row["remark"] for row in rows if row["remark"]):
        context.console.warn(text)
    for state, advice in _ADVICE.items():
        count = sum(row["state"] == state for row in rows)
        if count:
            context.console.say(f"{count} {state}: {advice}")


_ADVICE = {
    "unmanaged": "made without tpuctl; `tpuctl adopt NAME` takes one over",
    "looks-like-ours": "named like a slice of ours, without labels; `tpuctl adopt NAME` takes it over",
    "unwanted": "no slice wants it; `tpuctl reap` deletes it",
}
