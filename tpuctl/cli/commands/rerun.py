"""`tpuctl rerun`: a run once more, from its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.following import submit_and_follow
from tpuctl.cli.options import DryRun, Timeout
from tpuctl.model.requests import RerunRequest

if TYPE_CHECKING:
    from tpuctl.runs.rerun import Rerun

PLAN = (
    Column("fate", "", whole=True),
    Column("what", "WHAT", give=1),
    Column("detail", "", give=2),
)


def rerun(context: AppContext, request: RerunRequest, timeout: Timeout = None, dry_run: DryRun = False) -> None:
    """Do a run again, with the same code, command and environment.

    First says what is kept, what has to be another, and what cannot be had; where something cannot be had,
    nothing starts. The code is that of the manifest, whatever is in this directory.
    """
    from tpuctl.provenance.bundle import is_bundle, store_bundle
    from tpuctl.provenance.parts import load_source
    from tpuctl.runs.request import choose_run_id
    from tpuctl.runs.rerun import prepare_rerun, refuse, resolve_target

    manifest, record = load_source(context, request.source)
    run_id = choose_run_id(context, request.name)
    since = context.store.now()
    if is_bundle(Path(request.source)):
        store_bundle(context.store, Path(request.source))
    target = resolve_target(context, context.config, manifest, request, Path.cwd())
    found = prepare_rerun(context, context.config, manifest, record, request, target, run_id)
    _show_plan(context, found, dry_run=dry_run)
    if dry_run and (found.submission is not None or context.console.json_mode):
        return
    if found.submission is None:
        raise refuse(found.plan)
    if found.submission.wanted is not None:
        context.require_credentials()
    submit_and_follow(context, found.submission, run_id, request, since=since, timeout=timeout)


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
