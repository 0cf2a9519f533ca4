"""From what was asked to a frozen run record: checked before anything is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpuctl.core.records import CodeState, EnvironmentRef, Policy, RunRecord, RunState
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.workflows.services import Services


@dataclass(frozen=True)
class FrozenCode:
    """The code of a run as content: `archive` is the bundle, `diff` the uncommitted changes."""

    archive: bytes
    diff: bytes
    commit: str | None
    branch: str | None
    dirty: bool
    remote_url: str | None


@dataclass(frozen=True)
class RunRequest:
    """What a user asked to run. `workers` None means all."""

    slice_name: str
    argv: tuple[str, ...]
    cwd: str
    policy: Policy
    variables: Mapping[str, str]
    secrets: Mapping[str, str]
    workers: tuple[int, ...] | None = None
    environment_name: str | None = None
    environment: bytes | None = None
    checkpoint_dir: str | None = None
    no_checkpoint: bool = False
    owns_slice: bool = False
    keep_slice: bool = False


def check_request(services: Services, request: RunRequest) -> None:
    """Everything that can be refused without changing anything. Raises UsageError or NotFoundError."""
    policy = request.policy
    restartable = max(policy.max_failures, policy.max_preemptions, policy.max_restarts) > 0
    if restartable and not request.checkpoint_dir and not request.no_checkpoint:
        raise UsageError(
            "a run that may be restarted needs a place for its checkpoints",
            hint="--checkpoint-dir gs://BUCKET/PREFIX, or --no-checkpoint to start from scratch each time",
        )
    for reference in request.secrets.values():
        services.secrets.resolve(reference)
    if request.checkpoint_dir:
        bucket = request.checkpoint_dir.removeprefix("gs://").split("/", 1)[0]
        if not request.checkpoint_dir.startswith("gs://") or not bucket:
            raise UsageError(
                f"checkpoint directory {request.checkpoint_dir!r} is not in a bucket",
                hint="--checkpoint-dir gs://BUCKET/PREFIX",
            )
        if not services.objects.bucket_exists(bucket):
            raise NotFoundError(
                f"bucket gs://{bucket} does not exist or cannot be read",
                hint=f"gcloud storage buckets create gs://{bucket}",
            )


def freeze_run(services: Services, run_id: str, request: RunRequest, code: FrozenCode) -> RunRecord:
    """Stores code, diff and environment by digest and returns the record that refers to them."""
    store = services.store
    environment = None
    if request.environment is not None and request.environment_name is not None:
        environment = EnvironmentRef(request.environment_name, store.put_blob(request.environment))
    return RunRecord(
        id=run_id,
        slice_name=request.slice_name,
        argv=request.argv,
        code=CodeState(
            bundle=store.put_blob(code.archive),
            commit=code.commit,
            branch=code.branch,
            dirty=code.dirty,
            remote_url=code.remote_url,
            diff=store.put_blob(code.diff) if code.diff else None,
        ),
        owner=services.user,
        created_at=services.clock.now(),
        state=RunState.WAITING,
        policy=request.policy,
        cwd=request.cwd,
        variables=dict(request.variables),
        secrets=dict(request.secrets),
        environment=environment,
        workers=request.workers or (),
        checkpoint_dir=request.checkpoint_dir,
        owns_slice=request.owns_slice,
        keep_slice=request.keep_slice,
    )
