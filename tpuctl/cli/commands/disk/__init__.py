"""`tpuctl disk`: persistent disks, from the first format to a copy on every host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.lib.options import Option
from tpuctl.model.requests import DiskName

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (
    Column("name", "DISK"),
    Column("zone", "ZONE"),
    Column("size_gib", "GIB", right=True),
    Column("type", "TYPE"),
    Column("status", "STATUS"),
    Column("usd_per_month", "USD/MONTH", right=True),
    Column("used_by", "USED BY", give=1),
)


def ls(
    context: AppContext,
    tree: Annotated[bool, Option("Show clones below their masters.")] = False,
) -> None:
    """List the disks and snapshots of this fleet."""
    from tpuctl.disks.listing import list_rows

    rows, unread = list_rows(context)
    if unread:
        context.console.caveat(f"not read: {', '.join(unread)}; what is there is unknown")
    shown: Sequence[dict[str, Any]] = rows
    if not context.console.json_mode:
        shown = [
            {
                **row,
                "name": f"  {row['name']}" if tree and row["generation"] else row["name"],
                "used_by": ", ".join(row["used_by"]),
            }
            for row in rows
        ]
    context.console.table(shown, COLUMNS, empty="no disks: tpuctl disk create NAME --zone ZONE")


def show(context: AppContext, name: DiskName) -> None:
    """Show one disk with its clones and snapshots."""
    from tpuctl.disks.listing import describe

    found = describe(context, name)
    if context.console.json_mode:
        context.console.data(found)
    else:
        context.console.fields(found)
