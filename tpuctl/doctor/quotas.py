"""The checks of `doctor` about quotas: is there room for what the settings and grants want."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from msgspec import Struct

from tpuctl.doctor.facts import DoctorFacts
from tpuctl.doctor.finding import Finding, not_checked, ok, problem, warning
from tpuctl.lib.text import counted
from tpuctl.model.accelerators import AcceleratorType, Catalog
from tpuctl.model.cloud import Api, Tier
from tpuctl.model.quota import SMALL_UNITS, ComputeQuota, TpuQuota
from tpuctl.money.quotas import (
    ADDRESSES,
    HEALTH_CHECKS,
    Holding,
    ask_for_tpus,
    find_shortages,
    find_tpu_quotas,
    quota_units,
    room_of,
    units_used,
)


class QuotaNeed(Struct, frozen=True):
    """A kind of slice that somebody will ask for."""

    zone: str
    generation: str
    tier: Tier


def named_needs(facts: DoctorFacts) -> tuple[QuotaNeed, ...]:
    """What the settings and the grants name."""
    wanted = facts.wanted
    tier = wanted.tier or Tier.SPOT
    generations = [wanted.generation] if wanted.generation else []
    needs = [QuotaNeed(zone, generation, tier) for zone in wanted.zones for generation in generations]
    if facts.records.value is not None:
        needs += [QuotaNeed(each.zone, each.generation, each.tier) for each in facts.records.value.grants]
    return tuple(dict.fromkeys(needs))


def tpu_findings(facts: DoctorFacts, quotas: Sequence[TpuQuota]) -> list[Finding]:
    """What is named against the quotas of its zone and region; a zone that only the settings name must have a
    quota for something."""
    needs = named_needs(facts)
    bare = [zone for zone in facts.wanted.zones if zone not in {need.zone for need in needs}]
    judged = [_judge(facts, need, quotas) for need in needs]
    found = [each for each in judged if each is not None] + [_judge_zone(facts, zone, quotas) for zone in bare]
    return found or [ok(f"{counted(len(quotas), 'limit')} read; no zone or grant says which matter")]


def _judge_zone(facts: DoctorFacts, zone: str, quotas: Sequence[TpuQuota]) -> Finding:
    there = [quota for quota in quotas if quota.location == zone]
    some = sorted({quota.generation for quota in there if quota.limit > 0})
    if some:
        return ok(f"{zone}: there is quota for {', '.join(some)}")
    if not there:
        return warning(f"{zone}: the API names no quota", f"tpuctl quota --zone {zone}")
    return problem(f"{zone}: every quota is 0", ask_for_tpus(facts.wanted.project, there[0], 8))


def _judge(facts: DoctorFacts, need: QuotaNeed, quotas: Sequence[TpuQuota]) -> Finding | None:
    """By the smallest slice; where that has no quota, by the smallest of those that draw on another one."""
    sizes = _sizes(facts.catalog, need)
    made_by = facts.records.value.apis if facts.records.value is not None else {}
    apis = made_by.get((need.zone, need.generation)) or (frozenset(sizes[0].apis[:1]) if sizes else frozenset())
    if apis == {Api.COMPUTE}:
        return _of_compute(facts, need)
    found = [_judge_size(facts, need, quotas, each) for each in sizes]
    first = next(iter(found), None)
    if first is None or first.level != "problem" or len(found) == 1 or found[1].level != "ok":
        return first
    larger = f"; from {sizes[1].name} on: {found[1].what.partition(': ')[2]}"
    return warning(first.what + larger, first.fix)


def _of_compute(facts: DoctorFacts, need: QuotaNeed) -> Finding:
    """Compute Engine counts chips of its own, by family and region and, for spot, by generation and zone."""
    ask = "gcloud beta quotas info list --service=compute.googleapis.com --filter='quotaId~TPU'"
    what = f"{need.tier} {need.generation} in {need.zone}: Compute Engine has quotas of its own, not read here"
    return warning(what, f"{ask} --project={facts.wanted.project}")


def _judge_size(
    facts: DoctorFacts, need: QuotaNeed, quotas: Sequence[TpuQuota], smallest: AcceleratorType
) -> Finding:
    subject = f"{need.tier} {need.generation} in {need.zone}"
    least = quota_units(smallest)
    drawn = find_tpu_quotas(quotas, need.zone, need.generation, need.tier, least)
    # A project without a quota of this size has only the one for all.
    drawn = drawn or find_tpu_quotas(quotas, need.zone, need.generation, need.tier, sys.maxsize)
    if not drawn:
        return warning(f"{subject}: the API names no quota", f"tpuctl quota --zone {need.zone}")
    tightest = min(drawn, key=lambda each: each.limit)
    if tightest.limit < least:
        what = f"{subject}: quota {tightest.quota_id} is {tightest.limit}, {smallest.name} takes {least}"
        return problem(what, ask_for_tpus(facts.wanted.project, tightest, least))
    return _judge_use(facts, subject, need.zone, drawn, least)


def _judge_use(facts: DoctorFacts, subject: str, zone: str, drawn: Sequence[TpuQuota], least: int) -> Finding:
    holdings = facts.holdings.value
    if holdings is None:
        limit = min(each.limit for each in drawn)
        return warning(f"{subject}: limit {limit}; what is used of it could not be read")
    rooms = [(quota, units_used(holdings, quota)) for quota in drawn]
    for quota, used in rooms:
        if used is not None and quota.limit - used < least:
            dead = _dead_units(holdings, quota)
            what = f"{subject}: {used} of {quota.limit} used ({quota.quota_id})"
            if dead:
                return problem(f"{what}, {dead} of them by dead requests", f"tpuctl quota --zone {zone}")
            return warning(f"{what}; no room for another slice", f"tpuctl quota --zone {zone}")
    quota, used = min(rooms, key=lambda row: row[0].limit - (row[1] or 0))
    return ok(f"{subject}: {'unknown' if used is None else used} of {quota.limit} used")


def _dead_units(holdings: Iterable[Holding], quota: TpuQuota) -> int:
    return units_used([each for each in holdings if each.dead and each.units is not None], quota) or 0


def _sizes(catalog: Catalog, need: QuotaNeed) -> list[AcceleratorType]:
    """The smallest slice, and the smallest that draws on another quota than that."""
    offers = [each for each in catalog.types.values() if each.generation == need.generation]
    there = [each for each in offers if need.zone in (*each.zones, *each.listed_zones)]
    groups: dict[bool, AcceleratorType] = {}
    for each in sorted(there, key=lambda each: each.chips):
        groups.setdefault(quota_units(each) <= SMALL_UNITS.get(each.generation, 0), each)
    return list(groups.values())


def side_findings(facts: DoctorFacts) -> list[Finding]:
    """Compute Engine's quotas: whether one more host fits, and how many do."""
    found = []
    for region, reading in sorted(facts.regions.items()):
        if reading.value is None:
            found.append(not_checked(reading.error))
        else:
            found += _judge_region(facts, region, reading.value)
    if facts.project.value is None:
        found.append(not_checked(facts.project.error))
    else:
        found += _judge_project(facts, facts.project.value.quotas)
    return found


def _judge_region(facts: DoctorFacts, region: str, quotas: Sequence[ComputeQuota]) -> list[Finding]:
    short = _short(facts, quotas)
    if short:
        return short
    rooms = [room for quota in quotas if (room := room_of(quota)) is not None and room.hosts is not None]
    if not rooms:
        return [warning(f"{region}: the API shows none of the quotas that hosts use up")]
    return [ok(f"{region}: room for {', '.join(f'{room.words} ({_used(room.quota)})' for room in rooms)}")]


def _judge_project(facts: DoctorFacts, quotas: Sequence[ComputeQuota]) -> list[Finding]:
    checks = [quota for quota in quotas if quota.metric == HEALTH_CHECKS]
    if not checks:
        return [warning(f"the API does not show {HEALTH_CHECKS}, which every slice uses up")]
    short = _short(facts, checks)
    rooms = [room for quota in checks if (room := room_of(quota)) is not None]
    return short or [ok(f"the project: room for {room.words} ({_used(room.quota)})") for room in rooms]


def _short(facts: DoctorFacts, quotas: Sequence[ComputeQuota]) -> list[Finding]:
    """One host more: what surely refuses it is a problem."""
    wanted = facts.wanted
    shortages = find_shortages(quotas, wanted.project, hosts=1, external_ips=wanted.external_ips)
    return [
        (problem if each.certain else warning)(f"no room: {each.text}", each.ways_out[0]) for each in shortages
    ]


def _used(quota: ComputeQuota) -> str:
    unit = "addresses" if quota.metric == ADDRESSES else quota.metric
    return f"{unit}: {quota.usage} of {quota.limit} used"
