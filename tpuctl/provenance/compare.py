"""What differs between two manifests, by section. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.provenance.manifest import Row

OWN = frozenset({"run.id", "run.created", "run.wandb_id", "end.ended"})
"""What is another in every run, and says nothing."""
SECTIONS = (
    "run", "command", "code", "configuration", "environment", "variables", "slice", "data", "synthetic",
    "checks", "hosts", "mounts", "disks", "end",
)  # fmt: skip
"""In this order. Hosts, mounts and disks are those of the last attempt."""
ABSENT = "-"
OF_A_BOOT = frozenset({"address", "boot_id", "host_key", "hostname"})
"""Columns of a host that are another for every machine."""


class Difference(Struct, frozen=True):
    """One value that differs; None for what one of the two does not have."""

    section: str
    key: str
    left: str | None
    right: str | None


def compare(left: Row, right: Row) -> list[Difference]:
    """The differences of two whole manifests. Empty where both ran the same, in the same way, on like hosts."""
    found = []
    for section in SECTIONS:
        one, other = dict(_leaves(_section(left, section))), dict(_leaves(_section(right, section)))
        for key in sorted({*one, *other}):
            name = f"{section}.{key}" if key else section
            if one.get(key) != other.get(key) and name not in OWN:
                found.append(Difference(section, key, one.get(key), other.get(key)))
    return found


def _section(manifest: Row, section: str) -> Any:
    if section == "data":
        return {str(row.get("uri")): _data(row) for row in manifest.get(section) or ()}
    if section == "variables":
        return {**(manifest.get(section) or {}), "effective": _effective(manifest)}
    if section == "checks":
        return {str(row.get("check")): row.get("detail") for row in manifest.get(section) or ()}
    if section not in ("hosts", "mounts", "disks"):
        return manifest.get(section)
    attempts = manifest.get("attempts") or ()
    rows = attempts[-1].get(section) or () if attempts else ()
    return _folded(rows) if section == "hosts" else list(rows)


def _effective(manifest: Row) -> dict[str, str]:
    """Variables of the programs of the last attempt, each with all its values."""
    attempts = manifest.get("attempts") or ()
    values: dict[str, list[str]] = {}
    for row in (attempts[-1].get("variables") or ()) if attempts else ():
        values.setdefault(str(row.get("name")), []).append(str(row.get("value")))
    return {name: " | ".join(sorted(found)) for name, found in values.items()}


def _data(row: Row) -> dict[str, Any]:
    """A receipt without what says the same again: its own digest, and how its contract was checked."""
    return {key: value for key, value in row.items() if key not in ("uri", "sha256", "schema", "checks")}


def _folded(rows: Sequence[Row]) -> dict[str, str]:
    """Each column once, with all values that hosts have: which of them has it says nothing about a run."""
    columns = sorted({key for row in rows for key in row if key not in OF_A_BOOT and key != "worker"})
    return {
        column: " | ".join(sorted({str(row.get(column, ABSENT)) for row in rows})) for column in columns
    } | {"count": str(len(rows))}


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every value below `value` as a line, with the path to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{prefix}[{number}]")
    elif isinstance(value, list | tuple):
        if value:
            yield prefix, " ".join(map(str, value))
    elif value is not None:
        yield prefix, str(value)
