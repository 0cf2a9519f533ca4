"""The type of a disk where no slice says what it is for: by the generations of its zone, asked for where they
differ, because a disk of the wrong type is found out when nothing can attach it."""

from __future__ import annotations

from collections.abc import Callable

from tpuctl.disks.rules import DiskRules, refuse
from tpuctl.errors import UsageError
from tpuctl.model.disks import DiskRequest
from tpuctl.model.requests import CreateRequest
from tpuctl.model.shipped_files import load_accelerators


def generations_in(zone: str) -> tuple[str, ...]:
    """The generations that the tables know in a zone."""
    types = load_accelerators().types.values()
    there = (each for each in types if zone in (*each.zones, *each.listed_zones))
    return tuple(sorted({each.generation for each in there}))


def shared_type_in(rules: DiskRules, own: str, zone: str, generation: str = "") -> str | None:
    """The type of a read-only copy of an `own` disk in a zone; None where there is none. Raises UsageError
    where the generations of the zone need different ones and none was said."""
    return _agreed(zone, generation, lambda each: rules.shared_type(own, each))


def new_type_in(rules: DiskRules, zone: str, generation: str = "") -> str:
    """The type of a new disk in a zone. Raises UsageError as `shared_type_in`."""
    return _agreed(zone, generation, rules.new_type) or rules.new_type("")


def resolve_new(rules: DiskRules, request: CreateRequest, *, default_zone: str) -> DiskRequest:
    """The disk that `disk create` asks for. Raises UsageError for one that cannot be."""
    zone, goal = request.zone or default_zone, request.purpose
    if not zone:
        raise UsageError("in which zone?", hint="--zone ZONE: that of the slices that will use it")
    kind, rate = request.type or new_type_in(rules, zone, goal.generation), request.throughput
    if rate is None:
        rate = rules.throughput_for(kind, request.size, goal.hosts)
    refuse([*rules.check_new(kind, request.size, rate), *rules.check_type(kind, goal.generation)])
    return DiskRequest(request.name, zone, kind, request.size, {}, rate)


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
