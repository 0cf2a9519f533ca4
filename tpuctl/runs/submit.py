"""From a request to the frozen record of a run: checked before anything is created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.config.settings import DEFAULT_ORIGIN, Config
from tpuctl.config.settings import show as settings_of
from tpuctl.engine.events import Note, Warn
from tpuctl.engine.services import Services
from tpuctl.envs.load import check_environment, load_environment
from tpuctl.envs.pinned import PinnedEnvironment, parse_frozen
from tpuctl.envs.wheelhouse import store_environment
from tpuctl.errors import ConflictError, DeniedError, NotFoundError, TpuctlError, UsageError
from tpuctl.lib.text import parse_workers
from tpuctl.lib.time import parse_duration
from tpuctl.model.attempts import CodeState
from tpuctl.model.receipt import Receipt
from tpuctl.model.records import RunRecord, RunState, SliceRecord, SliceState
from tpuctl.model.requests import LaunchRequest
from tpuctl.model.run_identity import fingerprint
from tpuctl.model.run_spec import RunRequest, RunSpec
from tpuctl.model.shipped_files import load_accelerators, load_secret_patterns
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.provenance.manifest import Row, SettingSection
from tpuctl.runs.chips import check_chips
from tpuctl.runs.code_check import check_code
from tpuctl.runs.data import check_data, find_data
from tpuctl.runs.metrics import stepless
from tpuctl.runs.preset import with_preset
from tpuctl.runs.request import request_run
from tpuctl.runs.rules import check_run, check_spmd, topology_notes
from tpuctl.slices.bring_up import after_refused_login, request_wanted, resolve_wanted
from tpuctl.slices.choose import resolve_slice
from tpuctl.slices.resolve import WantedSlice, find_accelerator, name_of, split_types
from tpuctl.slices.things import check_home
from tpuctl.state.repository import find_slice, get_run, get_slice
from tpuctl.transfer.bundle import CodeBundle, freeze, store_content
from tpuctl.transfer.own_output import describe_own_output


class Submission(Struct, frozen=True):
    """A run that was checked, with its code, and the slice to be brought up for it, if there is to be one."""

    spec: RunSpec
    code: CodeBundle
    environment: PinnedEnvironment | None = None
    wanted: WantedSlice | None = None
    configuration: Mapping[str, SettingSection] = field(default_factory=dict)
    """The settings under which it was asked for, for its manifest."""
    rerun_of: str = ""
    """The run whose manifest it repeats."""
    checks: tuple[Row, ...] = ()
    """What was checked before, for its manifest."""


NOT_RECORDED = frozenset({"ping_url", "proxy_command", "token_file"})
"""Settings in which secrets may stand, or where they are."""


def recorded_settings(config: Config) -> dict[str, SettingSection]:
    """The settings that somebody set, each with where it came from, for manifests."""
    return {
        name: SettingSection(_redacted(value), origin)
        for name, value, origin in settings_of(config)
        if origin != DEFAULT_ORIGIN and name not in NOT_RECORDED
    }


def _redacted(value: Any) -> Any:
    """A setting without what looks like a secret; a list is one of words."""
    redact = load_secret_patterns().redact
    if isinstance(value, tuple):
        return [redact(str(each)) for each in value]
    return redact(value) if isinstance(value, str) else value


def freeze_code(
    config: Config, request: RunRequest, directory: Path, *, without: Path | None = None
) -> CodeBundle:
    """The code of a run in `directory`; file `without` is no part of it. Raises UsageError."""
    return freeze(directory, request.script, limit_bytes=config.bundle_limit_mib << 20, without=without)


def frozen_environment(
    services: Services,
    config: Config,
    request: RunRequest,
    directory: Path,
    target: SliceRecord | WantedSlice | None,
) -> PinnedEnvironment | None:
    """The environment of a run: what it names, looked for from `directory`, else what its slice has, else that
    of the settings; None where none of these says any, and for a run in a container.

    Raises NotFoundError or BadManifestError.
    """
    if request.container is not None:
        return None
    of_slice = target.spec.env if target is not None else None
    if request.env is None and of_slice is not None:
        held = target.environment if isinstance(target, WantedSlice) else None
        return held or parse_frozen(services.store.get_blob(of_slice.spec))
    name = request.env or config.env
    if not name:
        return None
    return load_environment(config, name, directory)


def prepare_run(
    services: Services,
    config: Config,
    request: RunRequest,
    code: CodeBundle,
    directory: Path,
    target: SliceRecord | WantedSlice,
    *,
    keep_slice: bool = False,
) -> Submission:
    """Checks a run on the slice `target`, which goes with the run if it is only wanted. Changes nothing.

    Raises UsageError or NotFoundError.
    """
    if code.own_output:
        services.emit(Note(target.name, describe_own_output(code.own_output)))
    wanted, zones = (target, target.zones) if isinstance(target, WantedSlice) else (None, target.candidates)
    environment = frozen_environment(services, config, request, directory, target)
    check_environment(services, environment, target.spec.accelerator_type)
    request = with_preset(request, environment)
    check_launcher(request, environment)
    check_code(services, request, directory, environment)
    data = find_data(services, config, request)
    spec = resolve_run(request, config, target.name, target.spec.hosts, code.directory, environment, data)
    spec = replace(spec, owns_slice=wanted is not None, keep_slice=keep_slice)
    check_chips(request, request.var, target.spec)
    check_home(target.spec, spec.variables)
    check_request(services, spec, zones, environment)
    check_data(services, spec.data, None if isinstance(target, WantedSlice) else target)
    return Submission(spec, code, environment, wanted, recorded_settings(config))


def prepare_launch(
    services: Services,
    config: Config,
    request: RunRequest,
    launch: LaunchRequest,
    capacity: SliceRequest,
    directory: Path,
) -> Submission:
    """A run with the code in `directory`, on the slice that it names or on one of its own, of this `capacity`.
    Changes nothing. Raises as `prepare_run`, `resolve_slice` and `resolve_wanted` do."""
    code = freeze_code(config, request, directory)
    target: SliceRecord | WantedSlice
    if launch.up is None:
        target = resolve_slice(services, request.on, flag="--on")
    else:
        own = capacity.of(launch.up)
        target = resolve_wanted(services, config, own, own_slice_name(services, own, request.on), directory)
    return prepare_run(services, config, request, code, directory, target, keep_slice=launch.keep)


def own_slice_name(services: Services, request: SliceRequest, name: str | None) -> str:
    """The name of a slice that goes with its run; the same for the same command, so that a repeat finds it.

    Raises ConflictError for a slice that somebody brought up for itself: it must not go with a run.
    """
    catalog, kinds = load_accelerators(), split_types(request.accelerator or "")
    found = [find_accelerator(catalog, kind, request.topology).name for kind in kinds]
    name = name or name_of(found, request.slices or 1)
    stored = find_slice(services, name)
    if stored is not None and stored.record.run_id is None and stored.record.state is not SliceState.GONE:
        raise ConflictError(
            f"slice {name} is there already and does not belong to a run",
            hint=f"use it with --on {name} and without --up, or name another with --on",
        )
    return name


def submit_run(services: Services, submission: Submission, run_id: str, *, named: bool) -> RunRecord:
    """Writes the run down, after the slice that goes with it, and that after all that may be wrong with the
    run's environment. `named`: a person chose the id."""
    record = freeze_run(services, run_id, submission.spec, submission.code, submission.environment)
    record = replace(record, rerun_of=submission.rerun_of)
    if submission.wanted is not None:
        request_wanted(services, submission.wanted, run_id=run_id)
    return request_run(
        services, record, named=named, configuration=submission.configuration, checks=submission.checks
    )


def refused_run(services: Services, record: RunRecord, error: DeniedError, *, since: float) -> TpuctlError:
    """The refusal, with what became of the run: a slice that was requested for it since then, and of which
    nothing was sent, is not wanted any more, nor is its run; otherwise the run stays submitted."""
    from tpuctl.runs.reconcile import end_with_slice  # which brings all steps of runs

    refusal: TpuctlError = error
    if record.spec.owns_slice:
        made = get_slice(services, record.slice_name).record
        refusal = after_refused_login(services, made, error, first=made.created_at >= since)
        end_with_slice(services, record.id)
    if get_run(services, record.id).record.state.final:
        return refusal
    stays = (
        f"run {record.id} stays submitted: `tpuctl attach {record.id}` goes on with it, "
        f"`tpuctl stop {record.id}` ends it"
    )
    hint = f"{refusal.hint}; {stays}" if refusal.hint else stays
    return type(refusal)(refusal.message, hint=hint, details=refusal.details)


def resolve_run(
    request: RunRequest,
    config: Config,
    slice_name: str,
    hosts: int | None,
    cwd: str,
    environment: PinnedEnvironment | None,
    data: tuple[Receipt, ...] = (),
) -> RunSpec:
    """What a request comes to on a slice of `hosts` hosts (None: not known yet).

    `cwd` is the run's directory in its code, `data` what it reads. Raises UsageError.
    """
    request = with_preset(request, environment)
    bucket = None if request.no_checkpoint else config.checkpoint_bucket
    workers: tuple[int, ...] = ()
    if request.worker is not None and hosts is not None:
        try:
            workers = parse_workers(request.worker, hosts)
        except ValueError as error:
            raise UsageError.of("worker", f"--worker: {error}", f"tpuctl status {slice_name}") from error
    return RunSpec(
        slice_name=slice_name,
        argv=check_run(request),
        cwd=cwd,
        policy=request.policy.policy(),
        variables=request.var,
        secrets=request.secret,
        workers=workers,
        environment=environment.ref if environment is not None else None,
        allow_drift=request.allow_drift,
        stall_s=parse_duration(request.stall, "--stall"),
        first_step_limit_s=parse_duration(request.first_step_limit, "--first-step-limit"),
        checkpoint_per_run=request.checkpoint_dir is None and bucket is not None,
        group=request.group or "",
        tags=tuple(sorted(request.tag)),
        data=data,
        synthetic=request.synthetic,
        **request.kept() | {"checkpoint_dir": request.checkpoint_dir or bucket},
    )


def check_launcher(request: RunRequest, environment: PinnedEnvironment | None) -> None:
    """Raises UsageError where the environment of a run does not go with the processes that it is to have."""
    if environment is None:
        return
    check_spmd(request.per, {**environment.variables(), **request.var})
    names = {package.name for package in environment.packages.packages}
    if request.per == "torchrun" and "torch" not in names and environment.spec.unmanaged is None:
        name = environment.ref.name
        raise UsageError.of(
            "per",
            f"--per torchrun needs torch, and the environment {name} has none",
            f"add torch==VERSION to the packages of {name}, then tpuctl env lock {name}; or --per chip",
        )


def check_alone(spec: RunSpec) -> None:
    """What can be refused of a run by itself. Raises UsageError."""
    if spec.policy.restarts and not spec.checkpoint_dir and not spec.no_checkpoint:
        raise UsageError(
            "a run that may be restarted needs a place for its checkpoints",
            hint="--checkpoint-dir gs://BUCKET/PREFIX, or --no-checkpoint to start from scratch each time",
            details={"key": "checkpoint_dir"},
        )
    if spec.checkpoint_dir and not _bucket(spec.checkpoint_dir):
        raise UsageError(
            f"checkpoint directory {spec.checkpoint_dir!r} is not in a bucket",
            hint="--checkpoint-dir gs://BUCKET/PREFIX",
            details={"key": "checkpoint_dir"},
        )


def _bucket(uri: str) -> str:
    """The bucket of a `gs://` URI; empty if it is none."""
    return uri.removeprefix("gs://").split("/", 1)[0] if uri.startswith("gs://") else ""


def check_request(
    services: Services,
    spec: RunSpec,
    zones: Sequence[str] = (),
    environment: PinnedEnvironment | None = None,
) -> None:
    """Everything that can be refused without changing anything. Raises UsageError or NotFoundError.

    `zones`: where the run's slice may be.
    """
    check_alone(spec)
    notes = topology_notes(spec.per, spec.variables, environment.variables() if environment else {})
    for note in filter(None, (*notes, stepless(spec.progress or ""))):
        services.emit(Warn(spec.slice_name, note))
    for reference in spec.secrets.values():
        services.secrets.resolve(reference)
    if spec.checkpoint_dir:
        bucket = _bucket(spec.checkpoint_dir)
        if not services.objects.bucket_exists(bucket):
            raise NotFoundError(
                f"bucket gs://{bucket} does not exist or cannot be read",
                hint=f"gcloud storage buckets create gs://{bucket}",
            )
        if not spec.any_region:
            _check_near(services, spec.slice_name, bucket, zones)


def _check_near(services: Services, name: str, bucket: str, zones: Sequence[str]) -> None:
    """A hunt does not lead away from the checkpoints: that would be slow, and the traffic is billed.

    Raises UsageError when some of several `zones` are away; a slice in one zone gets a warning.
    """
    try:
        place = services.project_api.bucket_place(bucket)
    except TpuctlError:
        return  # where it is may be hidden from this user; nothing is known then
    away = [zone for zone in zones if not place.is_near(zone)]
    if not away:
        return
    text = f"bucket gs://{bucket} is in {place.location}, away from {', '.join(away)}"
    if len(zones) > 1:
        near = [zone for zone in zones if zone not in away]
        keep = f"{' '.join(f'--zone {zone}' for zone in near)}, or " if near else ""
        raise UsageError(text, hint=f"{keep}--any-region to go there all the same", details={"key": "on"})
    services.emit(Warn(name, f"{text}: checkpoints are slow, and their traffic is billed"))


def freeze_run(
    services: Services,
    run_id: str,
    spec: RunSpec,
    code: CodeBundle,
    environment: PinnedEnvironment | None = None,
) -> RunRecord:
    """Stores code, diff and environment by digest and returns the record that refers to them. What hosts need
    for the environment is brought to where they get it."""
    store = services.store
    store_content(store, code.content)
    if environment is not None:
        store_environment(services, environment)
    if code.diff:
        store.put_blob(code.diff)
    return new_record(services, run_id, spec, code)


def new_record(services: Services, run_id: str, spec: RunSpec, code: CodeBundle) -> RunRecord:
    """The record of a run that nobody has written down yet."""
    return RunRecord(
        id=run_id,
        spec=spec,
        code=CodeState(
            bundle=code.sha256,
            commit=code.commit,
            branch=code.branch,
            dirty=code.dirty,
            remote_url=code.remote_url,
            diff=code.diff_sha256,
        ),
        owner=services.user,
        created_at=services.store.now(),
        state=RunState.WAITING,
        fingerprint=fingerprint(spec, code.sha256),
    )
