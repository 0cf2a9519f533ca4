"""A run is done again from its manifest: looks what there is, and makes an ordinary submission of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.config.settings import Config
from tpuctl.datasets.receipt import find_receipt
from tpuctl.disks.follow import plan_clone_in, type_in
from tpuctl.disks.make import find_record
from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.envs.load import check_use
from tpuctl.envs.pinned import PinnedEnvironment, parse_frozen
from tpuctl.errors import BadManifestError, NotFoundError, TpuctlError, UsageError
from tpuctl.lib.codec import from_data, to_data
from tpuctl.lib.shell import quote
from tpuctl.model.disks import DiskMode, DiskRecord
from tpuctl.model.hosts import Tier
from tpuctl.model.receipt import Receipt
from tpuctl.model.records import RunRecord, SliceRecord, SliceState
from tpuctl.model.refs import EnvironmentRef, MountRef
from tpuctl.model.requests import RerunRequest
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.model.shipped_files import load_accelerators, load_mount_table
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.mounts.spec import typed_mount
from tpuctl.provenance.bundle import code_problem
from tpuctl.provenance.manifest import Row, RunManifest, typed
from tpuctl.provenance.rerun import (
    Available,
    Bucket,
    DiskThere,
    RerunChange,
    image_used,
    is_possible,
    plan_rerun,
    used,
)
from tpuctl.runs.chips import check_chips
from tpuctl.runs.data import data_problems
from tpuctl.runs.submit import Submission, check_request, own_slice_name, recorded_settings
from tpuctl.slices.bring_up import resolve_wanted
from tpuctl.slices.resolve import WantedSlice
from tpuctl.slices.things import check_home
from tpuctl.state.repository import find_slice
from tpuctl.transfer.bundle import CodeBundle
from tpuctl.transfer.tree import Content, list_blobs, parse_tree

Target = SliceRecord | WantedSlice
SHARDS_LISTED = 10_000
"""Objects among which files of ranks are looked for."""


class Rerun(Struct, frozen=True):
    """The plan, and what to submit; None where something cannot be had."""

    plan: tuple[RerunChange, ...]
    submission: Submission | None


def prepare_rerun(
    services: Services,
    config: Config,
    data: Row,
    record: RunRecord | None,
    request: RerunRequest,
    target: Target,
    run_id: str,
) -> Rerun:
    """Looks at everything and changes nothing. `record` is that of the run that is done again, where this store
    has it, `run_id` of the new one. Raises UsageError for what is wrong in itself."""
    manifest = typed(data)
    secrets = {**(dict(record.spec.secrets) if record is not None else {}), **request.secret}
    newer = {each.uri: each for each in (find_receipt(services, word) for word in request.data)}
    data_of_run = _receipts(manifest, newer)
    spec = replace(
        _spec(manifest, target, request.checkpoint_dir or _own_directory(manifest, run_id), secrets),
        data=data_of_run,
        synthetic=manifest.synthetic,
    )
    environment = _environment(services, manifest)
    there = Available(
        slice_name=target.name,
        spec=target.spec,
        new_slice=isinstance(target, WantedSlice),
        code_problem=code_problem(services.store, data),
        environment=manifest.environment.name if manifest.environment is not None else "",
        environment_problem=environment if isinstance(environment, str) else _misfit(environment, target),
        secrets=frozenset(secrets),
        bucket=_bucket(services, spec, request, target),
        disks=find_disks(services, manifest, target),
        data=data_problems(services, data_of_run, target if isinstance(target, SliceRecord) else None),
        receipts={uri: each.digest.value for uri, each in newer.items()},
    )
    plan = tuple(plan_rerun(manifest, there))
    if not is_possible(plan):
        return Rerun(plan, None)
    frozen = environment if isinstance(environment, PinnedEnvironment) else None
    check_chips(spec, spec.variables, target.spec)
    check_home(target.spec, spec.variables)
    wanted = target if isinstance(target, WantedSlice) else None
    check_request(
        services, spec, target.zones if isinstance(target, WantedSlice) else target.candidates, frozen
    )
    settings = recorded_settings(config)
    code = _code(services, manifest)
    submission = Submission(spec, code, frozen, wanted, settings, rerun_of=manifest.run.id)
    return Rerun(plan, submission)


def resolve_target(
    services: Services, config: Config, data: Row, request: RerunRequest, directory: Path
) -> Target:
    """The slice for the run: one that is there, or a new one of a type, by default of that of the manifest."""
    manifest = typed(data)
    was = manifest.slice
    name = request.on or was.name
    stored = find_slice(services, name)
    if stored is not None and stored.record.state is not SliceState.GONE:
        if request.zone or request.pay:
            said = f"slice {name} is there: --zone and --pay are for a new one"
            raise UsageError(said, hint="leave them out")
        return stored.record
    kind = request.on or was.accelerator_type
    if kind is None or load_accelerators().find(kind) is None:
        said = f"{name} is neither a slice that is there nor a type of accelerator"
        raise UsageError.of("on", said, "tpuctl ls; tpuctl types")
    plain = SliceRequest(
        accelerator=kind,
        zone=request.zone or ((was.zone,) if was.zone and kind == was.accelerator_type else ()),
        tier=Tier(was.tier) if was.tier else None,
        pay=request.pay,
        slices=was.slices,
    )
    own = own_slice_name(services, plain, None if request.on else was.name)
    return resolve_like(services, config, manifest, plain, own, directory)


def resolve_like(
    services: Services,
    config: Config,
    manifest: RunManifest,
    request: SliceRequest,
    name: str | None,
    directory: Path,
) -> WantedSlice:
    """A new slice as `request` says, with the disks and mounts of the run. Where it cannot have one of its
    disks it keeps the mounts, and the other way round, and the plan says so. Raises as `resolve_wanted`."""
    was = manifest.slice
    try:
        mounts = tuple(typed_mount(from_data(MountRef, row)) for row in was.mounts)
    except ValueError as error:
        raise BadManifestError(f"the mounts of run {manifest.run.id} are damaged: {error}") from error
    short = {str(mode): mode.short for mode in DiskMode}
    disks = tuple(f"{row['name']}:{short.get(row['mode'], row['mode'])}:{row['path']}" for row in was.disks)
    had, refused = {"disk": disks, "mount": mounts}, ""
    kept: tuple[str, ...]
    for kept in (("disk", "mount"), ("mount",), ("disk",)):
        if all(had[part] for part in kept):
            full = replace(request, **{part: had[part] for part in kept})
            try:
                found = resolve_wanted(services, config, full, name, directory)
                break
            except TpuctlError as error:
                refused = refused or error.message
    else:
        kept, found = (), resolve_wanted(services, config, request, name, directory)
    if refused:
        lost = " and ".join(f"{part}s" for part, words in had.items() if words and part not in kept)
        services.emit(Warn("", f"without its {lost}: {refused}"))
    return found


def _receipts(manifest: RunManifest, newer: Mapping[str, Receipt]) -> tuple[Receipt, ...]:
    """Those of the manifest, where there is no newer one. Raises UsageError for data that the run did not read,
    BadManifestError for rows that are no receipts."""
    known = [str(row.get("uri")) for row in manifest.data]
    for uri in newer:
        if uri not in known:
            said = f"run {manifest.run.id} did not read {uri}"
            raise UsageError.of("data", said, f"--data {known[0]}" if known else "leave --data out")
    try:
        rows = [from_data(Receipt, row) for row in manifest.data]
    except ValueError as error:
        raise BadManifestError(f"the data of run {manifest.run.id} is damaged: {error}") from error
    return tuple(newer.get(each.uri, each) for each in rows)


def refuse(plan: tuple[RerunChange, ...]) -> UsageError:
    """The error for a plan in which something is missing: the first thing, and how many more."""
    missing = [each for each in plan if not is_possible([each])]
    first, more = missing[0], f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    said = f"it cannot be done again here: {first.what}: {first.detail}{more}"
    return UsageError(said, hint=first.hint or None, details={"missing": [each.what for each in missing]})


def _spec(manifest: RunManifest, target: Target, place: str | None, secrets: Mapping[str, str]) -> RunSpec:
    """`place`: where it has its checkpoints."""
    command, environment = manifest.command, manifest.environment
    spec = RunSpec(
        slice_name=target.name,
        argv=command.argv,
        cwd=command.cwd,
        policy=RestartPolicy(command.max_failures, command.max_preemptions, grace_s=command.grace_s),
        variables=manifest.variables.requested,
        secrets={name: secrets[name] for name in command.secrets if name in secrets},
        workers=command.workers,
        group=manifest.run.group or "",
        tags=manifest.run.tags,
        owns_slice=isinstance(target, WantedSlice),
        **command.kept()
        | {"checkpoint_dir": place, "progress": command.progress or "", "container": image_used(manifest)},
    )
    if environment is not None:
        reference = EnvironmentRef(environment.name, environment.spec_sha256)
        spec = replace(spec, environment=reference, allow_drift=environment.allowed_drift)
    return spec


def _own_directory(manifest: RunManifest, run_id: str) -> str | None:
    """Beside the checkpoints of the run that is done again: in them it would find itself done."""
    place = manifest.command.checkpoint_dir
    return None if place is None else f"{place.rstrip('/')}-{run_id}"


def _environment(services: Services, manifest: RunManifest) -> PinnedEnvironment | str | None:
    """The environment as it was frozen, or why it cannot be had."""
    named = manifest.environment
    if named is None:
        return None
    try:
        return parse_frozen(services.store.get_blob(named.spec_sha256))
    except NotFoundError:
        return f"the definition of {named.name} is not in this store"
    except BadManifestError as error:
        return error.message


def _misfit(environment: PinnedEnvironment | None, target: Target) -> str:
    if environment is None:
        return ""
    try:
        check_use(environment.spec, target.spec.accelerator_type)
    except UsageError as error:
        return error.message
    return ""


def _bucket(services: Services, spec: RunSpec, request: RerunRequest, target: Target) -> Bucket | None:
    if spec.checkpoint_dir is None:
        return None
    found = Bucket(spec.checkpoint_dir)
    name = spec.checkpoint_dir.removeprefix("gs://").partition("/")[0]
    if request.checkpoint_dir is not None:
        listed = services.objects.list(f"{spec.checkpoint_dir.rstrip('/')}/", limit=SHARDS_LISTED)
        names, size = tuple(each.name for each in listed), sum(each.size for each in listed)
        found = replace(found, from_=spec.checkpoint_dir, size=size, shards=names)
    try:
        place = services.project_api.bucket_place(name)
    except TpuctlError:
        return found  # where it is may be hidden from this user
    price = float(load_mount_table()[0]["prices"]["other_region_tb"])
    return replace(found, location=place.location, near=place.is_near(target.spec.zone), usd_per_tb=price)


def _code(services: Services, manifest: RunManifest) -> CodeBundle:
    """The frozen code, read from the store."""
    store, code = services.store, manifest.code
    tree = store.get_blob(code.bundle_sha256)
    blobs = list_blobs(parse_tree(tree))
    return CodeBundle(
        content=Content(tree, lambda sha256: [store.get_blob(sha256)]),
        sha256=code.bundle_sha256,
        directory=manifest.command.cwd,
        files=len(blobs),
        size_bytes=sum(each.size for each in blobs),
        commit=code.commit,
        branch=code.branch,
        dirty=code.dirty,
        remote_url=code.remote,
        diff=store.get_blob(code.diff_sha256) if code.diff_sha256 else b"",
        diff_sha256=code.diff_sha256,
    )


def render_plan(plan: tuple[RerunChange, ...]) -> list[dict[str, Any]]:
    """Rows of the plan, with stable keys."""
    rows: list[dict[str, Any]] = to_data(list(plan))
    return rows


def find_disks(services: Services, manifest: RunManifest, target: Target) -> dict[str, DiskThere]:
    """By path what each disk of the run is on the target. Reads only."""
    return {str(row.get("path")): _find_disk(services, row, target) for row in used(manifest, "disks")}


def _find_disk(services: Services, row: Row, target: Target) -> DiskThere:
    spec, own = target.spec, str(row.get("type") or "")
    ref = next((each for each in spec.disks if each.path == row.get("path")), None)
    there = _record(services, ref.name) if ref is not None else None
    if ref is not None and there is None:
        return DiskThere(own, ref.name, same=ref.name == row.get("name"))
    if there is not None:
        plan = plan_clone_in(services, there, spec.zone, spec)
        return DiskThere(plan.record.request.type, plan.record.name, _is_same(row, there), plan.cost)
    shared = row.get("mode") in (DiskMode.READ_ONLY, DiskMode.READ_ONLY.short)
    kind = type_in(own, spec, shared=shared) if own else ""
    cost, hint = _what_to_type(services, row, target, kind or "")
    return DiskThere(kind or "", cost=cost, hint=hint)


def _record(services: Services, name: str) -> DiskRecord | None:
    record = find_record(services, name)
    return record if record is not None and record.wanted else None


def _is_same(row: Row, there: DiskRecord) -> bool:
    """Whether a disk has the content that the run saw: the same master, or a clone of the same moment."""
    if row.get("master") is None or row.get("generation") is None:
        return bool(there.name == row.get("name"))
    return (there.master, there.generation) == (row["master"], row["generation"])


def _what_to_type(services: Services, row: Row, target: Target, kind: str) -> tuple[str, str]:
    """What it costs, and the commands after which the target has a disk like that of `row`."""
    name, zone, own = str(row.get("name")), target.spec.zone, str(row.get("type") or "")
    record, master = _record(services, name), str(row.get("master") or name)
    other = f" --type {kind}" if kind != own else ""
    new = isinstance(target, WantedSlice)
    slice_name = "SLICE" if new else target.name
    first = f"tpuctl up {target.spec.accelerator_type} SLICE --zone {zone}, then " if new else ""
    again = ", then rerun with --on SLICE" if new else ""
    place = f"--to {slice_name} --path {quote(str(row.get('path')))}"
    if record is None and _record(services, master) is None:
        known = f"tpuctl disk ls; with one of the same content: tpuctl disk attach NAME {place}"
        return "", f"{first}{known}{again}"
    if record is None or (record.generation and record.request.zone == zone and other):
        older = f" --from-snapshot {quote(row['snapshot'])}" if row.get("snapshot") else ""
        return "", f"{first}tpuctl disk clone {quote(master)} {place}{other}{older}{again}"
    cost, made, attached = "", "", name
    if not record.generation and (record.request.zone != zone or other):
        attached = f"{name}-2"
        made = f"tpuctl disk clone {name} --rw --name {attached} --zone {zone}{other}, then "
    elif record.generation and record.request.zone != zone:
        plan = plan_clone_in(services, record, zone, target.spec)
        cost, attached = plan.cost, plan.record.name
        made = f"tpuctl disk clone {name} --zone {zone}{other}, then " if plan.said else ""
        try:
            plan.check()
        except UsageError as error:
            made = f"{error.hint}, then "
    return cost, f"{first}{made}tpuctl disk attach {attached} {place}{again}"
