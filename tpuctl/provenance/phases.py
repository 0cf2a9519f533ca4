"""Where the time of a run went, and what each phase of it cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from tpuctl.model.attempts import RunTotals
from tpuctl.provenance.manifest import PhaseCost, Phases, Row

PHASES = ("waiting", "provisioning", "preparing", "first_step", "training", "lost", "unseen")
"""In the order in which an attempt goes through them. They do not overlap: together they are its whole time."""


def sum_phases(rows: Iterable[Row]) -> Phases:
    """Phases of several attempts together; a phase that one of them does not know is not known of all."""
    listed = list(rows)
    names = Phases.__struct_fields__

    def total(name: str) -> float | None:
        values = [row[name] for row in listed if row.get(name) is not None]
        return round(sum(values), 1) if values and len(values) == len(listed) else None

    unseen = round(sum(row.get("unseen_s") or 0.0 for row in listed), 1)  # earlier versions knew no such time
    return Phases(**{**{name: total(name) for name in names}, "unseen_s": unseen})


def goodput(phases: Row) -> float | None:
    """The share of the time from the request to the end in which the program ran and its work was not lost;
    None where that is not known."""
    running, lost = phases.get("running_s"), phases.get("lost_s")
    parts = [phases.get(name) for name in ("waiting_s", "provisioning_s", "preparing_s")]
    if running is None or lost is None or None in parts:
        return None
    whole = running + sum(part for part in (*parts, phases.get("unseen_s")) if part is not None)
    return round(max(0.0, running - lost) / whole, 4) if whole else None


def split_phases(phases: Row) -> dict[str, float]:
    """Seconds of an attempt by `PHASES`. What is not known is 0: the life of the program is then training."""
    running = float(phases.get("running_s") or 0.0)
    first = min(float(phases.get("first_step_s") or 0.0), running)
    lost = min(float(phases.get("lost_s") or 0.0), running - first)
    before = {name: float(phases.get(f"{name}_s") or 0.0) for name in ("waiting", "provisioning", "preparing")}
    unseen = float(phases.get("unseen_s") or 0.0)
    return {**before, "first_step": first, "training": running - first - lost, "lost": lost, "unseen": unseen}


def phase_seconds(attempts: Sequence[Row]) -> dict[str, float]:
    """Seconds of all attempts together by `PHASES`."""
    split = [split_phases(row.get("phases") or {}) for row in attempts]
    return {name: sum(each[name] for each in split) for name in PHASES}


def cost_by_phase(attempts: Sequence[Row], totals: RunTotals) -> dict[str, PhaseCost]:
    """The chips and dollars of `totals` by the time of each phase; while it waits for capacity a run costs
    nothing. A phase of which nobody can tell has None, and its cost is in `training`. What is `unseen` is no
    part of `totals`: it may come on top."""
    seconds = {**phase_seconds(attempts), "waiting": 0.0}
    known = sum_phases(row.get("phases") or {} for row in attempts)
    whole = sum(seconds.values()) - seconds["unseen"]

    def part(total: float | None, name: str) -> float | None:
        if total is None or not whole or (not seconds[name] and getattr(known, f"{name}_s") is None):
            return None
        return round(total * seconds[name] / whole, 4)

    found = {name: PhaseCost(part(totals.chip_hours, name), part(totals.usd, name)) for name in PHASES}
    return {**found, "unseen": replace(found["unseen"], usd=totals.unseen_usd)}
