"""`run`, `runs`, `logs`, `stop`, `attach`, `manifest`: runs on slices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.app import Invocation, invocation
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.options import (
    AllWorkers,
    DryRun,
    Json,
    OnDemand,
    Pay,
    Preemptible,
    Quiet,
    Reserved,
    RunId,
    Spot,
    Timeout,
    Workers,
    Yes,
    Zone,
)
from tpuctl.cli.slice import confirm, wanted_slice
from tpuctl.core import timeouts
from tpuctl.errors import ConflictError, NotFoundError, UsageError

if TYPE_CHECKING:
    from tpuctl.core.records import Policy, RunRecord
    from tpuctl.workflows.submit import RunRequest

RUNS = (
    Column("id", "RUN"),
    Column("slice", "SLICE", give=1),
    Column("state", "STATE"),
    Column("attempts", "ATTEMPTS", right=True),
    Column("preemptions", "PREEMPTIONS", right=True),
    Column("created", "CREATED"),
    Column("command", "COMMAND", give=2),
)


def after_dashes(shared: Invocation, words: list[str]) -> bool:
    """Whether `words` stood behind a `--` of their own: Typer does not tell."""
    arguments = shared.arguments
    return "--" in arguments and arguments[arguments.index("--") + 1 :] == words


def run(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCRIPT] [ARGS]...", help="A script and its arguments, or -- COMMAND."),
    ] = None,
    module: Annotated[str | None, typer.Option("-m", metavar="MODULE", help="Run a module.")] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="NAME", help="The slice.")] = None,
    up: Annotated[
        str | None, typer.Option("--up", metavar="TYPE", help="Bring a slice up for this run; it goes with it.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="With --up: keep the slice when the run ends.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and return.")] = False,
    all_workers: AllWorkers = False,
    worker: Workers = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="With --worker: yes, without the other workers.")
    ] = False,
    var: Annotated[
        list[str] | None, typer.Option("--var", metavar="K=V", help="Variable for the program; repeatable.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME=REF", help="Secret from env:VAR or file:PATH; repeatable."),
    ] = None,
    env: Annotated[str | None, typer.Option("--env", metavar="NAME", help="Pinned environment.")] = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option("--checkpoint-dir", metavar="URI", help="gs:// place for checkpoints.")
    ] = None,
    no_checkpoint: Annotated[
        bool, typer.Option("--no-checkpoint", help="Restarts begin from scratch, and that is fine.")
    ] = False,
    max_failures: Annotated[
        int, typer.Option("--max-failures", metavar="N", min=0, help="Restarts after failures of the program.")
    ] = timeouts.MAX_FAILURES,
    max_preemptions: Annotated[
        int, typer.Option("--max-preemptions", metavar="N", min=0, help="Restarts after preemptions.")
    ] = timeouts.MAX_PREEMPTIONS,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", min=0, help="Between TERM and KILL at a stop.")
    ] = timeouts.STOP_GRACE_S,
    name: Annotated[str | None, typer.Option("--name", metavar="ID", help="Id of the run.")] = None,
    zone: Zone = None,
    spot: Spot = False,
    on_demand: OnDemand = False,
    preemptible: Preemptible = False,
    reserved: Reserved = False,
    pay: Pay = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Run a script, module or command on every worker, and start it again after preemptions.

    The code is frozen at the first start. The run outlives this command: Ctrl-C only stops following it.
    Options for tpuctl stand before SCRIPT; what follows it belongs to the program.
    """
    from tpuctl.core.entry import render_argv
    from tpuctl.core.naming import check_run_id
    from tpuctl.core.records import Policy

    if all_workers and worker is not None:
        raise UsageError("--all-workers and --worker exclude each other", hint="keep one of them")
    if worker is not None and not alone:
        raise UsageError(
            "--worker leaves out workers, which hang a program that waits for them",
            hint="add --alone if the program does not",
        )
    shared, given = invocation(ctx), list(words or [])
    is_command = module is None and after_dashes(shared, given)
    script = given[0] if given and module is None and not is_command else None
    argv = render_argv(
        script=script,
        module=module,
        command=given if is_command else (),
        arguments=given[1:] if script else given,
    )
    with open_context(ctx) as context:
        run_id = check_run_id(name or context.ids.new_id())
        policy = Policy(max_failures=max_failures, max_preemptions=max_preemptions, grace_s=grace)
        options = _RunOptions(worker, var or [], secret or [], env, checkpoint_dir, no_checkpoint, keep, policy)
        code = _freeze(context, script)
        slice_name = on
        if up is not None:
            slice_name = _own_slice_name(context, on, up)
            request = options.request(context, slice_name, argv, code.directory, hosts=None, owns=True)
            _check(context, request)
            flags = {"spot": spot, "on_demand": on_demand, "preemptible": preemptible, "reserved": reserved}
            made = wanted_slice(
                context,
                up,
                slice_name,
                zone,
                tier_flags=flags,
                pay=pay,
                queued=None,
                runtime_version=None,
                dry_run=dry_run,
                run_id=run_id,
            )
            if made is None:
                return
            request = options.request(
                context, slice_name, argv, code.directory, hosts=made.spec.hosts, owns=True
            )
        else:
            from tpuctl.workflows.execute import resolve_slice

            found = resolve_slice(context, slice_name)
            request = options.request(
                context, found.name, argv, code.directory, hosts=found.spec.hosts, owns=False
            )
            _check(context, request)
        if dry_run:
            _show_dry_run(context, request, code)
            return
        record = _submit(context, run_id, request, code)
        context.console.say(f"run {record.id} on {record.slice_name}")
        _follow_or_leave(context, shared, record, detach=detach, timeout=timeout)


class _RunOptions:
    """The flags of `run` that become a request."""

    def __init__(
        self,
        worker: str | None,
        variables: list[str],
        secrets: list[str],
        env: str | None,
        checkpoint_dir: str | None,
        no_checkpoint: bool,
        keep: bool,
        policy: Policy,
    ) -> None:
        from tpuctl.core.naming import parse_secret, parse_var

        self._worker = worker
        self._variables = dict(parse_var(word) for word in variables)
        references = [parse_secret(word) for word in secrets]
        self._secrets = {item.name: item.reference for item in references}
        self._env = env
        self._checkpoint_dir = checkpoint_dir
        self._no_checkpoint = no_checkpoint
        self._keep = keep
        self._policy = policy

    def request(
        self,
        context: AppContext,
        slice_name: str,
        argv: tuple[str, ...],
        cwd: str,
        *,
        hosts: int | None,
        owns: bool,
    ) -> RunRequest:
        from tpuctl.cli.environment import load_environment
        from tpuctl.core.fold import parse_workers
        from tpuctl.workflows.submit import RunRequest

        env = self._env or context.config.env
        bucket = None if self._no_checkpoint else context.config.checkpoint_bucket
        workers = None
        if self._worker is not None and hosts is not None:
            try:
                workers = parse_workers(self._worker, hosts)
            except ValueError as error:
                raise UsageError(f"--worker: {error}", hint=f"tpuctl status {slice_name}") from error
        return RunRequest(
            slice_name=slice_name,
            argv=argv,
            cwd=cwd,
            policy=self._policy,
            variables=self._variables,
            secrets=self._secrets,
            workers=workers,
            environment_name=env,
            environment=load_environment(env, Path.cwd()) if env else None,
            checkpoint_dir=self._checkpoint_dir or bucket,
            checkpoint_per_run=self._checkpoint_dir is None and bucket is not None,
            no_checkpoint=self._no_checkpoint,
            owns_slice=owns,
            keep_slice=self._keep,
        )


def _own_slice_name(context: AppContext, on: str | None, accelerator: str) -> str:
    """The name of a slice that goes with its run; the same for the same command, so that a repeat finds it.

    Raises ConflictError for a slice that somebody brought up for itself: it must not go with a run.
    """
    from tpuctl.core.records import SliceState
    from tpuctl.resources import load_accelerators
    from tpuctl.workflows.documents import find_slice

    name = on or load_accelerators().get(accelerator).name
    loaded = find_slice(context, name)
    if loaded is not None and loaded.record.run_id is None and loaded.record.state is not SliceState.GONE:
        raise ConflictError(
            f"slice {name} is there already and does not belong to a run",
            hint=f"use it with --on {name} and without --up, or name another with --on",
        )
    return name


def _freeze(context: AppContext, script: str | None) -> Any:
    from tpuctl.code_bundle import freeze

    return freeze(Path.cwd(), script, limit_bytes=context.config.bundle_limit_mib << 20)


def _check(context: AppContext, request: RunRequest) -> None:
    from tpuctl.workflows.submit import check_request

    check_request(context, request)


def _submit(context: AppContext, run_id: str, request: RunRequest, code: Any) -> RunRecord:
    from tpuctl.workflows.runs import request_run
    from tpuctl.workflows.submit import FrozenCode, freeze_run

    frozen = FrozenCode(code.content, code.diff, code.commit, code.branch, code.dirty, code.remote_url)
    return request_run(context, freeze_run(context, run_id, request, frozen))


def _show_dry_run(context: AppContext, request: RunRequest, code: Any) -> None:
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


def _follow_or_leave(
    context: AppContext, shared: Invocation, record: RunRecord, *, detach: bool, timeout: float | None
) -> None:
    from tpuctl.workflows.documents import get_run
    from tpuctl.workflows.follow import step_run_and_slice

    shared.if_interrupted = (
        f"run {record.id} goes on: `tpuctl attach {record.id}`, or `tpuctl stop {record.id}`"
    )
    if not detach:
        _follow(context, record.id, timeout=timeout)
        return
    while step_run_and_slice(context, record.id).acted:
        if get_run(context, record.id).record.state.final:
            break
    _print_run(context, record.id)
    context.console.say(f"`tpuctl attach {record.id}` follows it; `tpuctl watch once` keeps it going")


def _follow(context: AppContext, run_id: str, *, timeout: float | None) -> None:
    from tpuctl.workflows.follow import follow_run
    from tpuctl.workflows.runs import run_error

    deadline = None if timeout is None else context.clock.now() + timeout
    try:
        record = follow_run(context, run_id, deadline=deadline)
    except KeyboardInterrupt:
        if not _wants_stop(context):
            raise
        record = _stop(context, run_id, None, None)
    context.emit.close()
    error = run_error(record, f"tpuctl logs {run_id}")
    if error is not None:
        raise error
    _print_run(context, run_id)


def _wants_stop(context: AppContext) -> bool:
    """Asks on a terminal whether Ctrl-C meant the run; a second Ctrl-C or no terminal means: only detach."""
    if not context.console.interactive:
        return False
    answer = typer.prompt("\nstop the run, or detach from it? [s/D]", default="d", show_default=False, err=True)
    return str(answer).strip().lower().startswith("s")


def _print_run(context: AppContext, run_id: str) -> None:
    from tpuctl.workflows.report import run_rows

    row = next(row for row in run_rows(context) if row["id"] == run_id)
    if context.console.json_mode:
        context.console.data(row)
    else:
        reason = f": {row['reason']}" if row["reason"] else ""
        context.console.say(f"run {run_id} {row['state']}{reason} (attempts: {row['attempts']})")


def runs(ctx: typer.Context, json: Json = False) -> None:  # noqa: ARG001 - acts through its callback
    """List runs, newest first."""
    from tpuctl.workflows.report import run_rows

    with open_context(ctx) as context:
        context.console.table(run_rows(context), RUNS, empty="no runs; start one with `tpuctl run SCRIPT`")


def logs(
    ctx: typer.Context,
    run_id: RunId = "last",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    worker: Workers = None,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="This attempt; the newest if left out.")
    ] = None,
) -> None:
    """Print what the workers wrote, as kept on this machine."""
    from tpuctl.core.fold import parse_workers
    from tpuctl.workflows.documents import get_run

    with open_context(ctx) as context:
        record = get_run(context, run_id).record
        if record.attempt is None:
            raise NotFoundError(f"run {record.id} has not started yet", hint=f"tpuctl attach {record.id}")
        number = record.attempt.number if attempt is None else attempt
        known = record.attempt.workers
        try:
            chosen = known if worker is None else parse_workers(worker, max(known) + 1)
        except ValueError as error:
            raise UsageError(f"--worker: {error}") from error
        _print_logs(context, record, number, chosen)
        if follow and not record.state.final:
            _follow(context, record.id, timeout=None)


def _print_logs(context: AppContext, record: RunRecord, number: int, workers: tuple[int, ...]) -> None:
    for worker in workers:
        for stream, target in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            path = Path(context.logs.path(record.id, number, worker, stream))
            if not path.exists():
                continue
            prefix = f"{record.slice_name}-{worker} │ "
            with path.open(encoding="utf-8", errors="replace") as lines:
                target.writelines(f"{prefix}{line.rstrip(chr(10))}\n" for line in lines)
            target.flush()


def stop(
    ctx: typer.Context,
    run_id: RunId = "last",
    grace: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Between TERM and KILL.")
    ] = None,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Stop a run: TERM to every process of it, then KILL after the grace period."""
    from tpuctl.workflows.documents import get_run

    with open_context(ctx) as context:
        record = get_run(context, run_id).record
        if dry_run:
            context.console.line(f"{context.console.mark}would stop run {record.id} ({record.state})")
            return
        if not record.state.final:
            confirm(context, f"stop run {record.id}?", yes=yes)
        _stop(context, record.id, grace, timeout)
        context.emit.close()
        _print_run(context, record.id)


def _stop(context: AppContext, run_id: str, grace: float | None, timeout: float | None) -> RunRecord:
    from tpuctl.workflows.follow import follow_run
    from tpuctl.workflows.runs import request_stop

    request_stop(context, run_id, grace_s=grace)
    deadline = None if timeout is None else context.clock.now() + timeout
    return follow_run(context, run_id, deadline=deadline)


def attach(
    ctx: typer.Context,
    run_id: RunId = "last",
    timeout: Timeout = None,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Follow a run that was started before, from this or another machine."""
    from tpuctl.workflows.documents import get_run

    with open_context(ctx) as context:
        record = get_run(context, run_id).record
        _follow_or_leave(context, invocation(ctx), record, detach=False, timeout=timeout)


def manifest(
    ctx: typer.Context,
    run_id: RunId = "last",
    attempt: Annotated[int | None, typer.Option(metavar="N", help="This attempt; the last ended one.")] = None,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Print the manifest of an attempt: what ran, where, with which versions, and how it ended."""
    from tpuctl.workflows.documents import get_run
    from tpuctl.workflows.report import manifest_of

    with open_context(ctx) as context:
        found = manifest_of(context, get_run(context, run_id).record.id, attempt)
        if found is None:
            raise NotFoundError("no attempt of this run has ended yet", hint="tpuctl runs")
        if context.console.json_mode:
            context.console.data(found)
            return
        import yaml

        context.console.line(yaml.safe_dump(found, sort_keys=False, allow_unicode=True).rstrip())
