"""In what two environments differ: of two files, of a file and what hosts have, of the hosts of two slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.envs.load import Environment
from tpuctl.envs.lock import versions_of
from tpuctl.envs.rules import asked_versions
from tpuctl.envs.spec import run_variables
from tpuctl.hosts.facts import Environment as HostEnvironment
from tpuctl.hosts.facts import Facts
from tpuctl.lib.codec import to_data
from tpuctl.lib.text import fold_workers


def differences(first: Environment, second: Environment) -> list[dict[str, Any]]:
    """A row for each thing that only one has or that is not the same: {item, first, second}."""
    return difference_rows(_things(first), _things(second))


def difference_rows(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of `differences`, of things by their names."""
    names = [*one, *(name for name in other if name not in one)]
    return [
        {"item": name, "first": one.get(name), "second": other.get(name)}
        for name in names
        if one.get(name) != other.get(name)
    ]


def installed_things(found: Environment) -> dict[str, str]:
    """What of a file can be seen on a host where it is installed: `things_on_host` has the same names."""
    return {
        name: str(value)
        for name, value in _things(found).items()
        if name == "python" or name.startswith("package ")
    }


def things_on_host(found: HostEnvironment) -> dict[str, str]:
    """What a host says of an environment that it has."""
    mark = found.mark or {}
    things = {"python": ".".join(str(mark.get("python", "")).split(".")[:2])}
    things |= {
        f"package {name}": str(version) for name, version in sorted((mark.get("packages") or {}).items())
    }
    if found.changed:
        things["changed files"] = ", ".join(found.changed)
    return things


def things_of_machine(facts: Facts) -> dict[str, str]:
    """What a host says of itself, apart from its environments."""
    things: dict[str, str] = {}
    if facts.host is not None:
        things |= {"kernel of the host": facts.host.kernel, "system of the host": facts.host.os}
    if facts.kernel is not None:
        things["hugepages"] = facts.kernel.transparent_hugepages
        things["memlock"] = str(facts.kernel.memlock_bytes[0] or "unlimited")
    if facts.chips is not None:
        things["chips"] = str(len(facts.chips.devices))
    return things | {f"variable {name}": each.value for name, each in sorted((facts.variables or {}).items())}


def fold_things(hosts: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """Things of many hosts, by worker, as those of one: where they differ, with the workers."""
    names = list(dict.fromkeys(name for things in hosts.values() for name in things))
    return {
        name: _folded({worker: things.get(name, "none") for worker, things in hosts.items()}) for name in names
    }


def _folded(values: Mapping[int, str]) -> str:
    groups: dict[str, list[int]] = {}
    for worker, value in sorted(values.items()):
        groups.setdefault(value, []).append(worker)
    if len(groups) == 1:
        return next(iter(groups))
    return ", ".join(f"{value} (worker {fold_workers(workers)})" for value, workers in groups.items())


def pick_environment(facts: Facts, keys: Sequence[str], name: str | None) -> HostEnvironment | None:
    """The environment of a host that is meant: the first of `keys` that it has, else the only one called `name`
    (of any name for None)."""
    whole = [each for each in facts.envs or () if each.mark is not None]
    for key in keys:
        found = next((each for each in whole if each.key == key), None)
        if found is not None:
            return found
    named = [each for each in whole if name is None or (each.mark or {}).get("name") == name]
    return named[0] if len(named) == 1 else None


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
