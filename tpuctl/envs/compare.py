"""In what two environments differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.envs.load import Environment
from tpuctl.envs.lock import versions_of
from tpuctl.envs.rules import asked_versions
from tpuctl.envs.spec import run_variables
from tpuctl.lib.codec import to_data


def differences(first: Environment, second: Environment) -> list[dict[str, Any]]:
    """A row for each thing that only one has or that is not the same: {item, first, second}."""
    one, other = _things(first), _things(second)
    names = [*one, *(name for name in other if name not in one)]
    return [
        {"item": name, "first": one.get(name), "second": other.get(name)}
        for name in names
        if one.get(name) != other.get(name)
    ]


def _things(found: Environment) -> Mapping[str, Any]:
    """What is installed, set and verified, by its name for a person."""
    spec = found.spec
    things: dict[str, Any] = {
        "backend": str(spec.backend),
        "python": ", ".join(spec.python),
        "generations": ", ".join(spec.generations) or "any",
        "compile_cache": spec.compile_cache,
    }
    versions = versions_of(found.lock, spec.python[0]) if found.lock is not None else asked_versions(spec)
    things |= {f"package {name}": version for name, version in sorted(versions.items())}
    things |= {f"file {file.to}": file.sha256[:12] for file in spec.files}
    things |= {f"os package {name}": version for name, version in sorted(spec.os_packages.items())}
    things |= {f"variable {name}": value for name, value in sorted(run_variables(spec).items())}
    things |= {f"kernel {name}": value for name, value in to_data(spec.kernel).items() if value is not None}
    things["imports"] = ", ".join(spec.imports)
    return things
