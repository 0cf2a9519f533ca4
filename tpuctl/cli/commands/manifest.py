"""`tpuctl manifest`: the record of an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.context import open_context
from tpuctl.cli.options import Json, RunId
from tpuctl.errors import NotFoundError
from tpuctl.lib.text import counted

if TYPE_CHECKING:
    from tpuctl.model.records import RunRecord


def manifest(
    ctx: typer.Context,
    run_id: RunId = "last",
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="This attempt; the last one that has ended if left out.")
    ] = None,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Show what an attempt ran, where, and with which versions.

    Prints the manifest of the attempt, which also has its result.
    """
    from tpuctl.state.repository import get_run
    from tpuctl.views.slices import manifest_of

    with open_context(ctx) as context:
        record = get_run(context, run_id).record
        found = manifest_of(context, record.id, attempt)
        if found is None:
            raise _no_manifest(record, attempt)
        if context.console.json_mode:
            context.console.data(found)
            return
        import yaml

        context.console.line(yaml.safe_dump(found, sort_keys=False, allow_unicode=True).rstrip())


def _no_manifest(record: RunRecord, attempt: int | None) -> NotFoundError:
    begun = record.attempt.number if record.attempt else 0
    if attempt is not None and not 1 <= attempt <= begun:
        has = f"it has {counted(begun, 'attempt')}" if begun else "it has not begun"
        return NotFoundError(f"run {record.id} has no attempt {attempt}: {has}", hint="tpuctl runs")
    told = f"no attempt of run {record.id} has ended yet"
    if attempt is not None:
        told = f"attempt {attempt} of run {record.id} goes on"
    return NotFoundError(told, hint=f"tpuctl attach {record.id}")
