"""The type of a disk where no slice says what it is for: by the generations of its zone, asked for where they
differ, because a disk of the wrong type is found out when nothing can attach it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tpuctl.disks.rules import DiskRules
from tpuctl.errors import UsageError
from tpuctl.model.shipped_files import load_accelerators


class Purpose(Struct, frozen=True):
    """What a disk is for: slices of a generation, of so many hosts. No generation: nobody has said."""

    generation: str = ""
    hosts: int = 1


def parse_purpose(text: str) -> Purpose:
    """Of an accelerator type such as `v6e-16`, or a generation alone. Raises UsageError for what is neither."""
    catalog = load_accelerators()
    generation = catalog.find_generation(text)
    if generation is not None:
        return Purpose(generation.name)
    found = catalog.get(text)
    return Purpose(found.generation, found.hosts)


def generations_in(zone: str) -> tuple[str, ...]:
    """The generations that the tables know in a zone."""
    types = load_accelerators().types.values()
    there = (each for each in types if each.in_tpu_api and zone in (*each.zones, *each.listed_zones))
    return tuple(sorted({each.generation for each in there}))


def shared_type_in(rules: DiskRules, own: str, zone: str, generation: str = "") -> str | None:
    """The type of a read-only copy of an `own` disk in a zone; None where there is none. Raises UsageError
    where the generations of the zone need different ones and none was said."""
    return _agreed(zone, generation, lambda each: rules.shared_type(own, each))


def new_type_in(rules: DiskRules, zone: str, generation: str = "") -> str:
    """The type of a new disk in a zone. Raises UsageError as `shared_type_in`."""
    return _agreed(zone, generation, rules.new_type) or rules.new_type("")


def _agreed(zone: str, generation: str, choose: Callable[[str], str | None]) -> str | None:
    if generation:
        return choose(generation)
    takers: dict[str, list[str]] = {}
    for each in generations_in(zone):
        kind = choose(each)
        if kind is not None:
            takers.setdefault(kind, []).append(each)
    if len(takers) > 1:
        rows = "; ".join(f"{kind} for {', '.join(names)}" for kind, names in takers.items())
        last = list(takers)[-1]
        hint = f"--for {takers[last][-1]} (or an accelerator type), or --type {last}"
        raise UsageError.of("type", f"slices in {zone} need disks of different types: {rows}", hint)
    return next(iter(takers), None) if takers else choose("")
