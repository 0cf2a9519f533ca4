"""Pinned environments: what an environment file says, and the key that its content gives it.

An environment file (`manifests/env/NAME.yaml`) has one lock file per Python version: exact versions with
hashes, one Python each, so without markers. Installing is done on the hosts by
`templates/env_install.py`; nothing here reads files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpuctl.errors import BadManifestError
from tpuctl.lib.codec import from_data, to_data
from tpuctl.lib.text import suggest

KEYS = ("name", "description", "python", "verify", "variables")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?\Z")
_MINOR = re.compile(r"3\.\d+\Z")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


@dataclass(frozen=True)
class EnvironmentSpec:
    """A pinned environment. `locks` maps a Python version such as `3.11` to the text of its lock file."""

    name: str
    locks: Mapping[str, str]
    description: str = ""
    verify: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def parse_environment(data: Any, locks: Mapping[str, str]) -> EnvironmentSpec:
    """The environment that a parsed YAML file describes; `locks` maps lock file names to their text.

    Raises BadManifestError naming the key: unknown, missing, of the wrong kind, or a lock file without exact
    versions and hashes.
    """
    if not isinstance(data, Mapping):
        raise BadManifestError("an environment file must be a mapping of keys to values")
    _refuse_unknown(data)
    name = data.get("name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise BadManifestError(
            f"environment name {name!r} is not usable", hint="use up to 40 lower-case letters, digits and `-`"
        )
    return EnvironmentSpec(
        name=name,
        locks=_locks(name, data.get("python"), locks),
        description=str(data.get("description", "")),
        verify=_modules(name, data.get("verify", [])),
        variables=_variables(name, data.get("variables", {})),
    )


def pins(lock_text: str) -> dict[str, str]:
    """{package: exact version} of a lock file, names as PEP 503 compares them.

    Raises BadManifestError for a line that is no exact version with a sha256 hash, or that has a marker.
    """
    found: dict[str, str] = {}
    for entry in _entries(lock_text):
        match = _PIN.match(entry)
        if match is None or ";" in entry:
            raise BadManifestError(
                f"lock file line {entry.split(' --hash')[0]!r} is not an exact version",
                hint="make the file with `uv pip compile --generate-hashes --python-version 3.x`",
            )
        if not _HASH.search(entry):
            raise BadManifestError(
                f"{match.group(0)} in the lock file has no sha256 hash",
                hint="make the file with `uv pip compile --generate-hashes`",
            )
        found[_normal(match.group(1))] = match.group(2)
    return found


def environment_key(spec: EnvironmentSpec, python_minor: str) -> str:
    """16 hex digits derived from what is installed and verified; name and comments do not count.

    Raises BadManifestError when the environment has no lock file for that Python.
    """
    content = {
        "python": python_minor,
        "lock": sorted(_entries(lock_for(spec, python_minor))),
        "verify": sorted(spec.verify),
        "variables": dict(spec.variables),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def lock_for(spec: EnvironmentSpec, python_minor: str) -> str:
    """The lock file for a Python version such as `3.11`; BadManifestError when there is none."""
    if python_minor not in spec.locks:
        known = ", ".join(sorted(spec.locks, key=_version))
        raise BadManifestError(
            f"environment {spec.name} has no lock file for Python {python_minor}, only for {known}",
            hint=f"install one of these Pythons on the hosts, or add a lock file for {python_minor}",
        )
    return spec.locks[python_minor]


def environment_files(spec: EnvironmentSpec, python_minor: str, installer: bytes) -> dict[str, bytes]:
    """What a host needs in the working directory of `python3 env_install.py`: {file name: content}."""
    request = {
        "key": environment_key(spec, python_minor),
        "name": spec.name,
        "python": python_minor,
        "verify": list(spec.verify),
        "variables": dict(spec.variables),
    }
    return {
        "env_install.py": installer,
        "requirements.txt": lock_for(spec, python_minor).encode(),
        "env.json": (json.dumps(request, indent=1, sort_keys=True) + "\n").encode(),
    }


def render_frozen(spec: EnvironmentSpec) -> bytes:
    """The whole environment, lock files included, as one JSON blob: what a run keeps for all its attempts."""
    return (json.dumps(to_data(spec), indent=1, sort_keys=True) + "\n").encode()


def parse_frozen(content: bytes) -> EnvironmentSpec:
    """What `render_frozen` was given. Raises BadManifestError for anything else."""
    try:
        return from_data(EnvironmentSpec, json.loads(content))
    except ValueError as error:
        raise BadManifestError(f"the frozen environment of the run cannot be read: {error}") from error


def _refuse_unknown(data: Mapping[Any, Any]) -> None:
    for key in data:
        if key not in KEYS:
            near = suggest(str(key), KEYS)
            raise BadManifestError(
                f"unknown key {key!r} in an environment file",
                hint=f"did you mean `{near}`?" if near else f"known keys: {', '.join(KEYS)}",
                details={"key": str(key)},
            )


def _locks(name: str, python: Any, locks: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(python, Mapping) or not python:
        raise BadManifestError(
            f"environment {name}: key `python` must map Python versions to lock files",
            hint='python: {"3.11": NAME.py311.txt}',
        )
    found = {}
    for minor, file in python.items():
        # An unquoted 3.10 is the number 3.1 in YAML.
        if not isinstance(minor, str) or not _MINOR.match(minor):
            raise BadManifestError(
                f"environment {name}: python version {minor!r} must be a quoted string", hint='write "3.11"'
            )
        if file not in locks:
            raise BadManifestError(
                f"environment {name}: lock file {file!r} for Python {minor} does not exist",
                hint="lock files stand beside the environment file",
            )
        if not pins(locks[file]):
            raise BadManifestError(f"environment {name}: lock file {file!r} is empty")
        found[minor] = locks[file]
    return found


def _modules(name: str, modules: Any) -> tuple[str, ...]:
    if not isinstance(modules, list):
        raise BadManifestError(f"environment {name}: key `verify` must be a list of modules")
    for module in modules:
        if not isinstance(module, str) or not _MODULE.match(module):
            raise BadManifestError(f"environment {name}: {module!r} under `verify` is not a module name")
    return tuple(modules)


def _variables(name: str, variables: Any) -> dict[str, str]:
    if not isinstance(variables, Mapping):
        raise BadManifestError(f"environment {name}: key `variables` must map names to values")
    for key, value in variables.items():
        if not isinstance(key, str) or not _VARIABLE.match(key):
            raise BadManifestError(f"environment {name}: {key!r} is not the name of a variable")
        # `true` or `08` unquoted would reach the host as something else than what was written.
        if not isinstance(value, str):
            raise BadManifestError(
                f"environment {name}: the value of variable {key} must be a string", hint=f'{key}: "{value}"'
            )
    return dict(variables)


def _entries(lock_text: str) -> list[str]:
    """The logical lines of a lock file: comments gone, continuation lines joined, blanks normalised."""
    joined = lock_text.replace("\\\n", " ")
    lines = (" ".join(line.split()) for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _version(minor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", minor))
