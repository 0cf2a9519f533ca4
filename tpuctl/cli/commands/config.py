"""`config`: what is set, and by what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun
from tpuctl.errors import ConflictError, NotFoundError, UsageError
from tpuctl.lib.options import Option
from tpuctl.lib.text import counted


def show(context: AppContext) -> None:
    """Show every setting with its value and where it came from."""
    from tpuctl.config.settings import BY_NAME
    from tpuctl.config.settings import show as settings_of

    rows = [
        {"name": name, "value": value, "origin": origin, "env": BY_NAME[name].env}
        for name, value, origin in settings_of(context.config)
    ]
    columns = (
        Column("name", "SETTING"),
        Column("value", "VALUE", give=1),
        Column("origin", "FROM", give=2),
    )
    if not context.console.json_mode:
        home = f"{Path.home()}/"
        rows = [{**row, **{key: _at_home(row[key], home) for key in ("value", "origin")}} for row in rows]
    context.console.table(rows, columns)


def _at_home(value: Any, home: str) -> Any:
    """A path in the short form that people know."""
    return f"~/{value.removeprefix(home)}" if isinstance(value, str) and value.startswith(home) else value


def init(
    context: AppContext,
    store: Annotated[
        str | None, Option("Where to keep the fleet's records.", metavar="gs://BUCKET/PREFIX")
    ] = None,
    join: Annotated[bool, Option("Join the store that is there already.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Share a fleet: move the store into a bucket, or join one.

    Copies everything, compares, and only then uses the new place; after a crash, the same command continues.
    Slices and runs are not touched.
    """
    from tpuctl.lib.names import check_bucket_uri
    from tpuctl.state.bucket import read_identity

    if store is None:
        raise UsageError("where to?", hint="tpuctl config init --store gs://BUCKET/PREFIX")
    uri = check_bucket_uri(store).rstrip("/")
    _check_bucket(context, uri)
    there, local = read_identity(context.objects, uri, context.project), context.local_store
    if there is not None and there != local.identity() and not join:
        raise ConflictError(f"{uri} is the store of another fleet", hint="add --join to use it from here")
    if there is None and join:
        raise NotFoundError(f"there is no store at {uri} to join", hint=f"tpuctl config init --store {uri}")
    joining = there is not None and there != local.identity()
    if dry_run:
        context.console.line(f"would {'join' if joining else 'move the store to'} {uri}")
        return
    again = f"tpuctl config init --store {uri}{' --join' if joining else ''}"
    with context.interruptible(f"nothing is lost: `{again}` goes on where it was"):
        if joining:
            _join(context, uri)
        else:
            _move(context, uri)


def _check_bucket(context: AppContext, uri: str) -> None:
    bucket = uri.split("/")[2]
    if not context.objects.bucket_exists(bucket):
        raise NotFoundError(
            f"there is no bucket gs://{bucket}, or you may not see it",
            hint=f"gcloud storage buckets create gs://{bucket} --uniform-bucket-level-access",
        )


def _join(context: AppContext, uri: str) -> None:
    from tpuctl.config.load import write_store_file
    from tpuctl.state.migrate import check_joinable

    check_joinable(context.local_store, uri)
    write_store_file(context.config, uri)
    context.console.say(f"joined the fleet at {uri}")


def _move(context: AppContext, uri: str) -> None:
    """A store that was lost after its move comes back from what stayed here."""
    from tpuctl.config.load import write_store_file
    from tpuctl.state.migrate import move_store

    count = move_store(
        context.local_store,
        context.bucket_store(uri, unborn=True),
        uri,
        context.project,
        alive=context.process_alive,
        report=context.console.say,
    )
    write_store_file(context.config, uri)
    if count is None:
        context.console.say(f"this machine uses {uri} already; nothing was copied")
    else:
        context.console.say(f"{counted(count, 'document')} copied to {uri}; others join with --join")
