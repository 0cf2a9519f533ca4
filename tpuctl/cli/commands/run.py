"""`run`: a program on every worker of a slice."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from tpuctl.cli.arguments import split_words
from tpuctl.cli.completion import slice_names
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.following import follow_or_leave
from tpuctl.cli.invocation import Invocation, invocation
from tpuctl.cli.options import AllWorkers, DryRun, Json, Quiet, Timeout, Workers
from tpuctl.cli.run_code import environment_of, freeze_code, frozen_code
from tpuctl.cli.slice_options import NOTHING_SAID, Capacity, read_script, with_capacity
from tpuctl.cli.slice_request import after_refused_login, settle_slice, wanted_slice
from tpuctl.errors import ConflictError, DeniedError, TpuctlError, UsageError
from tpuctl.slices.options import PolicyWish, RunWish, check_run_wish, help_of

if TYPE_CHECKING:
    from tpuctl.model.records import RunRecord, SliceRecord
    from tpuctl.runs.submit import RunRequest
    from tpuctl.slices.options import SliceWish
    from tpuctl.transfer.bundle import CodeBundle


PROGRAM, PLACE, RESTARTS = "What it runs", "Where it runs", "Checkpoints and restarts"
"""Groups of the flags in help."""


@with_capacity
def run(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCRIPT] [ARGS]...", help="A script and its arguments, or -- COMMAND."),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("-m", metavar="MODULE", help=help_of(RunWish, "module"), rich_help_panel=PROGRAM),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="NAME",
            help=help_of(RunWish, "on"),
            autocompletion=slice_names,
            rich_help_panel=PLACE,
        ),
    ] = None,
    up: Annotated[
        str | None,
        typer.Option(
            "--up",
            metavar="TYPE",
            help="Bring a slice up for this run; it goes with it.",
            rich_help_panel=PLACE,
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="With --up: keep the slice when the run ends.", rich_help_panel=PLACE)
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and return.")] = False,
    all_workers: AllWorkers = False,
    worker: Workers = None,
    alone: Annotated[
        bool, typer.Option("--alone", help=help_of(RunWish, "alone"), rich_help_panel=PLACE)
    ] = False,
    var: Annotated[
        list[str] | None,
        typer.Option("--var", metavar="K=V", help=help_of(RunWish, "var"), rich_help_panel=PROGRAM),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME=REF", help=help_of(RunWish, "secret"), rich_help_panel=PROGRAM),
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", metavar="NAME", help=help_of(RunWish, "env"), rich_help_panel=PROGRAM)
    ] = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-dir", metavar="URI", help=help_of(RunWish, "checkpoint_dir"), rich_help_panel=RESTARTS
        ),
    ] = None,
    no_checkpoint: Annotated[
        bool, typer.Option("--no-checkpoint", help=help_of(RunWish, "no_checkpoint"), rich_help_panel=RESTARTS)
    ] = False,
    any_region: Annotated[
        bool, typer.Option("--any-region", help=help_of(RunWish, "any_region"), rich_help_panel=RESTARTS)
    ] = False,
    max_failures: Annotated[
        int,
        typer.Option(
            "--max-failures",
            metavar="N",
            min=0,
            help=help_of(PolicyWish, "max_failures"),
            rich_help_panel=RESTARTS,
        ),
    ] = PolicyWish.max_failures,
    max_preemptions: Annotated[
        int,
        typer.Option(
            "--max-preemptions",
            metavar="N",
            min=0,
            help=help_of(PolicyWish, "max_preemptions"),
            rich_help_panel=RESTARTS,
        ),
    ] = PolicyWish.max_preemptions,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", metavar="SECONDS", min=0, help=help_of(PolicyWish, "grace"), rich_help_panel=RESTARTS
        ),
    ] = PolicyWish.grace,
    name: Annotated[str | None, typer.Option("--name", metavar="ID", help="Id of the run.")] = None,
    capacity: Capacity = NOTHING_SAID,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Run a script, module or command on every worker.

    After a preemption it is started again. The code is frozen at the first start. The same command again
    follows the run that is under way; under another --name it is refused. The run outlives this command:
    Ctrl-C leaves, and the run goes on; `tpuctl stop` ends it. Options of the program stand behind a `--` of
    their own: `tpuctl run train.py -- --lr 3e-4`.
    """
    from tpuctl.lib.names import check_run_id, parse_secret, parse_var
    from tpuctl.runs.reconcile import check_new_id

    if all_workers and worker is not None:
        raise UsageError("--all-workers and --worker exclude each other", hint="keep one of them")
    if up is None and capacity.given:
        raise UsageError(
            "flags about capacity go with --up: without it the slice is there already",
            hint="add --up TYPE, or leave them out",
        )
    shared = invocation(ctx)
    secrets = [parse_secret(word) for word in secret or []]
    wish = RunWish(
        **_entry(shared, list(words or []), module),
        worker=worker,
        alone=alone,
        var=dict(parse_var(word) for word in var or []),
        secret={item.name: item.reference for item in secrets},
        env=env,
        checkpoint_dir=checkpoint_dir,
        no_checkpoint=no_checkpoint,
        any_region=any_region,
        policy=PolicyWish(max_failures, max_preemptions, grace),
    )
    check_run_wish(wish)
    with open_context(ctx) as context:
        run_id = check_run_id(name or context.ids.new_id())
        check_new_id(context, run_id)
        _check_script(context, wish)
        code = freeze_code(context, Path.cwd(), wish)
        made: SliceRecord | None = None
        began = context.store.now()
        if up is not None:
            slice_name = _own_slice_name(context, on, up, capacity)
            early = _request(context, wish, slice_name, None, code, owns=True, keep=keep)
            _check(context, early, _zones_of(context, capacity.wish(up)))
            down = f"`tpuctl down {slice_name}` gives it up"
            shared.if_interrupted = f"slice {slice_name} may be wanted already: `tpuctl ls` shows it, {down}"
            made = wanted_slice(context, capacity.wish(up), slice_name, dry_run=dry_run, run_id=run_id)
            if made is None:
                return
            request = _request(context, wish, slice_name, made.spec.hosts, code, owns=True, keep=keep)
        else:
            from tpuctl.workers.exec import resolve_slice

            found = resolve_slice(context, on, flag="--on")
            request = _request(context, wish, found.name, found.spec.hosts, code, owns=False, keep=keep)
            _check(context, request, found.candidates)
        if dry_run:
            _show_dry_run(context, request, code)
            return
        record = _submit(context, run_id, request, code, named=name is not None)
        context.console.say(f"run {record.id} on {record.slice_name}")
        try:
            follow_or_leave(context, shared, record, detach=detach, timeout=timeout)
        except DeniedError as error:
            first = made is not None and made.created_at >= began
            raise _refused(context, made, record, error, first=first) from error


def _entry(shared: Invocation, words: list[str], module: str | None) -> dict[str, Any]:
    """What is to be run, as fields of the wish: a script or module with arguments, or a command."""
    before, behind = split_words(shared, words)
    if module is not None:
        return {"module": module, "args": (*before, *behind)}
    if before:
        return {"script": _below(before[0]), "args": (*before[1:], *behind)}
    return {"command": tuple(behind)}


def _check_script(context: AppContext, wish: RunWish) -> None:
    """Raises UsageError for a slice in the place of the script, where other commands take its name, and for a
    command without its --."""
    from tpuctl.lib.names import is_slice_name
    from tpuctl.state.repository import find_slice

    name = wish.script
    if name is None or Path(name).exists():
        return
    if is_slice_name(name) and find_slice(context, name) is not None:
        meant = shlex.join(wish.args) or "SCRIPT"
        raise UsageError(f"{name} is a slice, not a script", hint=f"tpuctl run --on {name} {meant}")
    if "/" not in name and not name.endswith(".py"):
        meant = shlex.join((name, *wish.args))
        raise UsageError(
            f"there is no script {name!r} in this directory",
            hint=f"a command stands behind --: tpuctl run -- {meant}",
        )


def _below(script: str) -> str:
    """`script` as seen from this directory: on the hosts its parents have other names."""
    path = PurePath(script)
    return os.path.relpath(script) if ".." in path.parts or path.is_absolute() else script


def _request(
    context: AppContext,
    wish: RunWish,
    slice_name: str,
    hosts: int | None,
    code: CodeBundle,
    *,
    owns: bool,
    keep: bool,
) -> RunRequest:
    from tpuctl.runs.submit import build_request

    environment = environment_of(context, wish, Path.cwd())
    request = build_request(wish, context.config, slice_name, hosts, code.directory, environment)
    return replace(request, owns_slice=owns, keep_slice=keep)


def _own_slice_name(context: AppContext, on: str | None, accelerator: str, capacity: Capacity) -> str:
    """The name of a slice that goes with its run; the same for the same command, so that a repeat finds it.

    Raises ConflictError for a slice that somebody brought up for itself: it must not go with a run.
    """
    from tpuctl.model.data import load_accelerators
    from tpuctl.model.records import SliceState
    from tpuctl.slices.resolve import find_accelerator, name_of
    from tpuctl.state.repository import find_slice

    found = find_accelerator(load_accelerators(), accelerator, capacity.topology)
    name = on or name_of(found.name, capacity.slices or 1)
    loaded = find_slice(context, name)
    if loaded is not None and loaded.record.run_id is None and loaded.record.state is not SliceState.GONE:
        raise ConflictError(
            f"slice {name} is there already and does not belong to a run",
            hint=f"use it with --on {name} and without --up, or name another with --on",
        )
    return name


def _check(context: AppContext, request: RunRequest, zones: Sequence[str]) -> None:
    from tpuctl.runs.submit import check_request

    check_request(context, request, zones)


def _zones_of(context: AppContext, wish: SliceWish) -> tuple[str, ...]:
    """Where a slice that is wished for may be."""
    from tpuctl.money.coverage import list_grants

    return settle_slice(context, wish, list_grants(context), read_script(wish, Path.cwd())).zones


def _submit(
    context: AppContext, run_id: str, request: RunRequest, code: CodeBundle, *, named: bool
) -> RunRecord:
    from tpuctl.runs.reconcile import request_run
    from tpuctl.runs.submit import freeze_run

    record = freeze_run(context, run_id, request, frozen_code(code))
    context.emit.show_only(())  # nothing of an earlier run that ended while nobody looked
    try:
        return request_run(context, record, named=named)
    finally:
        context.emit.show_only(None)


def _refused(
    context: AppContext, made: SliceRecord | None, record: RunRecord, error: DeniedError, *, first: bool
) -> TpuctlError:
    """The refusal, with what became of the run: a slice that was made for it and of which nothing was sent is
    not wanted any more, nor is its run; otherwise the run stays submitted."""
    from tpuctl.runs.reconcile import end_with_slice
    from tpuctl.state.repository import get_run

    told: TpuctlError = error
    if made is not None:
        told = after_refused_login(context, made, error, first=first)
        end_with_slice(context, record.id)
    if get_run(context, record.id).record.state.final:
        return told
    stays = (
        f"run {record.id} stays submitted: `tpuctl attach {record.id}` goes on with it, "
        f"`tpuctl stop {record.id}` ends it"
    )
    return type(told)(told.message, hint=f"{told.hint}; {stays}" if told.hint else stays, details=told.details)


def _show_dry_run(context: AppContext, request: RunRequest, code: CodeBundle) -> None:
    facts = {
        "slice": request.slice_name,
        "command": list(request.argv),
        "files": code.files,
        "bundle_sha256": code.sha256,
        "commit": code.commit,
        "dirty": code.dirty,
        "environment": request.environment_name,
        "checkpoint_dir": request.checkpoint_dir,
        "workers": list(request.workers) if request.workers else "all",
    }
    context.console.fields({"dry_run": True, **facts})
