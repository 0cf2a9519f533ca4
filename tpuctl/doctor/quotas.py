"""The checks of `doctor` about quotas: is there room for what the settings and grants want."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from msgspec import Struct

from tpuctl.doctor.facts import DoctorFacts, PlannedUse, StoreRecords
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
    """A kind of slice that somebody will ask for. `apis` may make it, the usual one first; all of them are
    needed where slices are `made` by them."""

    zone: str
    generation: str
    tier: Tier
    apis: tuple[Api, ...]
    made: bool = False


def named_needs(wanted: PlannedUse, records: StoreRecords | None) -> tuple[QuotaNeed, ...]:
    """What the settings and the grants name. Grants are quota of the TPU API alone."""
    tier, generation = wanted.tier or Tier.SPOT, wanted.generation
    found: list[QuotaNeed] = []
    for zone in wanted.zones if generation else ():
        made = records.apis.get((zone, generation or ""), frozenset()) if records else frozenset()
        apis = tuple(api for api in Api if api in made) or wanted.apis
        found.append(QuotaNeed(zone, generation or "", tier, apis, bool(made)))
    grants = records.grants if records else ()
    found += [QuotaNeed(each.zone, each.generation, each.tier, (Api.TPU,)) for each in grants]
    return tuple(dict.fromkeys(found))


def tpu_findings(facts: DoctorFacts) -> list[Finding]:
    """What is named against the quotas of its zone and region; a zone that only the settings name must have a
    quota for something."""
    needs = named_needs(facts.wanted, facts.records.value)
    bare = [zone for zone in facts.wanted.zones if zone not in {need.zone for need in needs}]
    found = [each for need in needs for each in _judge(facts, need)]
    quotas = facts.tpu_quotas.value
    if quotas is None:
        return found if found and not bare else [*found, not_checked(facts.tpu_quotas.error)]
    found += [_judge_zone(facts, zone, quotas) for zone in bare]
    return found or [ok(f"{counted(len(quotas), 'limit')} read; no zone or grant says which matter")]


def _judge_zone(facts: DoctorFacts, zone: str, quotas: Sequence[TpuQuota]) -> Finding:
    there = [quota for quota in quotas if quota.location == zone]
    some = sorted({quota.generation for quota in there if quota.limit > 0})
    if some:
        return ok(f"{zone}: there is quota for {', '.join(some)}")
    if not there:
        return warning(f"{zone}: the API names no quota", f"tpuctl quota --zone {zone}")
    return problem(f"{zone}: every quota is 0", ask_for_tpus(facts.wanted.project, there[0], 8))


def _judge(facts: DoctorFacts, need: QuotaNeed) -> list[Finding]:
    """By the pool of each API that makes it; where there is a choice, room in one pool is enough."""
    judged = {api: each for api in need.apis if (each := _judge_pool(facts, need, api)) is not None}
    first = next(iter(judged.values()), None)
    if first is None or need.made:
        return list(judged.values())
    other = next((api for api, each in judged.items() if each.level == "ok"), None)
    if first.level == "problem" and other is not None:
        return [warning(f"{first.what}; with --api {other} there is: {judged[other].what}", first.fix)]
    return [first]


class _Pool(Struct, frozen=True):
    """What was read of the quota of an API."""

    api: Api
    quotas: Sequence[TpuQuota]
    holdings: Sequence[Holding] | None


def _judge_pool(facts: DoctorFacts, need: QuotaNeed, api: Api) -> Finding | None:
    """By the smallest slice; where that has no quota, by the smallest of those that draw on another one."""
    tpu = api is Api.TPU
    quotas = facts.tpu_quotas if tpu else facts.compute_quotas
    if quotas.value is None:
        return not_checked(quotas.error)
    pool = _Pool(api, quotas.value, (facts.holdings if tpu else facts.compute_holdings).value)
    sizes = _sizes(facts.catalog, need, api)
    found = [_judge_size(facts, need, pool, each) for each in sizes]
    first = next(iter(found), None)
    if first is None or first.level != "problem" or len(found) == 1 or found[1].level != "ok":
        return first
    larger = f"; from {sizes[1].name} on: {found[1].what.partition(': ')[2]}"
    return warning(first.what + larger, first.fix)


def _judge_size(facts: DoctorFacts, need: QuotaNeed, pool: _Pool, smallest: AcceleratorType) -> Finding:
    where = " of Compute Engine" if pool.api is Api.COMPUTE else ""
    subject = f"{need.tier} {need.generation} in {need.zone}{where}"
    least = quota_units(smallest, pool.api)
    kind = (need.zone, need.generation, need.tier)
    drawn = find_tpu_quotas(pool.quotas, *kind, least, pool.api)
    # A project without a quota of this size has only the one for all.
    drawn = drawn or find_tpu_quotas(pool.quotas, *kind, sys.maxsize, pool.api)
    if not drawn:
        return warning(f"{subject}: the API names no quota", f"tpuctl quota --zone {need.zone}")
    tightest = min(drawn, key=lambda each: each.limit)
    if tightest.limit < least:
        what = f"{subject}: quota {tightest.quota_id} is {tightest.limit}, {smallest.name} takes {least}"
        return problem(what, ask_for_tpus(facts.wanted.project, tightest, least))
    return _judge_use(pool, subject, need.zone, drawn, least)


def _judge_use(pool: _Pool, subject: str, zone: str, drawn: Sequence[TpuQuota], least: int) -> Finding:
    holdings = pool.holdings
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


def _sizes(catalog: Catalog, need: QuotaNeed, api: Api) -> list[AcceleratorType]:
    """The smallest slice that an API makes, and the smallest that draws on another quota than that."""
    offers = [
        each for each in catalog.types.values() if each.generation == need.generation and api in each.apis
    ]
    there = [each for each in offers if need.zone in (*each.zones, *each.listed_zones)]
    groups: dict[bool, AcceleratorType] = {}
    for each in sorted(there, key=lambda each: each.chips):
        groups.setdefault(quota_units(each, api) <= SMALL_UNITS.get(each.generation, 0), each)
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
