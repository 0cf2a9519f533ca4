"""What the facts of a host say of its environments, as columns that can be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.envs.pinned import SealedFile
from tpuctl.hosts.facts import Environment, Facts

MIB = 1 << 20
SHOWN_FILES = 3
INTERPRETER = "bin/python"
"""Counts as changed in an environment whose interpreter is not on the host any more."""


def find_environment(facts: Facts, key: str) -> Environment | None:
    """The environment of that key on the host."""
    return next((each for each in facts.envs or () if each.key == key), None)


def find_sealed(facts: Facts, key: str) -> tuple[SealedFile, ...]:
    """What the host holds ready of that environment for others."""
    found = find_environment(facts, key)
    rows = (found.mark or {}).get("sealed") if found is not None and not found.changed else None
    return tuple(SealedFile(*row) for row in rows or ())


def find_interpreter(facts: Facts, wanted: Sequence[str]) -> str | None:
    """The version of those wanted that the host has: that of its python3 before others."""
    there = [each.minor for each in facts.pythons or ()]
    return next((minor for minor in there if minor in wanted), None)


def free_bytes(facts: Facts) -> int | None:
    """Free bytes where environments are; None where that is not known."""
    home = next(iter(facts.space or ()), None)  # it is told of first
    return home.free_bytes if home is not None and not home.error else None


def host_columns(facts: Facts, key: str) -> dict[str, str]:
    """What the installer and the interpreter said, one text a column."""
    found = find_environment(facts, key)
    mark: Mapping[str, Any] = (found.mark if found is not None else None) or {}
    packages = {str(name): str(version) for name, version in (mark.get("packages") or {}).items()}
    libtpu = mark.get("libtpu") or {}
    columns = {
        "environment_key": key,
        "packages_sha256": hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest(),
        "packages": " ".join(f"{name}=={version}" for name, version in sorted(packages.items())),
        "environment_python": str(mark.get("python", "")),
    }
    if libtpu:
        columns |= {f"libtpu_{name}": str(libtpu.get(name, "")) for name in ("path", "sha256", "pjrt")}
    if mark.get("effective"):
        columns["effective"] = json.dumps(mark["effective"], sort_keys=True)
    return columns
