"""`run`: a program on every worker of a slice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.app import invocation
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.follow import follow_or_leave
from tpuctl.cli.options import (
    AllWorkers,
    DryRun,
    Json,
    OnDemand,
    Pay,
    Preemptible,
    Quiet,
    Reserved,
    Spot,
    Timeout,
    Workers,
    Zone,
)
from tpuctl.cli.slice import wanted_slice
from tpuctl.cli.words import split_words
from tpuctl.core import timeouts
from tpuctl.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from tpuctl.core.records import Policy, RunRecord
    from tpuctl.workflows.submit import RunRequest


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
    Options of the program stand behind a `--` of their own: `tpuctl run train.py -- --lr 3e-4`.
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
    shared = invocation(ctx)
    before, behind = split_words(shared, list(words or []))
    script = before[0] if before and module is None else None
    argv = render_argv(
        script=script,
        module=module,
        command=behind if script is None and module is None else (),
        arguments=[*(before[1:] if script else before), *behind],
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
        follow_or_leave(context, shared, record, detach=detach, timeout=timeout)


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
