"""Lock files (PEP 751, `pylock.NAME.toml`): exact versions, where each wheel is, and its sha256.

The standard's text: https://packaging.python.org/en/latest/specifications/pylock-toml/. A lock is for Linux and
for the Python versions of its environment; packages that only some of these need have a marker.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import BadManifestError
from tpuctl.lib.codec import parse_toml

X86 = "x86_64"
"""The machine of all hosts so far, as uname(2) and the tags of wheels call it."""
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_CUDA_NAMES = re.compile(r"(nvidia-|triton\Z|pytorch-triton|cuda-)")


@dataclass(frozen=True)
class Wheel:
    """One file of a package. `size` in bytes; 0 where nobody has asked."""

    name: str
    url: str
    sha256: str
    size: int = 0


@dataclass(frozen=True)
class LockedPackage:
    """A package at its exact version. `marker`: when it is needed, by PEP 508; empty for always."""

    name: str
    version: str
    wheels: tuple[Wheel, ...]
    marker: str = ""


@dataclass(frozen=True)
class Lock:
    """`asked` is the digest of the requirements that it was made from, so that an old one is noticed.

    `installer` is uv itself, which hosts need to install the rest; `python` an interpreter for hosts that lack
    the version.
    """

    requires_python: str
    packages: tuple[LockedPackage, ...]
    asked: str = ""
    installer: Wheel | None = None
    python: Wheel | None = None


def parse_lock(text: str, name: str) -> Lock:
    """The lock in `text`. Raises BadManifestError naming the package: no hash, no wheel, no version."""
    again = f"tpuctl env lock {name}"
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise BadManifestError(f"{file_name(name)} is not valid TOML: {error}", hint=again) from error
    if not str(data.get("lock-version", "")).startswith("1."):
        raise BadManifestError(f"{file_name(name)} is not a lock file of PEP 751, version 1", hint=again)
    entries = data.get("packages", [])
    if not isinstance(entries, list):
        raise BadManifestError(f"{file_name(name)}: packages must be a list of tables", hint=again)
    own = _table(_table(data.get("tool")).get("tpuctl"))
    try:
        return Lock(
            requires_python=str(data.get("requires-python", "")),
            packages=tuple(_package(entry) for entry in entries),
            asked=str(own.get("asked", "")),
            installer=_wheel("uv", own["installer"]) if "installer" in own else None,
            python=_wheel("python", own["python"]) if "python" in own else None,
        )
    except BadManifestError as error:
        raise BadManifestError(f"{file_name(name)}: {error.message}", hint=again) from error


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _package(data: Any) -> LockedPackage:
    entry = _table(data)
    name, version = entry.get("name"), entry.get("version")
    if not isinstance(name, str) or not isinstance(version, str):
        raise BadManifestError(f"the package {name!r} has no exact version")
    wheels = entry.get("wheels", [])
    if not isinstance(wheels, list) or not wheels:
        raise BadManifestError(f"{name} {version} has no wheel, and nothing is built on the hosts")
    found = tuple(_wheel(f"{name} {version}", wheel) for wheel in wheels)
    return LockedPackage(normal(name), version, found, str(entry.get("marker", "")))


def _wheel(package: str, data: Any) -> Wheel:
    entry = _table(data)
    where = entry.get("url") or entry.get("path")
    if not isinstance(where, str) or not where:
        raise BadManifestError(f"a wheel of {package} has no address")
    digest = _table(entry.get("hashes")).get("sha256")
    if not isinstance(digest, str) or not _SHA256.match(digest):
        raise BadManifestError(f"a wheel of {package} has no sha256")
    name = entry.get("name") or where.split("#")[0].split("?")[0].rpartition("/")[2]
    size = entry.get("size", 0)
    return Wheel(_unquoted(str(name)), where, digest, size if isinstance(size, int) else 0)


def _unquoted(name: str) -> str:
    from urllib.parse import unquote

    found = unquote(name)
    if "/" in found or found.startswith("."):
        raise BadManifestError(f"{name!r} is not the name of a file")
    return found


def render_lock(lock: Lock) -> str:
    """The lock as a file; the same lock gives the same text."""
    lines = ['lock-version = "1.0"', 'created-by = "tpuctl"']
    if lock.requires_python:
        lines.append(f"requires-python = {json.dumps(lock.requires_python)}")
    for package in sorted(lock.packages, key=lambda each: (each.name, each.version, each.marker)):
        lines += ["", "[[packages]]", f"name = {json.dumps(package.name)}"]
        lines.append(f"version = {json.dumps(package.version)}")
        if package.marker:
            lines.append(f"marker = {json.dumps(package.marker)}")
        lines += ["wheels = [", *(f"  {_inline(wheel)}," for wheel in package.wheels), "]"]
    lines += ["", "[tool.tpuctl]", f"asked = {json.dumps(lock.asked)}"]
    for name, wheel in (("installer", lock.installer), ("python", lock.python)):
        if wheel is not None:
            lines.append(f"{name} = {_inline(wheel)}")
    return "\n".join(lines) + "\n"


def _inline(wheel: Wheel) -> str:
    where = "url" if "://" in wheel.url else "path"
    return (
        f"{{ name = {json.dumps(wheel.name)}, {where} = {json.dumps(wheel.url)}, "
        f"{f'size = {wheel.size}, ' if wheel.size else ''}"
        f'hashes = {{ sha256 = "{wheel.sha256}" }} }}'
    )


def file_name(name: str) -> str:
    """The lock file of an environment, as PEP 751 names it."""
    return f"pylock.{name}.toml"


def packages_for(lock: Lock, minor: str, machine: str = X86) -> list[LockedPackage]:
    """The packages that a Linux host with Python `minor` (such as 3.12) needs."""
    return [package for package in lock.packages if _holds(package.marker, minor, machine)]


def wheels_for(lock: Lock, minor: str, machine: str = X86) -> list[Wheel]:
    """The one wheel of each package that fits Python `minor` there, best first as pip chooses.

    Raises BadManifestError that names the packages that have none.
    """
    lacking = missing_wheels(lock, minor, machine)
    if lacking:
        raise BadManifestError(
            f"{', '.join(lacking)}: no wheel for Python {minor} on {machine}",
            hint="another version, or another Python",
        )
    return [_fitting(package, minor, machine)[0] for package in packages_for(lock, minor, machine)]


def missing_wheels(lock: Lock, minor: str, machine: str = X86) -> list[str]:
    """The packages, as `NAME VERSION`, of which no wheel fits Python `minor` there."""
    return [
        f"{package.name} {package.version}"
        for package in packages_for(lock, minor, machine)
        if not _fitting(package, minor, machine)
    ]


def _fitting(package: LockedPackage, minor: str, machine: str) -> list[Wheel]:
    ranked = [(wheel_rank(wheel.name, minor, machine), wheel) for wheel in package.wheels]
    return [wheel for rank, wheel in sorted(ranked, key=lambda each: (-each[0], each[1].name)) if rank]


def wheel_rank(name: str, minor: str, machine: str = X86) -> int:
    """How well a wheel fits CPython `minor` on Linux there; 0 if it does not. Higher is more specific."""
    try:
        _, python, abi, platform = name.removesuffix(".whl").rsplit("-", 3)
    except ValueError:
        return 0
    if platform != "any" and not any(
        each.endswith(f"_{machine}") and _LINUX.match(each) for each in platform.split(".")
    ):
        return 0
    own, major = f"cp{minor.replace('.', '')}", "py3"
    tags = python.split(".")
    if own in tags and own in abi.split("."):
        return 4
    if "abi3" in abi.split(".") and any(_stable(tag, own) for tag in tags):
        return 3
    if abi == "none" and (own in tags or "cp3" in tags):
        return 2
    return 1 if abi == "none" and any(tag == major or _pure(tag, minor) for tag in tags) else 0


_LINUX = re.compile(r"(many)?linux")


def _stable(tag: str, own: str) -> bool:
    return tag.startswith("cp3") and tag[3:].isdigit() and int(tag[3:] or 0) <= int(own[3:])


def _pure(tag: str, minor: str) -> bool:
    return tag.startswith("py3") and tag[3:].isdigit() and int(tag[3:]) <= int(minor.partition(".")[2])


def _holds(marker: str, minor: str, machine: str) -> bool:
    if not marker:
        return True
    from packaging.markers import InvalidMarker, Marker

    environment = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{minor}.99",
        "python_version": minor,
        "sys_platform": "linux",
    }
    try:
        return Marker(marker).evaluate(environment)
    except InvalidMarker as error:
        raise BadManifestError(f"the marker {marker!r} in a lock file cannot be read") from error


def requirement_lines(lock: Lock, minor: str, machine: str = X86) -> str:
    """What pip and uv take with `--require-hashes`: a line for each package, without markers."""
    lines = []
    for package in packages_for(lock, minor, machine):
        hashes = sorted({wheel.sha256 for wheel in package.wheels})
        lines.append(f"{package.name}=={package.version} " + " ".join(f"--hash=sha256:{h}" for h in hashes))
    return "\n".join(sorted(lines)) + "\n"


def versions_of(lock: Lock, minor: str) -> dict[str, str]:
    """{package: version} for Python `minor`."""
    return {package.name: package.version for package in packages_for(lock, minor)}


def cuda_builds(lock: Lock) -> list[str]:
    """Packages that are for NVIDIA's devices: 4 GB that a TPU host has no use for."""
    found = []
    for package in lock.packages:
        from_pypi = any("pythonhosted.org" in wheel.url for wheel in package.wheels)
        cuda_torch = package.name == "torch" and "+cpu" not in package.version and from_pypi
        if _CUDA_NAMES.match(package.name) or cuda_torch or re.search(r"\+cu\d", package.version):
            found.append(f"{package.name} {package.version}")
    return found


def cuda_hint(builds: Sequence[str]) -> str:
    """How to get rid of these. A torch for CUDA cannot be imported without its libraries, so there `exclude` is
    no way out."""
    names = [build.partition(" ")[0] for build in builds]
    if "torch" in names:
        return "indexes: [https://download.pytorch.org/whl/cpu], and torch==VERSION+cpu"
    return f"exclude: [{', '.join(names)}]"


def requirements_digest(
    requirements: Iterable[str], python: Sequence[str], indexes: Iterable[str], exclude: Sequence[str] = ()
) -> str:
    """Digest of what a lock is made from."""
    content = [sorted(requirements), list(python), list(indexes), *([sorted(exclude)] if exclude else [])]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def normal(name: str) -> str:
    """A package name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
