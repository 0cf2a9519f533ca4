"""`mount ls`, `mount show` and `mount check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import MountPoint
from tpuctl.lib.options import Option
from tpuctl.model.requests import ToSlice

LISTED = (
    Column("slice", "SLICE"),
    Column("path", "PATH"),
    Column("source", "BUCKET", give=1),
    Column("profile", "PROFILE"),
    Column("ttl_s", "TTL", right=True),
    Column("state", "STATE", give=2),
)
CHECKED = (
    Column("path", "PATH"),
    Column("worker", "WORKER", right=True),
    Column("gcsfuse", "GCSFUSE"),
    Column("restarts", "RESTARTS", right=True),
    Column("health", "HEALTH", give=1),
)


def ls(context: AppContext) -> None:
    """List the mounts of all slices.

    STATE is what the store tells of it; `tpuctl mount check` asks the hosts.
    """
    from tpuctl.mounts.use import list_mounts

    rows = [{**row, "state": _trouble(context, row) or row["state"]} for row in list_mounts(context)]
    shown = rows
    if not context.console.json_mode:
        shown = [{**row, "ttl_s": "forever" if row["ttl_s"] < 0 else row["ttl_s"]} for row in rows]
    empty = "no mounts: tpuctl mount add gs://BUCKET:/mnt/data --on SLICE"
    context.console.table(shown, LISTED, empty=empty)


def _trouble(context: AppContext, row: Mapping[str, Any]) -> str:
    """What the run under way was told of a mount that should be there; empty where it is well."""
    from tpuctl.mounts.use import MOUNTED
    from tpuctl.runs.mounts import sick_mounts
    from tpuctl.state.repository import active_runs

    runs = active_runs(context, row["slice"]) if row["state"] == MOUNTED else []
    seen = [each for run in runs if run.attempt is not None for each in run.attempt.mounts]
    return sick_mounts(each for each in seen if each.path == row["path"])


def show(context: AppContext, path: MountPoint, on: ToSlice = None) -> None:
    """Show how a mount is configured, and what other hosts see when."""
    from tpuctl.mounts.use import show_mount
    from tpuctl.slices.choose import resolve_slice

    found = show_mount(resolve_slice(context, on, flag="--on"), path)
    if context.console.json_mode:
        context.console.data(found)
        return
    fields = {name.replace("_", " "): found[name] for name in ("slice", "source", "path", "profile", "gcsfuse")}
    context.console.fields({**fields, "cost": found["cost"]})
    context.console.say(found["sees"])
    context.console.say(f"\n$ {found['command']}\n# gcsfuse.yaml\n{found['configuration'].rstrip()}")


def check(
    context: AppContext,
    on: ToSlice = None,
    heal: Annotated[
        bool,
        Option("Mount again what is not well, and replace keepers of another tpuctl; open files stay open."),
    ] = False,
) -> None:
    """Ask every host how its mounts are."""
    from tpuctl.errors import PartialError
    from tpuctl.mounts.use import check_mounts, heal_mounts, hint_of
    from tpuctl.slices.choose import resolve_slice

    record = resolve_slice(context, on, flag="--on")
    if heal:
        heal_mounts(context, record)
        record = resolve_slice(context, record.name, flag="--on")
    rows = check_mounts(context, record)
    bad = [row for row in rows if not row["well"]]
    if not (bad and context.console.json_mode):
        context.console.table(
            rows, CHECKED, empty="no mounts: tpuctl mount add gs://BUCKET:/mnt/data --on SLICE"
        )
    if bad:
        workers = sorted({row["worker"] for row in bad})
        why = f"{bad[0]['path']} on worker {bad[0]['worker']}: {bad[0]['health']}"
        raise PartialError(why, hint=hint_of(record, bad[0]), details={"workers": workers, "mounts": rows})
