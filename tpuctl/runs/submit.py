"""From what was asked to a frozen run record: checked before anything is created."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tpuctl.config.settings import Config
from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.lib.text import parse_workers
from tpuctl.model.records import CodeState, EnvironmentRef, RunRecord, RunState
from tpuctl.model.regions import is_near
from tpuctl.runs.request import RunRequest as RunRequest
from tpuctl.runs.request import fingerprint
from tpuctl.slices.options import RunWish, check_run_wish
from tpuctl.transfer.bundle import store_content
from tpuctl.transfer.tree import Content


class FrozenCode(Struct, frozen=True):
    """The code of a run as content: `bundle` is the tree, `diff` the uncommitted changes."""

    bundle: Content
    diff: bytes
    commit: str | None
    branch: str | None
    dirty: bool
    remote_url: str | None


def build_request(
    wish: RunWish, config: Config, slice_name: str, hosts: int | None, cwd: str, environment: bytes | None
) -> RunRequest:
    """The request that a wish amounts to, on a slice of `hosts` hosts (None: not known yet).

    `cwd` is the run's directory in its code. Raises UsageError.
    """
    bucket = None if wish.no_checkpoint else config.checkpoint_bucket
    workers = None
    if wish.worker is not None and hosts is not None:
        try:
            workers = parse_workers(wish.worker, hosts)
        except ValueError as error:
            hint = f"tpuctl status {slice_name}"
            raise UsageError(f"--worker: {error}", hint=hint, details={"key": "worker"}) from error
    return RunRequest(
        slice_name=slice_name,
        argv=check_run_wish(wish),
        cwd=cwd,
        policy=wish.policy.policy(),
        variables=wish.var,
        secrets=wish.secret,
        workers=workers,
        environment_name=wish.env or config.env,
        environment=environment,
        checkpoint_dir=wish.checkpoint_dir or bucket,
        checkpoint_per_run=wish.checkpoint_dir is None and bucket is not None,
        no_checkpoint=wish.no_checkpoint,
        any_region=wish.any_region,
    )


def check_alone(request: RunRequest) -> None:
    """What can be refused of a request by itself. Raises UsageError."""
    if request.policy.restarts and not request.checkpoint_dir and not request.no_checkpoint:
        raise UsageError(
            "a run that may be restarted needs a place for its checkpoints",
            hint="--checkpoint-dir gs://BUCKET/PREFIX, or --no-checkpoint to start from scratch each time",
            details={"key": "checkpoint_dir"},
        )
    if request.checkpoint_dir and not _bucket(request.checkpoint_dir):
        raise UsageError(
            f"checkpoint directory {request.checkpoint_dir!r} is not in a bucket",
            hint="--checkpoint-dir gs://BUCKET/PREFIX",
            details={"key": "checkpoint_dir"},
        )


def _bucket(uri: str) -> str:
    """The bucket of a `gs://` URI; empty if it is none."""
    return uri.removeprefix("gs://").split("/", 1)[0] if uri.startswith("gs://") else ""


def check_request(services: Services, request: RunRequest, zones: Sequence[str] = ()) -> None:
    """Everything that can be refused without changing anything. Raises UsageError or NotFoundError.

    `zones`: where the run's slice may be.
    """
    check_alone(request)
    for reference in request.secrets.values():
        services.secrets.resolve(reference)
    if request.checkpoint_dir:
        bucket = _bucket(request.checkpoint_dir)
        if not services.objects.bucket_exists(bucket):
            raise NotFoundError(
                f"bucket gs://{bucket} does not exist or cannot be read",
                hint=f"gcloud storage buckets create gs://{bucket}",
            )
        if not request.any_region:
            _check_near(services, request.slice_name, bucket, zones)


def _check_near(services: Services, name: str, bucket: str, zones: Sequence[str]) -> None:
    """A hunt does not lead away from the checkpoints: that would be slow, and the traffic is billed.

    Raises UsageError when some of several `zones` are away; a slice in one zone gets a warning.
    """
    try:
        place = services.project_api.bucket_place(bucket)
    except TpuctlError:
        return  # where it is may be hidden from this user; nothing is known then
    away = [zone for zone in zones if not is_near(place, zone)]
    if not away:
        return
    text = f"bucket gs://{bucket} is in {place.location}, away from {', '.join(away)}"
    if len(zones) > 1:
        near = [zone for zone in zones if zone not in away]
        keep = f"{' '.join(f'--zone {zone}' for zone in near)}, or " if near else ""
        raise UsageError(text, hint=f"{keep}--any-region to go there all the same", details={"key": "on"})
    services.emit(Warn(name, f"{text}: checkpoints are slow, and their traffic is billed"))


def freeze_run(services: Services, run_id: str, request: RunRequest, code: FrozenCode) -> RunRecord:
    """Stores code, diff and environment by digest and returns the record that refers to them."""
    store = services.store
    bundle = store_content(store, code.bundle)
    environment = None
    if request.environment is not None and request.environment_name is not None:
        environment = EnvironmentRef(request.environment_name, store.put_blob(request.environment))
    return RunRecord(
        id=run_id,
        slice_name=request.slice_name,
        argv=request.argv,
        code=CodeState(
            bundle=bundle,
            commit=code.commit,
            branch=code.branch,
            dirty=code.dirty,
            remote_url=code.remote_url,
            diff=store.put_blob(code.diff) if code.diff else None,
        ),
        owner=services.user,
        created_at=services.store.now(),
        state=RunState.WAITING,
        policy=request.policy,
        fingerprint=fingerprint(request, bundle),
        cwd=request.cwd,
        variables=dict(request.variables),
        secrets=dict(request.secrets),
        environment=environment,
        workers=request.workers or (),
        checkpoint_dir=request.checkpoint_place(run_id),
        owns_slice=request.owns_slice,
        keep_slice=request.keep_slice,
    )
