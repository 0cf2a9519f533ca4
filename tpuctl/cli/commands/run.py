"""`tpuctl run`: a program on every worker of a slice."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec.structs import replace

from tpuctl.cli.context import AppContext
from tpuctl.cli.following import follow_or_leave, submit_and_follow
from tpuctl.cli.options import DryRun, Timeout, Yes
from tpuctl.cli.request_options import program_of
from tpuctl.cli.workers import check_workers
from tpuctl.errors import UsageError
from tpuctl.lib.options import argument
from tpuctl.model.clusters import is_cluster
from tpuctl.model.requests import ClusterRequest, LaunchRequest
from tpuctl.model.run_spec import RunRequest
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.runs.chips import parse_chips
from tpuctl.runs.rules import check_run

if TYPE_CHECKING:
    from tpuctl.model.records import RunRecord
    from tpuctl.model.requests import ClusterRequest, LaunchRequest
    from tpuctl.model.run_spec import RunRequest
    from tpuctl.model.slice_spec import SliceRequest
    from tpuctl.provenance.manifest import Row
    from tpuctl.runs.submit import Submission


def run(
    context: AppContext,
    words: Annotated[
        list[str] | None, argument("[SCRIPT] [ARGS]...", "A script and its arguments, or -- COMMAND.")
    ] = None,
    request: RunRequest = RunRequest(),
    launch: LaunchRequest = LaunchRequest(),
    capacity: SliceRequest = SliceRequest(),
    cluster: ClusterRequest = ClusterRequest(),
    timeout: Timeout = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Run a script, module or command on every worker.

    The run restarts after a preemption, with the code of its first start. The same command again follows
    the run that is under way; under another --name it is refused. Ctrl-C only stops following it: `tpuctl stop`
    ends the run. Put options of the program after `--`: `tpuctl run train.py -- --lr 3e-4`. With
    --on gke:CONTEXT/NAMESPACE it goes to a cluster, as a JobSet.
    """
    _check_together(launch, capacity, shares=parse_chips(request) != ())
    from tpuctl.runs.request import choose_run_id
    from tpuctl.runs.submit import prepare_launch

    here = Path.cwd()
    program = program_of(*context.shared.split(words or []), request.module)
    request = msgspec.structs.replace(request, worker=launch.worker, **program)
    check_run(request)
    if is_cluster(request.on):
        _check_script(context, request)
        run_on_cluster(context, request, launch, capacity, cluster, timeout=timeout, dry_run=dry_run)
        return
    if cluster != ClusterRequest():
        raise UsageError(
            "flags about clusters go with --on gke:CONTEXT", hint="add --on gke:CONTEXT, or leave them out"
        )
    if launch.matrix is not None:
        from tpuctl.cli.sweeping import run_sweep

        _check_script(context, request)
        run_sweep(context, request, launch, capacity, timeout=timeout, dry_run=dry_run, yes=yes)
        return
    run_id = choose_run_id(context, launch.name)
    _check_script(context, request)
    since = context.store.now()
    submission = prepare_launch(context, context.config, request, launch, capacity, here)
    if submission.wanted is not None:
        context.require_credentials()
    if dry_run:
        _show(context, submission)
        return
    with context.interruptible(_still_there(submission)):
        if launch.smoke:
            checks = tuple(_test_first(context, request, submission.spec.slice_name, here))
            submission = msgspec.structs.replace(submission, checks=checks)
        submit_and_follow(context, submission, run_id, launch, since=since, timeout=timeout)


def _check_together(launch: LaunchRequest, capacity: SliceRequest, *, shares: bool) -> None:
    """Raises UsageError for flags that exclude each other."""
    check_workers(launch.worker, launch.all_workers)
    if launch.up is None and capacity.given:
        raise UsageError(
            "flags about capacity go with --up: without it the slice is there already",
            hint="add --up TYPE, or leave them out",
        )
    if launch.parallel is not None and launch.matrix is None:
        raise UsageError("--parallel is how many rows of a grid run at the same time", hint="add --matrix FILE")
    if launch.smoke and shares:
        raise UsageError("--smoke tests all chips of a slice", hint="leave it out, or --chips and --chip")
    if launch.smoke and launch.up is not None:
        hint = f"tpuctl up {launch.up}, then tpuctl run --smoke"
        raise UsageError("--smoke needs a slice that is there", hint=hint)


def _still_there(submission: Submission) -> str:
    """What Ctrl-C says of a slice that is brought up for the run."""
    if submission.wanted is None:
        return ""
    name = submission.wanted.name
    return f"slice {name} may be wanted already: `tpuctl ls` shows it, `tpuctl down {name}` gives it up"


def _show(context: AppContext, submission: Submission) -> None:
    """What --dry-run prints."""
    from tpuctl.cli.slice_status import print_preview
    from tpuctl.slices.bring_up import preview_slice

    if submission.wanted is not None:
        print_preview(context, submission.wanted, preview_slice(context, submission.wanted))
    else:
        _print_submission(context, submission)


def _test_first(context: AppContext, request: RunRequest, slice_name: str, here: Path) -> list[Row]:
    """The smoke test, for the manifest, unless a run is under way on the slice: that is followed, or in the
    way. PartialError where a chip fails."""
    from tpuctl.lib.text import counted
    from tpuctl.lib.time import render_time
    from tpuctl.model.timeouts import SMOKE_S
    from tpuctl.runs.smoke_run import prepare_smoke, run_smoke
    from tpuctl.state.repository import active_runs, get_slice

    if active_runs(context, slice_name):
        return []
    target = get_slice(context, slice_name).record
    allow = request.allow_drift
    test = prepare_smoke(context, context.config, target, request.env, here, allow_drift=allow)
    context.emit.show_only(())  # its reports are not the run's output
    try:
        rows = run_smoke(context, test, f"smoke-{context.ids.new_id()}", SMOKE_S)
    finally:
        context.emit.show_only(None)
    said = f"every chip of {counted(len(rows), 'worker')} works"
    context.console.say(said)
    return [{"check": "smoke", "detail": said, "at": render_time(context.store.now()) or ""}]


def _check_script(context: AppContext, request: RunRequest) -> None:
    """Raises UsageError for a slice in the place of the script, where other commands take its name, and for a
    command without its --."""
    from tpuctl.slices.choose import is_known

    name = request.script
    if name is None or Path(name).exists():
        return
    if is_known(context, name):
        meant = shlex.join(request.args) or "SCRIPT"
        raise UsageError(f"{name} is a slice, not a script", hint=f"tpuctl run --on {name} {meant}")
    if "/" not in name and not name.endswith(".py"):
        meant = shlex.join((name, *request.args))
        raise UsageError(
            f"there is no file {name!r} in this directory",
            hint=f"a command goes after --: tpuctl run -- {meant}",
        )


def _print_submission(context: AppContext, submission: Submission) -> None:
    from tpuctl.envs.presets import preset_rows
    from tpuctl.lib.codec import to_data

    spec, code, environment = submission.spec, submission.code, submission.environment
    preset = preset_rows(environment.spec, spec, spec.variables) if environment is not None else []
    facts = {
        "slice": spec.slice_name,
        "command": list(spec.argv),
        "files": code.files,
        "bundle_sha256": code.sha256,
        "commit": code.commit,
        "dirty": code.dirty,
        "environment": spec.environment.name if spec.environment else None,
        "container": spec.container,
        "checkpoint_dir": spec.checkpoint_dir,
        "workers": list(spec.workers) if spec.workers else "all",
        "chips": spec.chip or spec.chips,
        "per": spec.per,
        "progress": spec.progress,
        "preset": to_data(preset) if context.console.json_mode else [f"{row.said};" for row in preset],
        "on_nan": spec.on_nan,
        "debug": list(spec.debug),
    }
    context.console.fields({"dry_run": True, **facts})


def run_on_cluster(
    context: AppContext,
    request: RunRequest,
    launch: LaunchRequest,
    capacity: SliceRequest,
    cluster: ClusterRequest,
    *,
    timeout: float | None,
    dry_run: bool,
) -> None:
    """Has the cluster check the run, writes it down, applies it, and follows it or leaves it."""
    from tpuctl.kube.client import connect
    from tpuctl.kube.jobset import documents
    from tpuctl.kube.prepare import preparing, publish
    from tpuctl.kube.render import head_of, render_yaml
    from tpuctl.kube.source import source_of_script
    from tpuctl.kube.submit import check_cluster, check_launch, cluster_fingerprint, submit_to_cluster
    from tpuctl.kube.target import resolve_target
    from tpuctl.model.clusters import parse_cluster
    from tpuctl.runs.request import check_new_id, choose_run_id, find_same
    from tpuctl.state.repository import active_runs

    check_launch(launch, request, cluster)
    there = connect(parse_cluster(str(request.on)))
    run_id = choose_run_id(context, launch.name)
    wanted, plain = capacity.of(launch.up), replace(request, on=None)
    target = resolve_target(context, wanted, cluster, run_id, there.namespace)
    source = source_of_script(context, context.config, plain, target, run_id, Path.cwd())
    digest, named = cluster_fingerprint(source, there.place, cluster, wanted), launch.name is not None
    record = find_same(active_runs(context, str(there.place)), run_id, digest, named=named)
    if record is None:
        check_new_id(context, run_id, again=False)
    if record is None or dry_run:
        with preparing(context, source, target, cluster) as prepared:
            region = check_cluster(context, there, prepared.job) if record is None else ""
            if dry_run:
                text = render_yaml(documents(prepared.job), head_of(prepared.job, "FILE"))
                context.console.line(text.rstrip("\n"))
                return
            publish(context, prepared)
            record = submit_to_cluster(context, there.place, source, prepared, digest, region, named=named)
    context.console.say(f"run {record.id} on {record.slice_name}{_cost(record)}")
    follow_or_leave(context, record, detach=launch.detach, timeout=timeout)


def _cost(record: RunRecord) -> str:
    """What its chips cost, as the line about a slice says it."""
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.money.cluster_costs import cluster_price

    price = cluster_price(load_accelerators(), record.cluster) if record.cluster is not None else None
    return "" if price is None else f": about ${price:.2f} per hour"
