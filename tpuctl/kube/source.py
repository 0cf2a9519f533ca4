"""A run that goes to a cluster: one of the store, one of a file, or one that a command describes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from tpuctl import __version__
from tpuctl.config.settings import Config
from tpuctl.engine.services import Services
from tpuctl.envs.load import check_environment
from tpuctl.envs.pinned import PinnedEnvironment, parse_frozen
from tpuctl.envs.spec import run_variables
from tpuctl.kube.export import ExportTarget
from tpuctl.lib.codec import to_data
from tpuctl.model.records import RunRecord
from tpuctl.model.run_spec import RunRequest
from tpuctl.mounts.spec import check_variables
from tpuctl.provenance.build import build_start
from tpuctl.provenance.bundle import blobs_of, is_bundle, read_contents
from tpuctl.provenance.manifest import NOT_OF_START, Row, SliceSection, assemble, render_part
from tpuctl.provenance.parts import load_source
from tpuctl.runs.code_check import check_code
from tpuctl.runs.data import find_data
from tpuctl.runs.preset import with_preset
from tpuctl.runs.submit import (
    check_alone,
    check_launcher,
    freeze_code,
    frozen_environment,
    new_record,
    recorded_settings,
    resolve_run,
)
from tpuctl.transfer.tree import list_blobs, parse_tree


class ExportSource(Struct, frozen=True):
    """A run with all that is needed to do it: `read` gives each content of `digests` by its sha256."""

    manifest: Row
    digests: tuple[str, ...]
    read: Callable[[str], bytes]
    environment: PinnedEnvironment | None = None
    record: RunRecord | None = None
    """Of one that nobody wrote down yet, and `start`, what its manifest begins with."""
    start: Row | None = None
    image: str | None = None
    """Another than the one that it had; its packages are those of the image, then."""


def is_run(word: str) -> bool:
    """Whether a word means a run that is there, by its id, its manifest or its bundle, and no script."""
    path = Path(word)
    if path.is_file():
        return path.suffix == ".json" or is_bundle(path)
    return "/" not in word and path.suffix == ""


def source_of_run(services: Services, name: str, image: str | None = None) -> ExportSource:
    """A run of the store, or the one of a manifest or bundle, in another `image` if there is one. Raises
    NotFoundError where its code is gone, and changes nothing."""
    bundled = dict(read_contents(Path(name))) if is_bundle(Path(name)) else {}

    def read(digest: str) -> bytes:
        return bundled[digest] if digest in bundled else services.store.get_blob(digest)

    loaded, _ = load_source(services, name)
    manifest = loaded if image is None else in_image(loaded, image)
    found = manifest.get("environment")
    environment = parse_frozen(read(found["spec_sha256"])) if found else None
    return ExportSource(
        manifest, tuple(dict.fromkeys(blobs_of(read, manifest))), read, environment, image=image
    )


def in_image(manifest: Row, image: str) -> dict[str, Any]:
    """The manifest with which the run starts in another image: no attempt was in it yet, and its packages are
    those of the image."""
    start = {key: value for key, value in manifest.items() if key not in NOT_OF_START}
    start |= {"command": {**manifest["command"], "container": image}, "environment": None}
    return assemble(render_part("", start), [], None)


def source_of_script(
    services: Services, config: Config, request: RunRequest, target: ExportTarget, run_id: str, directory: Path
) -> ExportSource:
    """The code in `directory` as a run of `target`. Raises as `prepare_run` does, and changes nothing."""
    code = freeze_code(config, request, directory)
    environment = frozen_environment(services, config, request, directory, None)
    check_environment(services, environment, target.shape.name)
    request = with_preset(request, environment)
    check_launcher(request, environment)
    check_code(services, request, directory, environment)
    check_variables(request.var, target.mounts)
    data = find_data(services, config, request)
    hosts = target.shape.hosts * target.slices
    spec = resolve_run(request, config, target.name, hosts, code.directory, environment, data)
    check_alone(spec)
    record = new_record(services, run_id, spec, code)
    content = code.content
    contents = {code.sha256: lambda: content.tree}
    for blob in list_blobs(parse_tree(content.tree)):
        contents[blob.sha256] = partial(lambda digest: b"".join(content.read(digest)), blob.sha256)
    if code.diff_sha256 is not None:
        contents[code.diff_sha256] = lambda: code.diff
    if environment is not None:
        contents[environment.ref.spec] = lambda: environment.content
    start = _start(services, config, record, target, environment)
    manifest = assemble(render_part("", start), [], None)
    return ExportSource(
        manifest, tuple(contents), lambda digest: contents[digest](), environment, record, start
    )


def _start(
    services: Services,
    config: Config,
    record: RunRecord,
    target: ExportTarget,
    environment: PinnedEnvironment | None,
) -> Row:
    """What the manifest of the run begins with, as one on a slice has it."""
    packages = environment.packages.packages if environment is not None else ()
    start = build_start(
        record,
        None,
        project=services.project,
        version=__version__,
        configuration=recorded_settings(config),
        package_versions={each.name: each.version for each in packages},
        environment_variables=run_variables(environment.spec) if environment is not None else None,
    )
    shape = target.shape
    there = SliceSection(
        name=target.name,
        accelerator_type=shape.name,
        topology=shape.topology,
        hosts=shape.hosts * target.slices,
        chips=shape.chips * target.slices,
        slices=target.slices,
        tier=str(target.provisioning.tier),
        mounts=tuple(to_data(each) for each in target.mounts),
        disks=tuple(to_data(each) for each in target.disks),
    )
    return {**start, "slice": to_data(there)}
