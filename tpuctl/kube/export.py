"""A run as the Job of a cluster, from its manifest: what is the same there, and what cannot be. Pure.

Whoever has the manifest of a run can export it: one that ran on a slice, or one that was only asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import Struct, field

from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.errors import UsageError
from tpuctl.kube.jobset import (
    DIGEST_ANNOTATION,
    MANIFEST_ANNOTATION,
    BucketVolume,
    ClusterCapacity,
    DiskVolume,
    FailurePolicy,
    JobSetSpec,
    PodCode,
    SecretKey,
)
from tpuctl.kube.rules import check_job
from tpuctl.kube.shape import Shape
from tpuctl.model.refs import DiskRef, MountRef
from tpuctl.model.requests import ClusterRequest
from tpuctl.provenance.manifest import CommandSection, RunManifest
from tpuctl.provenance.rerun import image_used
from tpuctl.runs.containers import ALWAYS
from tpuctl.runs.process_env import HOST_DEFAULTS, render_wandb

FATAL_EXITS = (2, 64, 78, 126, 127)
"""Wrong arguments (Python's argparse; EX_USAGE and EX_CONFIG of sysexits.h), and what shells say of a command
that is not executable or not there: the same again ends the same."""
JAX_IMAGE = "us-docker.pkg.dev/cloud-tpu-images/jax-ai-image/tpu:latest"
_OF_RUNS = ("per", "chips", "chip", "check", "debug", "privileged", "on_stall", "on_nan")
"""Options of runs that need tpuctl's agent on the hosts."""


class ExportTarget(Struct, frozen=True, kw_only=True):
    """Where a run goes: what the manifest does not say."""

    name: str
    namespace: str
    shape: Shape
    slices: int = 1
    provisioning: ClusterCapacity = ClusterCapacity()
    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[MountRef, ...] = ()
    disks: tuple[DiskRef, ...] = ()
    volumes: tuple[DiskVolume, ...] = ()
    """Those of `disks`."""
    buckets: tuple[BucketVolume, ...] = ()
    """Those of `mounts`."""


def job_of(
    manifest: RunManifest,
    request: ClusterRequest,
    target: ExportTarget,
    code: PodCode,
    loader: str,
    environment: PinnedEnvironment | None = None,
    image: str | None = None,
) -> JobSetSpec:
    """The run of `manifest` as a Job; `image` is another than it had. Raises UsageError for what cannot be
    there."""
    command = manifest.command
    check_command(command)
    account = request.kube_account or ""
    job = JobSetSpec(
        name=target.name,
        namespace=target.namespace,
        run=manifest.run.id,
        shape=target.shape,
        slices=target.slices,
        image=image or _image(manifest, environment),
        pull_always=command.pull == ALWAYS,
        argv=command.argv,
        code=code,
        loader=loader,
        directory=command.cwd,
        provisioning=target.provisioning,
        queue=request.local_queue or "",
        service_account=account,
        variables=_variables(manifest, target.name, environment),
        secrets={name: SecretKey(request.kube_secret or target.name, name) for name in sorted(command.secrets)},
        buckets=target.buckets,
        disks=target.volumes,
        policy=FailurePolicy(command.max_failures, parse_exits(request.fatal_exit)),
        grace_s=round(command.grace_s),
        host_network=request.host_network,
        labels=target.labels,
        annotations={
            MANIFEST_ANNOTATION: code.uri,
            **({DIGEST_ANNOTATION: manifest.chain[-1]} if manifest.chain else {}),
        },
    )
    check_job(job)
    return job


def check_command(command: CommandSection) -> None:
    """Raises UsageError for an option that the program would miss on a cluster without a word."""
    plain = CommandSection(argv=())
    for name in _OF_RUNS:
        if getattr(command, name) != getattr(plain, name):
            flag = f"--{name.replace('_', '-')}"
            why = f"{flag} needs tpuctl's agent on the hosts, and pods of a cluster have none"
            raise UsageError.of(name, why, f"leave out {flag}, or run it on a slice")
    if command.workers:
        why = "--worker leaves out workers, and a JobSet has all of a slice or none"
        raise UsageError.of("worker", why, "leave out --worker, or run it on a slice")


def parse_exits(words: Sequence[str]) -> tuple[int, ...]:
    """Exit statuses, by default `FATAL_EXITS`. Raises UsageError."""
    wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 4)), None)
    if wrong is not None:
        raise UsageError.of("fatal_exit", f"--fatal-exit {wrong!r} is no exit status", "--fatal-exit 64")
    return tuple(sorted({int(word) for word in words})) if words else FATAL_EXITS


def _image(manifest: RunManifest, environment: PinnedEnvironment | None) -> str:
    named = image_used(manifest)
    if named is not None:
        return named
    if environment is None:
        why = "pods need an image, and the run has no pinned environment that one could follow from"
        raise UsageError.of("container", why, f"--container {JAX_IMAGE}, or --env NAME")
    return f"docker.io/library/python:{environment.spec.python[0]}-slim"


def _variables(manifest: RunManifest, name: str, environment: PinnedEnvironment | None) -> Mapping[str, str]:
    """As on a slice: those of the program win. What differs by worker, `templates/pod.py` adds."""
    run, place = manifest.run, manifest.command.checkpoint_dir
    return {
        **HOST_DEFAULTS,
        **(render_wandb(run.wandb_id, run.group, run.tags) if run.wandb_id else {}),
        **(environment.variables() if environment is not None else {}),
        "TPUCTL_RUN_ID": run.id,
        "TPUCTL_SLICE": name,
        "PYTHONUNBUFFERED": "1",
        **({"TPUCTL_CHECKPOINT_DIR": place} if place else {}),
        **manifest.variables.requested,
    }


def on_cluster(environment: PinnedEnvironment, prefix: str) -> PinnedEnvironment:
    """The environment with its wheels in a bucket, where pods get them. Raises UsageError for one that is a
    folder of hosts."""
    if environment.spec.unmanaged is not None:
        name = environment.spec.name
        why = f"the environment {name} is a folder of hosts, which pods do not have"
        raise UsageError.of("env", why, "--container with an image that has these packages, and no --env")
    return environment if environment.wheelhouse else replace(environment, wheelhouse=f"{prefix}/wheels")
