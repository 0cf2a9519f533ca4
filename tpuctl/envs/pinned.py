"""A pinned environment: a file with its lock, frozen, and the key that its content gives it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tpuctl.envs.lock import Lock, parse_lock, requirement_lines, versions_of, wheels_for
from tpuctl.envs.spec import EnvironmentSpec, InstallFrom, run_variables
from tpuctl.errors import BadManifestError
from tpuctl.lib.codec import from_data, to_data


@dataclass(frozen=True)
class PinnedEnvironment:
    """What a run keeps for all its attempts. `lock` and `probe` are texts; an environment that is only verified
    has no lock."""

    spec: EnvironmentSpec
    lock: str = ""
    probe: str = ""

    @property
    def packages(self) -> Lock:
        return parse_lock(self.lock, self.spec.name) if self.lock else Lock("", ())


def render_frozen(pinned: PinnedEnvironment) -> bytes:
    """The environment as one JSON blob."""
    return (json.dumps(to_data(pinned), indent=1, sort_keys=True) + "\n").encode()


def parse_frozen(content: bytes) -> PinnedEnvironment:
    """What `render_frozen` was given. Raises BadManifestError for anything else."""
    try:
        return from_data(PinnedEnvironment, json.loads(content))
    except ValueError as error:
        raise BadManifestError(f"the frozen environment of the run cannot be read: {error}") from error


def check_minor(pinned: PinnedEnvironment, minor: str) -> None:
    """Raises BadManifestError where the environment is not for this Python."""
    if minor not in pinned.spec.python:
        known = ", ".join(pinned.spec.python)
        raise BadManifestError(
            f"environment {pinned.spec.name} is not for Python {minor}, only for {known}",
            hint=f"install one of these Pythons on the hosts, or add {minor} to its file",
        )


def environment_key(pinned: PinnedEnvironment, minor: str) -> str:
    """16 hex digits derived from what is installed, set and verified; name and words do not count.

    Raises BadManifestError when the environment is not for that Python.
    """
    check_minor(pinned, minor)
    spec, lock = pinned.spec, pinned.packages
    archive = lock.python.sha256 if lock.python is not None else None
    content: dict[str, Any] = {
        "python": minor,
        "packages": requirement_lines(lock, minor),
        "archive": spec.python_archive.sha256 if spec.python_archive is not None else archive,
        "files": sorted((file.to, file.sha256) for file in spec.files),
        "os_packages": dict(spec.os_packages),
        "imports": sorted(spec.imports),
        "variables": run_variables(spec),
        "kernel": to_data(spec.kernel),
        "probe": pinned.probe,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def environment_files(pinned: PinnedEnvironment, minor: str, installer: bytes) -> dict[str, bytes]:
    """What a host needs in the working directory of `python3 env_install.py`, by file name; wheels apart."""
    spec = pinned.spec
    lock = pinned.packages
    request = {
        "key": environment_key(pinned, minor),
        "name": spec.name,
        "python": minor,
        "imports": list(spec.imports),
        "variables": run_variables(spec),
        "versions": versions_of(lock, minor),
        "wheels": []
        if spec.install_from is InstallFrom.INDEX
        else [{"name": wheel.name, "sha256": wheel.sha256} for wheel in wheels_for(lock, minor)],
    }
    return {
        "env_install.py": installer,
        "requirements.txt": requirement_lines(lock, minor).encode(),
        "env.json": (json.dumps(request, indent=1, sort_keys=True) + "\n").encode(),
    }
