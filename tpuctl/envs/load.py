"""Finds environment files, reads them with their locks, and freezes them for runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tpuctl.config.load import find_project_file
from tpuctl.config.settings import Config
from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.envs.lock import (
    Lock,
    cuda_builds,
    cuda_hint,
    file_name,
    parse_lock,
    render_lock,
    versions_of,
)
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.presets import expand_profiles, parse_flag_profiles, profile_complaints
from tpuctl.envs.rules import Complaint, VersionTable, check_slice, check_versions, required_versions
from tpuctl.envs.spec import Backend, EnvironmentSpec, check_environment_name
from tpuctl.errors import BadManifestError, NotFoundError, UsageError
from tpuctl.lib.input_files import is_file, read_text
from tpuctl.model.shipped_files import load_flag_profiles

FOLDER = Path("envs")
"""Beside `tpuctl.yaml`, or in the directory of the command where there is none."""
LOCK_LIMIT = 16 << 20
"""Bytes of a lock file; one with the hashes of 200 packages has 1 MB."""


def environment_names(folder: Path) -> list[str]:
    """The environments of the project, then those that come with tpuctl and have other names."""
    own = sorted(path.stem for path in folder.glob("*.yaml")) if folder.is_dir() else []
    return [*own, *(name for name in shipped_names() if name not in own)]


def shipped_names() -> list[str]:
    """The environments that come with tpuctl."""
    from tpuctl.model.shipped_files import list_manifests

    return sorted(name.removesuffix(".yaml") for name in list_manifests("env") if name.endswith(".yaml"))


def read_environment(name: str, folder: Path, *, locked: bool = True) -> PinnedEnvironment:
    """The environment `NAME.yaml` in `folder`, else the one that tpuctl ships. Without `locked` its lock is not
    looked at.

    Raises NotFoundError, or BadManifestError with all that is wrong with it and the places.
    """
    from tpuctl.config.file import file_error
    from tpuctl.config.schema import Problem
    from tpuctl.config.yaml_positions import MarkedMapping, Position, parse_marked
    from tpuctl.envs.parse import parse_environment

    check_environment_name(name)
    read, origin = _reader(name, folder)
    text = read(f"{name}.yaml")
    if text is None:
        raise NotFoundError(f"there is no {origin}")
    marked = parse_marked(text, origin)
    spec, problems = parse_environment(marked, name)
    lock_text: str | None = None
    complaints: list[Complaint] = []
    if spec is not None and not problems:
        lock_text = read(file_name(name)) if locked else None
        lock = parse_lock(lock_text, name) if lock_text is not None else None
        complaints = _complaints(spec, lock)
        keys = marked.keys if isinstance(marked, MarkedMapping) else {}
        problems = [
            Problem(keys.get(each.key, Position(1, 1)), f"environment: {each.message}", each.hint)
            for each in complaints
            if each.refused
        ]
    if spec is None or problems:
        raise file_error(origin, problems)
    probe = read(spec.probe) if spec.probe else ""
    if probe is None:
        raise BadManifestError(f"{origin}: the probe {spec.probe} is not beside it")
    own = folder if origin != _shipped_origin(name) else None
    told = [each for each in complaints if not each.refused]
    expanded = expand_profiles(parse_flag_profiles(load_flag_profiles()), spec)
    return PinnedEnvironment(expanded, lock_text or "", probe, "", own, text, origin, told, spec)


def require_lock(found: PinnedEnvironment) -> Lock:
    """The lock of an environment. Raises BadManifestError where there is none that fits."""
    name = found.spec.name
    if found.spec.unmanaged is not None:
        return Lock("", ())
    if not found.lock:
        raise BadManifestError(f"environment {name} is not locked", hint=f"tpuctl env lock {name}")
    if found.stale:
        raise BadManifestError(
            f"{file_name(name)} is older than the requirements in {found.origin}",
            hint=f"tpuctl env lock {name}",
        )
    return found.packages


def environment_folder(start: Path | None = None) -> Path:
    """`envs/` beside the nearest `tpuctl.yaml`, else in the directory of the command."""
    here = start or Path.cwd()
    project = find_project_file(here, Path.home())
    return (project.parent if project is not None else here) / FOLDER


def load_environment(config: Config, name: str, directory: Path) -> PinnedEnvironment:
    """Environment `name`, looked for from `directory`, checked and locked: what a run or slice keeps.

    Raises NotFoundError or BadManifestError.
    """
    return pin(read_environment(name, environment_folder(directory)), config.wheelhouse)


def pin(found: PinnedEnvironment, wheelhouse: str | None = None) -> PinnedEnvironment:
    """An environment with its lock. `wheelhouse` is the gs:// prefix from which hosts get packages. Raises
    BadManifestError."""
    for item in found.spec.files:
        if not item.source.startswith(("gs://", "/")):
            check_file(found, item.source, item.sha256)
    return replace(found, lock=render_lock(require_lock(found)), wheelhouse=(wheelhouse or "").rstrip("/"))


def check_environment(services: Services, environment: PinnedEnvironment | None, accelerator_type: str) -> None:
    """Warns of one that nobody has seen work on TPUs. Raises UsageError for one of another generation."""
    notice = check_use(environment.spec, accelerator_type) if environment is not None else None
    if notice is not None:
        services.emit(Warn("", notice))


def known_versions(found: PinnedEnvironment) -> dict[str, str]:
    """{package: version} of an environment, as far as its lock, or without one its file, says."""
    locked = versions_of(found.packages, found.spec.python[0]) if found.lock else {}
    return {**locked, **required_versions(found.spec)}


def check_use(spec: EnvironmentSpec, accelerator_type: str) -> str | None:
    """What is to be said before an environment is used on a slice of that type. Raises UsageError where it is
    not for its generation of TPUs."""
    from tpuctl.model.shipped_files import load_accelerators

    known = load_accelerators().types.get(accelerator_type)
    complaint = check_slice(spec, known.generation) if known is not None else None
    if complaint is not None:
        raise UsageError.of("env", complaint.message, "tpuctl env ls   # others; or add it to its generations")
    told = [] if spec.verified else ["is verified: false: nobody has seen it work on TPUs"]
    if spec.backend is Backend.TORCH_TPU:
        told.append("is for TorchTPU: whether its programs come up on the chips is not checked")
    return f"environment {spec.name} {'; it '.join(told)}" if told else None


def check_file(found: PinnedEnvironment, source: str, sha256: str) -> Path:
    """A file beside the environment's, which must be what the file says."""
    if found.folder is None:
        raise BadManifestError(f"{found.origin} names {source}, and has no files beside it")
    path = (found.folder / source).absolute()
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadManifestError(f"{found.origin}: cannot read {source}: {error.strerror}") from error
    if digest != sha256:
        raise BadManifestError(
            f"{found.origin}: {source} has the sha256 {digest}, not {sha256}", hint=f"sha256: {digest}"
        )
    return path


def _cuda(lock: Lock | None) -> list[Complaint]:
    builds = cuda_builds(lock) if lock is not None else []
    if not builds:
        return []
    listed = ", ".join(builds[:3]) + (f" and {len(builds) - 3} more" if len(builds) > 3 else "")
    text = f"the lock has builds for NVIDIA's devices: {listed}"
    return [Complaint("requirements", text, cuda_hint(builds))]


def check_lock(found: PinnedEnvironment, lock: Lock | None) -> list[str]:
    """What is to be said of a fresh lock, or of a file without one.

    Raises BadManifestError for what must not be used.
    """
    complaints = _complaints(found.spec, lock)
    refused = next((each for each in complaints if each.refused), None)
    if refused is not None:
        raise BadManifestError(f"environment {found.spec.name}: {refused.message}", hint=refused.hint)
    return [each.message for each in complaints if each not in found.complaints]


def _complaints(spec: EnvironmentSpec, lock: Lock | None) -> list[Complaint]:
    from tpuctl.model.shipped_files import load_accelerators, load_versions

    profiles = parse_flag_profiles(load_flag_profiles())
    locked = versions_of(lock, spec.python[0]) if lock is not None else {}
    versions = {**locked, **required_versions(spec)}
    generations = list(load_accelerators().generations)
    expanded = expand_profiles(profiles, spec)
    return [
        *profile_complaints(profiles, spec),
        *check_versions(VersionTable(load_versions()), expanded, versions, generations),
        *_cuda(lock),
    ]


Reader = Callable[[str], str | None]


def _shipped_origin(name: str) -> str:
    return f"{name}.yaml of tpuctl"


def _reader(name: str, folder: Path) -> tuple[Reader, str]:
    """How to read the files of an environment, and what its file is called; None for what is not there."""
    if is_file(folder / f"{name}.yaml"):

        def from_folder(file: str) -> str | None:
            path = folder / file
            if not is_file(path):
                return None
            try:
                return read_text(path, LOCK_LIMIT)
            except OSError as error:
                raise BadManifestError(f"cannot read {path}: {error.strerror}") from error

        return from_folder, str(FOLDER / f"{name}.yaml")
    shipped = shipped_names()
    if name in shipped:
        from tpuctl.model.shipped_files import find_manifest

        def from_package(file: str) -> str | None:
            content = find_manifest(f"env/{file}")
            return None if content is None else content.decode()

        return from_package, _shipped_origin(name)
    raise NotFoundError(
        f"no environment called {name}",
        hint=f"tpuctl env new {name}, or use one of: {', '.join(shipped)}",
    )
