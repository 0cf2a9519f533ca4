"""A pinned environment: a file with its lock, frozen, and the key that its content gives it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from tpuctl.envs.lock import (
    X86,
    Lock,
    Wheel,
    missing_wheels,
    parse_lock,
    requirement_lines,
    requirements_digest,
    wheel_rank,
    wheels_for,
)
from tpuctl.envs.rules import Complaint
from tpuctl.envs.spec import Backend, EnvironmentSpec, InstallFrom, run_variables
from tpuctl.errors import BadManifestError
from tpuctl.lib.codec import from_data, parse_json, to_data
from tpuctl.model.refs import EnvironmentRef


def digest_of(spec: EnvironmentSpec) -> str:
    """What a lock of this file says that it was made from."""
    places = (*spec.indexes, *spec.find_links)
    return requirements_digest(spec.requirements, spec.python, places, spec.exclude)


KEPT = ("spec", "lock", "probe", "wheelhouse")
"""What of an environment is in its content."""
LATER = ("exclude", "flag_profiles", "per", "progress")
"""Keys that are not in its content where they say nothing: so that is what it was before there were any."""


@dataclass(frozen=True)
class PinnedEnvironment:
    """An environment with its lock, which is empty before `tpuctl env lock`; `lock` and `probe` are texts. A
    slice or run keeps its `content`, by its sha256; `stored` is what that was read from.

    Wheels are below the gs:// prefix `wheelhouse`, or where there is none in the store, from where one host
    gets them and the others copy them. Of one that was read from a file, `folder` has what lies beside it on
    this machine (None for one that comes with tpuctl), `text` and `origin` are that file's, `complaints` are
    what is doubtful about it, and `written` is what it says, before its flag profiles were expanded.
    """

    spec: EnvironmentSpec
    lock: str = ""
    probe: str = ""
    wheelhouse: str = ""
    folder: Path | None = field(default=None, compare=False)
    text: str = field(default="", compare=False, repr=False)
    origin: str = field(default="", compare=False)
    complaints: Sequence[Complaint] = field(default=(), compare=False)
    written: EnvironmentSpec | None = field(default=None, compare=False)
    stored: bytes = field(default=b"", init=False, compare=False, repr=False)

    @cached_property
    def content(self) -> bytes:
        """One JSON blob; of one that was stored the same bytes, whatever has defaults by now."""
        kept = {name: to_data(getattr(self, name)) for name in KEPT}
        kept["spec"] = {key: value for key, value in kept["spec"].items() if value or key not in LATER}
        return self.stored or (json.dumps(kept, indent=1, sort_keys=True) + "\n").encode()

    @cached_property
    def ref(self) -> EnvironmentRef:
        return EnvironmentRef(self.spec.name, hashlib.sha256(self.content).hexdigest())

    @cached_property
    def packages(self) -> Lock:
        return parse_lock(self.lock, self.spec.name) if self.lock else Lock("", ())

    @property
    def stale(self) -> bool:
        """Whether the lock is of other requirements than the file's."""
        return bool(self.packages.asked) and self.packages.asked != digest_of(self.spec)

    @property
    def on_cpu(self) -> bool:
        """Whether it is for computing without TPUs."""
        return self.spec.backend is Backend.CPU

    def variables(self) -> dict[str, str]:
        """What it sets for every run in it."""
        # Nothing is added to what was compiled and verified. An environment of ours has a file that says so.
        only_read = {"PYTHONDONTWRITEBYTECODE": "1"} if self.spec.unmanaged is not None else {}
        return {**only_read, **run_variables(self.spec)}


def parse_frozen(content: bytes) -> PinnedEnvironment:
    """What has this `content`. Raises BadManifestError for anything else."""
    try:
        data = parse_json(content)
        found = from_data(PinnedEnvironment, {name: data[name] for name in KEPT if name in data})
    except (ValueError, TypeError) as error:
        raise BadManifestError(f"the frozen environment of the run cannot be read: {error}") from error
    object.__setattr__(found, "stored", content)
    return found


def check_minor(pinned: PinnedEnvironment, minor: str) -> None:
    """Raises BadManifestError where the environment is not for this Python."""
    if minor not in pinned.spec.python:
        known = ", ".join(pinned.spec.python)
        raise BadManifestError(
            f"environment {pinned.spec.name} is not for Python {minor}, only for {known}",
            hint=f"install one of these Pythons on the hosts, or add {minor} to its file",
        )


def environment_keys(pinned: PinnedEnvironment) -> list[str]:
    """Under which of these a host may have it, whatever its Python and its machine."""
    return [
        environment_key(pinned, minor, machine) for machine in (X86, "aarch64") for minor in pinned.spec.python
    ]


def environment_key(pinned: PinnedEnvironment, minor: str, machine: str = X86) -> str:
    """16 hex digits derived from what is installed, set and verified, and on which machine; name and words do
    not count.

    Raises BadManifestError when the environment is not for that Python.
    """
    check_minor(pinned, minor)
    spec, lock = pinned.spec, pinned.packages
    archive = lock.python.sha256 if lock.python is not None else None
    content: dict[str, Any] = {
        "python": minor,
        **({} if machine == X86 else {"machine": machine}),
        "packages": requirement_lines(lock, minor, machine),
        "archive": spec.python_archive.sha256 if spec.python_archive is not None else archive,
        **({"unmanaged": to_data(spec.unmanaged)} if spec.unmanaged is not None else {}),
        "files": sorted((file.to, file.sha256) for file in spec.files),
        "os_packages": dict(spec.os_packages),
        "imports": sorted(spec.imports),
        "variables": run_variables(spec),
        "kernel": to_data(spec.kernel),
        "probe": pinned.probe,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


UNPACKED = 5
"""Disk that an installation takes, by the size of its wheels: libtpu unpacks to 3.4 times its wheel, which lies
beside it."""


def contents_for(pinned: PinnedEnvironment, minor: str) -> list[Wheel]:
    """All files that a host with Python `minor` needs, by digest: wheels, uv, an interpreter, extra files.
    `url` is where the machine finds it that fills the wheelhouse."""
    spec, lock = pinned.spec, pinned.packages
    if spec.install_from is InstallFrom.INDEX or spec.unmanaged is not None:
        return []
    found = wheels_for(lock, minor)
    found += [each for each in (lock.installer, archive_of(pinned)) if each is not None]
    found += [
        Wheel(file.to.rpartition("/")[2], file.source, file.sha256)
        for file in spec.files
        if not file.source.startswith("/")
    ]
    return found


def missing_files(pinned: PinnedEnvironment, minor: str, machine: str) -> list[str]:
    """What of an environment is not for that machine: packages without a wheel, uv, the interpreter."""
    spec, lock = pinned.spec, pinned.packages
    found = missing_wheels(lock, minor, machine)
    if spec.install_from is InstallFrom.INDEX or spec.unmanaged is not None:
        return found
    if lock.installer is not None and not wheel_rank(lock.installer.name, minor, machine):
        found.append("uv")
    archive = archive_of(pinned)
    if archive is not None and machine != X86 and machine not in archive.name:
        found.append(f"the interpreter {archive.name}")
    return found


def archive_of(pinned: PinnedEnvironment) -> Wheel | None:
    """The archive with the interpreter, of the file or else of the lock."""
    archive = pinned.spec.python_archive
    if archive is None:
        return pinned.packages.python
    return Wheel(archive.source.rpartition("/")[2], archive.source, archive.sha256)


def bytes_needed(pinned: PinnedEnvironment, minor: str) -> int:
    """Free bytes that a host must have before anything is sent to it; 0 where nobody knows."""
    return UNPACKED * sum(each.size for each in contents_for(pinned, minor))


ARCHIVE = "rest.tar"


class SealedFile(Struct, frozen=True):
    """A content of an environment that one host has installed and proved, and holds ready for others. `path` is
    where it belongs in the environment; `rest.tar` are all files that are not large."""

    path: str
    mode: int
    sha256: str
    size: int


def bytes_of_archive(sealed: Sequence[SealedFile]) -> int:
    """What a host needs that has the sealed contents: large files are moved, the archive is unpacked."""
    return sum(each.size for each in sealed if each.path == ARCHIVE)


def environment_files(
    pinned: PinnedEnvironment,
    minor: str,
    installer: bytes,
    *,
    machine: str = X86,
    seal: bool = False,
    sealed: Sequence[SealedFile] = (),
) -> dict[str, bytes]:
    """What a host needs in the working directory of `python3 env_install.py`, by file name; wheels apart. It is
    to `seal` what it installs, or makes it of what is `sealed`."""
    spec, lock = pinned.spec, pinned.packages
    wheels = [] if spec.install_from is InstallFrom.INDEX else wheels_for(lock, minor, machine)
    archive = archive_of(pinned)
    request = {
        "key": environment_key(pinned, minor, machine),
        "name": spec.name,
        "python": minor,
        "imports": list(spec.imports),
        "variables": run_variables(spec),
        "wheels": [_named(wheel) for wheel in wheels],
        "installer": _named(lock.installer) if lock.installer is not None else None,
        "archive": _named(archive) if archive is not None else None,
        "files": [
            {"name": f.to.rpartition("/")[2], "to": f.to, "sha256": f.sha256, "source": f.source}
            for f in spec.files
        ],
        "unmanaged": to_data(spec.unmanaged) if spec.unmanaged is not None else None,
        "os_packages": dict(spec.os_packages),
        "wheelhouse": pinned.wheelhouse,
        "bytes": bytes_of_archive(sealed) if sealed else bytes_needed(pinned, minor),
        "seal": seal,
        "sealed": [astuple(each) for each in sealed],
        "probe": pinned.probe,
    }
    return {
        "env_install.py": installer,
        "requirements.txt": requirement_lines(lock, minor, machine).encode(),
        "env.json": (json.dumps(request, indent=1, sort_keys=True) + "\n").encode(),
    }


def _named(wheel: Wheel) -> dict[str, str]:
    return {"name": wheel.name, "sha256": wheel.sha256}
