"""The parts of manifests in the store: each is written once, by whoever holds the lease of the run's slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from tpuctl import __version__
from tpuctl.engine.services import Services
from tpuctl.envs.pinned import parse_frozen
from tpuctl.envs.presets import preset_rows
from tpuctl.envs.spec import run_variables
from tpuctl.errors import NotFoundError
from tpuctl.lib.codec import to_data
from tpuctl.lib.input_files import read_file
from tpuctl.lib.time import parse_timestamp
from tpuctl.model.attempts import Attempt, RunTotals
from tpuctl.model.records import RunRecord, SliceRecord
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.money.cluster_costs import cluster_price
from tpuctl.money.slice_costs import list_price
from tpuctl.provenance.build import build_attempt, build_current, build_end, build_start, build_totals
from tpuctl.provenance.bundle import read_bundle
from tpuctl.provenance.manifest import ManifestPart, Row, SettingSection, assemble, parse_manifest, render_part
from tpuctl.state.repository import Repository, get_run

MANIFEST_LIMIT = 64 << 20
"""Bytes of a file: 256 hosts and a hundred attempts make about 20 million."""
START, END = "00000", "end"
PARTS = Repository(ManifestPart, "manifests")
"""As `RUN/00000`, `RUN/NUMBER` of each attempt, and `RUN/end`: nobody changes them."""


class ManifestParts(Struct, frozen=True):
    """The parts of one manifest that are there."""

    start: ManifestPart | None
    attempts: tuple[ManifestPart, ...]
    end: ManifestPart | None

    @property
    def contents(self) -> list[Row]:
        """The attempts that have ended."""
        return [part.content for part in self.attempts]

    @property
    def last_digest(self) -> str:
        """The digest that the next part follows."""
        parts = [part for part in (self.start, *self.attempts, self.end) if part is not None]
        return parts[-1].sha256 if parts else ""


def load_parts(services: Services, run_id: str) -> ManifestParts:
    """What the store has of the manifest of a run."""
    found = {name.rpartition("/")[2]: part for name, part in PARTS.named(services, f"{run_id}/").items()}
    start, end = found.pop(START, None), found.pop(END, None)
    return ManifestParts(start, tuple(found[name] for name in sorted(found)), end)


def load_manifest(services: Services, run_id: str) -> dict[str, Any]:
    """The whole manifest of a run as plain data. Raises BadManifestError where there is none, or one of a newer
    schema."""
    parts = load_parts(services, run_id)
    return assemble(parts.start, parts.attempts, parts.end, run_id)


def load_source(services: Services, source: str) -> tuple[dict[str, Any], RunRecord | None]:
    """The manifest of the run `source`, or in the file of that name; with the record of a run of this store.

    Raises NotFoundError, which names the nearest run, or BadManifestError.
    """
    found = read_manifest(source)
    if found is not None:
        return found, None
    record = get_run(services, source).record
    return load_manifest(services, record.id), record


def read_manifest(source: str) -> dict[str, Any] | None:
    """The manifest in the file `source`, which may be a bundle; None where that is no path but the id of a run.
    Raises BadManifestError."""
    path = Path(source)
    bundled = read_bundle(path)
    if bundled is not None:
        return bundled
    if not (path.suffix or "/" in source or path.is_file()):
        return None
    try:
        content = read_file(path, MANIFEST_LIMIT)
    except OSError as error:
        raise NotFoundError(f"{source} cannot be read: {error.strerror}", hint="tpuctl runs") from error
    return parse_manifest(content, source)


def begin_manifest(
    services: Services,
    run: RunRecord,
    slice_: SliceRecord | None,
    configuration: Mapping[str, SettingSection] | None = None,
    checks: Sequence[Row] = (),
    content: Row | None = None,
) -> None:
    """Writes the start, before the record of the run: its `content`, or what follows from the others. One that
    a crash left behind before its run was written down is replaced: no run refers to it."""
    if content is None:
        content = _start(services, run, slice_, configuration, checks)
    PARTS.overwrite(services, f"{run.id}/{START}", render_part("", content))


def _start(
    services: Services,
    run: RunRecord,
    slice_: SliceRecord | None,
    configuration: Mapping[str, SettingSection] | None,
    checks: Sequence[Row],
) -> Row:
    versions: dict[str, str] = {}
    variables: dict[str, str] = {}
    preset: list[Row] = []
    if run.spec.environment is not None:
        frozen = parse_frozen(services.store.get_blob(run.spec.environment.spec))
        versions = {package.name: package.version for package in frozen.packages.packages}
        variables = run_variables(frozen.spec)
        preset = to_data(preset_rows(frozen.spec, run.spec, run.spec.variables))
    return build_start(
        run,
        slice_,
        project=services.project,
        version=__version__,
        configuration=configuration,
        package_versions=versions,
        environment_variables=variables,
        preset=preset,
        checks=checks,
    )


def add_attempt(
    services: Services,
    run: RunRecord,
    slice_: SliceRecord | None,
    attempt: Attempt,
    *,
    disks: Sequence[Row] = (),
    mounts: Sequence[Row] = (),
) -> None:
    """Writes an attempt that has ended; a repeat changes nothing."""
    part = f"{run.id}/{attempt.number:05d}"
    if PARTS.generation(services, part):
        return
    parts = load_parts(services, run.id)
    since = _ended(parts) if parts.attempts else run.created_at
    name = slice_.name if slice_ is not None else run.slice_name
    before = parts.contents[-1] if parts.contents else None
    row = build_attempt(
        run, attempt, name, since=since or run.created_at, before=before, disks=disks, mounts=mounts
    )
    PARTS.create(services, part, render_part(parts.last_digest, row))


def seal_manifest(services: Services, run: RunRecord, slice_: SliceRecord | None) -> RunTotals | None:
    """Writes how a run ended, before its record says so; a repeat changes nothing. What went into it; None for
    a run without a manifest."""
    parts = load_parts(services, run.id)
    if parts.start is None:
        return None
    chips, price = _share(run, slice_)
    if parts.end is None:
        content = build_end(run, parts.contents, chips=chips, usd_per_hour=price)
        PARTS.create(services, f"{run.id}/{END}", render_part(parts.last_digest, content))
    return build_totals(parts.contents, chips=chips, usd_per_hour=price)


def current_totals(services: Services, run: RunRecord, slice_: SliceRecord | None) -> RunTotals:
    """What went into a run that is not over, until now."""
    parts = load_parts(services, run.id)
    chips, price = _share(run, slice_)
    rows = [*parts.contents, current_part(services, run, slice_, parts)]
    return build_totals(rows, chips=chips, usd_per_hour=price)


def _share(run: RunRecord, slice_: SliceRecord | None) -> tuple[int | None, float | None]:
    """How many chips of its slice a run has, and the list price of that share for an hour."""
    if slice_ is None:
        here = run.cluster
        return (None, None) if here is None else (here.chips, cluster_price(load_accelerators(), here))
    chips, price = len(run.chips) or slice_.spec.chips, list_price(slice_.spec)
    return chips, None if price is None else price * chips / slice_.spec.chips


def current_part(
    services: Services, run: RunRecord, slice_: SliceRecord | None, parts: ManifestParts
) -> dict[str, Any]:
    """What it does since the last attempt that is written: an open attempt, or a wait."""
    since = _ended(parts) if parts.attempts else None
    name = slice_.name if slice_ is not None else run.slice_name
    before = parts.contents[-1] if parts.contents else None
    now = services.store.now()
    return build_current(run, name, since=since or run.created_at, now=now, slice_=slice_, before=before)


def _ended(parts: ManifestParts) -> float | None:
    """When the last attempt that is written had ended."""
    return parse_timestamp(str(parts.contents[-1].get("ended")))
