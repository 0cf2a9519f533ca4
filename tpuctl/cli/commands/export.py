"""`tpuctl export`: a run as a file for an engine that manages clusters."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Overwrite
from tpuctl.errors import UsageError
from tpuctl.lib.options import Flag, Option, argument
from tpuctl.lib.text import PLACE, counted
from tpuctl.model.requests import CLUSTER, ClusterRequest
from tpuctl.model.run_spec import RunRequest
from tpuctl.model.slice_spec import SliceRequest

if TYPE_CHECKING:
    from tpuctl.kube.export import ExportTarget
    from tpuctl.kube.jobset import JobSetSpec
    from tpuctl.kube.source import ExportSource


class ExportFormat(StrEnum):
    """What `export` writes."""

    JOBSET = "jobset"


def export(
    context: AppContext,
    words: Annotated[
        list[str] | None,
        argument("[RUN|SCRIPT] [ARGS]...", "A run, its manifest or bundle; a script; or -- COMMAND."),
    ] = None,
    request: RunRequest = RunRequest(),
    up: Annotated[
        str | None,
        Option("Accelerator type, or with --topology a generation.", group=PLACE, metavar="TYPE"),
    ] = None,
    capacity: SliceRequest = SliceRequest(),
    cluster: ClusterRequest = ClusterRequest(),
    namespace: Annotated[str, Option("Namespace.", group=CLUSTER, metavar="NAME")] = "default",
    name: Annotated[
        str | None, Option("Name of the JobSet, and id of a new run.", group=CLUSTER, metavar="NAME")
    ] = None,
    as_: Annotated[ExportFormat, Option("The form.", flags=(Flag("--as"),))] = ExportFormat.JOBSET,
    output: Annotated[
        str | None,
        Option("Where to; NAME.yaml here if left out.", flags=(Flag("--output"),), short="-o", metavar="FILE"),
    ] = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
) -> None:
    """Write a run as a JobSet for GKE.

    Takes what `run` takes, or a run that is there. The code, and the packages of a pinned environment, go to a
    bucket, where pods get and verify them. Beside FILE comes the bundle of the run: `tpuctl rerun` brings it
    back to a slice. With --dry-run the file is printed, and nothing is uploaded or written.
    """
    del as_  # there is one
    from tpuctl.kube.jobset import documents
    from tpuctl.kube.prepare import preparing, publish
    from tpuctl.kube.render import head_of, render_yaml
    from tpuctl.lib.output_files import check_output, write_output_text
    from tpuctl.provenance.bundle import begins_bundle
    from tpuctl.transfer.own_output import EXPORT_MARK

    source, target = _source(context, words or [], request, capacity.of(up), cluster, namespace, name)
    path = Path(output or f"{target.name}.yaml")
    bundle = path.parent / f"{path.stem}.run.tar"
    if not str(path).isprintable():
        raise UsageError(f"-o {str(path)!r} is a name with characters that cannot be printed", hint="-o FILE")
    if not dry_run:
        check_output(
            path, "-o", kind="export", ours=lambda head: head.startswith(EXPORT_MARK), overwrite=overwrite
        )
        check_output(bundle, "", kind="bundle", ours=begins_bundle, overwrite=overwrite)
    with preparing(context, source, target, cluster) as prepared:
        job = prepared.job
        text = render_yaml(documents(job), head_of(job, str(path)))
        if dry_run:
            context.console.line(text.rstrip("\n"))
            return
        publish(context, prepared)
        prepared.copy_bundle(bundle)
    write_output_text(path, "-o", text)
    _say(context, job, path, bundle)


def _source(
    context: AppContext,
    words: list[str],
    request: RunRequest,
    capacity: SliceRequest,
    cluster: ClusterRequest,
    namespace: str,
    name: str | None,
) -> tuple[ExportSource, ExportTarget]:
    """The run that is meant, and where it goes. Raises UsageError."""
    from tpuctl.cli.request_options import program_of
    from tpuctl.kube.source import is_run, source_of_run, source_of_script
    from tpuctl.kube.target import resolve_target
    from tpuctl.provenance.manifest import typed
    from tpuctl.runs.containers import check_container
    from tpuctl.runs.request import choose_run_id
    from tpuctl.runs.rules import check_run

    before, behind = context.shared.split(words)
    if before and not behind and request.module is None and is_run(before[0]):
        if request != RunRequest(container=request.container) or len(before) > 1:
            what = "it has its command and its options already; only --container may say another image"
            raise UsageError(f"{before[0]} is a run: {what}", hint=f"tpuctl export {before[0]}")
        check_container(request)
        source = source_of_run(context, before[0], request.container)
        manifest = typed(source.manifest)
        own = name or manifest.run.id
        return source, resolve_target(context, capacity, cluster, own, namespace, manifest.slice)
    if request.on is not None:
        raise UsageError.of(
            "on", "--on names a slice, and node pools have none", "--up TYPE, such as --up v6e-16"
        )
    request = replace(request, **program_of(before, behind, request.module))
    check_run(request)
    run_id = choose_run_id(context, name)
    target = resolve_target(context, capacity, cluster, run_id, namespace)
    return source_of_script(context, context.config, request, target, run_id, Path.cwd()), target


def _say(context: AppContext, job: JobSetSpec, path: Path, bundle: Path) -> None:
    from tpuctl.kube.render import secret_command

    if context.console.json_mode:
        context.console.data(
            {
                "run": job.run,
                "name": job.name,
                "namespace": job.namespace,
                "file": str(path),
                "bundle": str(bundle),
                "code": job.code.uri,
                "slices": job.slices,
                "hosts": job.shape.hosts * job.slices,
                "chips": job.shape.chips * job.slices,
            }
        )
        return
    pods = counted(job.shape.hosts * job.slices, "pod")
    context.console.sentence(f"wrote {path}: run {job.run} as a JobSet of {pods}; its bundle is {bundle}")
    if job.secrets:
        context.console.say(f"once: {secret_command(job)}")
    context.console.say(f"kubectl apply -f {quote(str(path))}")
