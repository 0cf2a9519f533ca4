"""How two environments differ: of two files, of a file and what hosts have, of the hosts of two slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.envs.lock import versions_of
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.rules import required_versions
from tpuctl.envs.spec import run_variables
from tpuctl.hosts.facts import Environment, FactsReply
from tpuctl.lib.codec import to_data
from tpuctl.lib.text import fold_workers


def differences(first: PinnedEnvironment, second: PinnedEnvironment) -> list[dict[str, Any]]:
    """A row for each property that only one has or that is not the same: {item, first, second}."""
    return difference_rows(_properties(first), _properties(second))


def difference_rows(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of `differences`, of properties by their names."""
    names = [*one, *(name for name in other if name not in one)]
    return [
        {"item": name, "first": one.get(name), "second": other.get(name)}
        for name in names
        if one.get(name) != other.get(name)
    ]


def installed_properties(found: PinnedEnvironment) -> dict[str, str]:
    """What of a file can be seen on a host where it is installed: `properties_on_host` has the same names."""
    return {
        name: str(value)
        for name, value in _properties(found).items()
        if name == "python" or name.startswith("package ")
    }


def properties_on_host(found: Environment) -> dict[str, str]:
    """What a host says of an environment that it has."""
    mark = found.mark or {}
    properties = {"python": ".".join(str(mark.get("python", "")).split(".")[:2])}
    properties |= {
        f"package {name}": str(version) for name, version in sorted((mark.get("packages") or {}).items())
    }
    if found.changed:
        properties["changed files"] = ", ".join(found.changed)
    return properties


def properties_of_machine(facts: FactsReply) -> dict[str, str]:
    """What a host says of itself, apart from its environments."""
    properties: dict[str, str] = {}
    if facts.host is not None:
        properties |= {
            "kernel of the host": facts.host.kernel,
            "system of the host": facts.host.os,
            "machine of the host": facts.machine,
            "NUMA nodes": str(facts.host.numa_nodes),
            "network interfaces": str(facts.host.nics),
        }
    if facts.kernel is not None:
        properties["hugepages"] = facts.kernel.transparent_hugepages
        properties["memlock"] = str(facts.kernel.memlock_bytes[0] or "unlimited")
    if facts.chips is not None:
        properties["chips"] = str(len(facts.chips.devices))
    return properties | {
        f"variable {name}": each.value for name, each in sorted((facts.variables or {}).items())
    }


def fold_properties(hosts: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """Properties of many hosts, by worker, as those of one: where they differ, with the workers."""
    names = list(dict.fromkeys(name for properties in hosts.values() for name in properties))
    return {
        name: _folded({worker: properties.get(name, "none") for worker, properties in hosts.items()})
        for name in names
    }


def _folded(values: Mapping[int, str]) -> str:
    groups: dict[str, list[int]] = {}
    for worker, value in sorted(values.items()):
        groups.setdefault(value, []).append(worker)
    if len(groups) == 1:
        return next(iter(groups))
    return ", ".join(f"{value} (worker {fold_workers(workers)})" for value, workers in groups.items())


def pick_environment(facts: FactsReply, keys: Sequence[str], name: str | None) -> Environment | None:
    """The environment of a host that is meant: the first of `keys` that it has, else the only one called `name`
    (of any name for None)."""
    whole = [each for each in facts.envs or () if each.mark is not None]
    for key in keys:
        found = next((each for each in whole if each.key == key), None)
        if found is not None:
            return found
    named = [each for each in whole if name is None or (each.mark or {}).get("name") == name]
    return named[0] if len(named) == 1 else None


def _properties(found: PinnedEnvironment) -> Mapping[str, Any]:
    """What is installed, set and verified, by its name for a person."""
    spec = found.spec
    properties: dict[str, Any] = {
        "backend": str(spec.backend),
        "python": ", ".join(spec.python),
        "generations": ", ".join(spec.generations) or "any",
        "compile_cache": spec.compile_cache,
        "per": spec.per or "host",
        "progress": spec.progress or "none",
    }
    versions = versions_of(found.packages, spec.python[0]) if found.lock else required_versions(spec)
    properties |= {f"package {name}": version for name, version in sorted(versions.items())}
    properties |= {f"file {file.to}": file.sha256[:12] for file in spec.files}
    properties |= {f"os package {name}": version for name, version in sorted(spec.os_packages.items())}
    properties |= {f"variable {name}": value for name, value in sorted(run_variables(spec).items())}
    properties |= {f"kernel {name}": value for name, value in to_data(spec.kernel).items() if value is not None}
    properties["imports"] = ", ".join(spec.imports)
    return properties
