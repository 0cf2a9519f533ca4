"""`tpuctl rerun`: a run once more, from its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.completion import run_ids
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.following import submit_and_follow
from tpuctl.cli.options import DryRun, Timeout
from tpuctl.errors import UsageError

if TYPE_CHECKING:
    from tpuctl.model.records import SliceRecord
    from tpuctl.runs.rerun import Rerun
    from tpuctl.slices.resolve import WantedSlice

PLAN = (
    Column("fate", "", whole=True),
    Column("what", "WHAT", give=1),
    Column("detail", "", give=2),
)


def rerun(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run, its manifest or its bundle.", autocompletion=run_ids),
    ],
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="SLICE|TYPE", help="On this slice, or on a new one of this type."),
    ] = None,
    zone: Annotated[
        list[str] | None, typer.Option("--zone", metavar="ZONE", help="For a new slice: where; repeatable.")
    ] = None,
    pay: Annotated[
        bool, typer.Option("--pay", help="For a new slice: what no grant covers is paid for.")
    ] = False,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME=REF", help="Where a secret of the run is; repeatable."),
    ] = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-dir", metavar="URI", help="Go on with these checkpoints; else from scratch."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="URI", help="Data that changed, by its newer receipt; repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="ID", help="Id of the new run.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and return.")] = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
) -> None:
    """Do a run again, with the same code, command and environment.

    First says what is kept, what has to be another, and what cannot be had; where something cannot be had,
    nothing starts. The code is that of the manifest, whatever is in this directory.
    """
    from tpuctl.lib.names import check_run_id, parse_secret
    from tpuctl.provenance.bundle import is_bundle, store_bundle
    from tpuctl.provenance.parts import load_source
    from tpuctl.runs.reconcile import check_new_id
    from tpuctl.runs.rerun import RerunRequest, prepare_rerun, refuse

    with open_context(ctx) as context:
        manifest, record = load_source(context, source)
        run_id = check_run_id(name or context.ids.new_id())
        check_new_id(context, run_id)
        since = context.store.now()
        if is_bundle(Path(source)):
            store_bundle(context.store, Path(source))
        target = _target(context, manifest, on, tuple(zone or ()), pay)
        request = RerunRequest(run_id, dict(map(parse_secret, secret or ())), checkpoint_dir, tuple(data or ()))
        found = prepare_rerun(context, context.config, manifest, record, request, target)
        _show_plan(context, found, dry_run=dry_run)
        if dry_run and (found.submission is not None or context.console.json_mode):
            return
        if found.submission is None:
            raise refuse(found.plan)
        if found.submission.wanted is not None:
            context.require_credentials()
        named = name is not None
        submit_and_follow(
            context, found.submission, run_id, named=named, since=since, detach=detach, timeout=timeout
        )


def _show_plan(context: AppContext, found: Rerun, *, dry_run: bool) -> None:
    from tpuctl.runs.rerun import render_plan

    rows = render_plan(found.plan)
    if not dry_run and not context.console.json_mode:
        _say(context, rows)
    elif dry_run and not context.console.json_mode:
        context.console.table(rows, PLAN)
    elif dry_run:
        context.console.data({"dry_run": True, "possible": found.submission is not None, "plan": rows})


def _say(context: AppContext, rows: list[dict[str, Any]]) -> None:
    """What is not as it was: that something is kept needs no line."""
    for row in rows:
        if row["fate"] == "changed":
            context.console.say(f"{row['what']}: {row['detail']}")


def _target(
    context: AppContext, manifest: dict[str, Any], on: str | None, zones: tuple[str, ...], pay: bool
) -> SliceRecord | WantedSlice:
    """The slice for the run: one that is there, or a new one of a type, by default of that of the manifest."""
    from tpuctl.model.cloud import Tier
    from tpuctl.model.records import SliceState
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.model.slice_spec import SliceRequest
    from tpuctl.provenance.manifest import typed
    from tpuctl.runs.rerun import resolve_like
    from tpuctl.runs.submit import own_slice_name
    from tpuctl.state.repository import find_slice

    was = typed(manifest).slice
    name = on or was.name
    stored = find_slice(context, name)
    if stored is not None and stored.record.state is not SliceState.GONE:
        if zones or pay:
            raise UsageError(
                f"slice {name} is there: --zone and --pay are for a new one", hint="leave them out"
            )
        return stored.record
    kind = on or was.accelerator_type
    if kind is None or load_accelerators().find(kind) is None:
        said = f"{name} is neither a slice that is there nor a type of accelerator"
        raise UsageError.of("on", said, "tpuctl ls; tpuctl types")
    plain = SliceRequest(
        accelerator=kind,
        zone=zones or ((was.zone,) if was.zone and kind == was.accelerator_type else ()),
        tier=Tier(was.tier) if was.tier else None,
        pay=pay,
        slices=was.slices,
    )
    own = own_slice_name(context, plain, None if on else was.name)
    return resolve_like(context, context.config, typed(manifest), plain, own, Path.cwd())
