"""Quotas as they are now: what is allowed, who holds what, what it costs; and the check before `up`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from tpuctl.engine.events import Note
from tpuctl.engine.services import Services
from tpuctl.errors import QuotaError, TransientError
from tpuctl.lib.names import region_of
from tpuctl.lib.parallel import Reading, Unread, read_all
from tpuctl.model.accelerators import Catalog
from tpuctl.model.cloud import Api, Listing
from tpuctl.model.prices import price_per_hour
from tpuctl.model.quota import ComputeQuota, TpuQuota
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.money.coverage import list_grants
from tpuctl.money.grants import Grant, same_pool
from tpuctl.money.quotas import (
    Headroom,
    Holding,
    Shortage,
    ask_for_tpus,
    collect_command,
    find_holdings,
    find_shortages,
    find_tpu_quotas,
    quota_unit,
    quota_units,
    room_of,
    units_used,
)
from tpuctl.state.repository import SLICES

CHECK_TIMEOUT_S = 10.0
"""`up` does not wait longer for a check that only spares it a refusal."""


def check_side_quotas(services: Services, name: str, places: Sequence[Sequence[SliceSpec]]) -> None:
    """Raises QuotaError, with both ways out, when the API says that what is new cannot have its hosts in any of
    `places`, each of which holds the slices that are asked for there together; and when those of a race, which
    are asked for at the same time, have room alone but not together.

    What the API does not say, or what is not sure to be counted, is only noted; so is one place of several.
    """
    every = [spec for place in places for spec in place]
    regions = sorted({region_of(spec.zone) for spec in every})
    looks: dict[str, Callable[[], Any]] = {
        f"quotas of region {region}": partial(services.project_api.region_quotas, region) for region in regions
    }
    looks["quotas of the project"] = lambda: services.project_api.project_info().quotas
    of_tpus = _looks(services, {spec.api for spec in every})
    found = read_all({**looks, **of_tpus}, timeout_s=CHECK_TIMEOUT_S)
    _check_tpu_quotas(services.project, name, places, _use(load_accelerators(), found))
    readings = {what: found[what] for what in looks}
    for what, reading in readings.items():
        if reading.error is not None:
            services.emit(Note(name, f"the {what} could not be read: {reading.why_not}"))
    quotas = [quota for reading in readings.values() for quota in reading.value or ()]
    short = [_shortages_of(place, quotas, services.project) for place in places]
    if all(any(each.certain for each in found) for found in short):
        raise _refusal(name, [each for found in short for each in found if each.certain])
    fit = _racing(places, short)
    _check_together(services.project, name, fit, quotas)
    for each in dict.fromkeys(each for found in short for each in found):
        services.emit(Note(name, f"perhaps too little of {each.text}; {each.ways_out[0]}"))


def _racing(places: Sequence[Sequence[SliceSpec]], short: Sequence[object]) -> list[SliceSpec]:
    """What races in those places that are not `short` of anything."""
    return [
        spec for place, found in zip(places, short, strict=True) for spec in place if not found and spec.race
    ]


def _check_together(
    project: str, name: str, places: Sequence[SliceSpec], quotas: Sequence[ComputeQuota]
) -> None:
    """Raises QuotaError where a race asks for more in a region, or in all of them, than there is room for: of
    two that begin there each could get a part of its hosts, and neither all."""
    for region in {"", *(region_of(spec.zone) for spec in places)}:
        there = [spec for spec in places if region in ("", region_of(spec.zone))]
        if len(there) > 1:
            hosts, nodes = sum(spec.hosts for spec in there), sum(spec.slices for spec in there)
            of_region = [quota for quota in quotas if quota.region == region]
            ips = there[0].external_ips
            found = find_shortages(of_region, project, hosts=hosts, nodes=nodes, external_ips=ips)
            if certain := [each.text for each in found if each.certain]:
                raise _crowded(name, there, certain)


def _crowded(name: str, places: Sequence[SliceSpec], texts: Sequence[str]) -> QuotaError:
    zones = list(dict.fromkeys(spec.zone for spec in places))
    return QuotaError(
        f"{name} asks in {len(places)} places at once ({', '.join(zones)}), which together need more than "
        f"the quota {'; and '.join(texts)}",
        hint="name fewer of them, or leave out --race: then they are tried one after another",
        details={"shortages": list(texts)},
    )


NODES, QUEUED, INSTANCES = "nodes", "queued resources", "TPUs of Compute Engine"
LISTS: Mapping[Api, tuple[str, ...]] = {Api.TPU: (NODES, QUEUED), Api.COMPUTE: (INSTANCES,)}
QUOTAS: Mapping[Api, str] = {Api.TPU: "TPU quotas", Api.COMPUTE: "TPU quotas of Compute Engine"}


def _looks(services: Services, apis: Iterable[Api]) -> dict[str, Callable[[], Any]]:
    """What the pools of those APIs are, and who draws on them."""
    limits = {QUOTAS[api]: partial(services.project_api.tpu_quotas, api) for api in apis}
    return {**limits, **_looks_at_holders(services, apis)}


def _looks_at_holders(services: Services, apis: Iterable[Api]) -> dict[str, Callable[[], Any]]:
    lists: dict[str, Callable[[], Any]] = {
        NODES: lambda: services.cloud.list_nodes(),
        QUEUED: lambda: services.cloud.list_queued(),
        INSTANCES: lambda: services.tpus(Api.COMPUTE).list_nodes(),
    }
    return {what: lists[what] for api in apis for what in LISTS[api]}


class TpuUse(Struct, frozen=True):
    """TPU quotas and who draws on them; of the pools in `unknown` not everything was read."""

    quotas: tuple[TpuQuota, ...]
    holdings: tuple[Holding, ...]
    unknown: frozenset[Api]
    unread: tuple[Unread, ...]

    def used(self, quota: TpuQuota, holdings: Iterable[Holding]) -> int | None:
        """How much of a quota those `holdings` take; None where that is not known."""
        return None if quota.api in self.unknown else units_used(holdings, quota)


def _use(catalog: Catalog, readings: Mapping[str, Reading[Any]]) -> TpuUse:
    """What the answers to `_looks` say; the rest of `readings` is for others."""
    unread: list[Unread] = []
    for what in (*QUOTAS.values(), NODES, QUEUED, INSTANCES):
        reading = readings.get(what)
        if reading is not None and reading.error is not None:
            unread.append(Unread.of(what, reading.error))
        elif reading is not None and isinstance(reading.value, Listing) and reading.value.unreachable:
            zones = ", ".join(sorted(reading.value.unreachable))
            unread.append(Unread(what, f"the API did not reach {zones}"))

    def items(*names: str) -> tuple[Any, ...]:
        found = (readings[name].value for name in names if name in readings)
        return tuple(item for value in found if value is not None for item in value.items)

    limits = (readings[name].value or () for name in QUOTAS.values() if name in readings)
    missing = {each.what for each in unread}
    return TpuUse(
        quotas=tuple(quota for found in limits for quota in found),
        holdings=find_holdings(catalog, items(NODES, INSTANCES), items(QUEUED)),
        unknown=frozenset(api for api, lists in LISTS.items() if missing & {*lists}),
        unread=tuple(unread),
    )


def _check_tpu_quotas(project: str, name: str, places: Sequence[Sequence[SliceSpec]], use: TpuUse) -> None:
    """Raises QuotaError when no place has room in its TPU quotas for `name`. What was not read whole, and what
    is dead and collected before a create, refuses nothing."""
    live = [each for each in use.holdings if not each.dead and each.slice_name != name]
    short = [_short_of_tpus(place, use, live) for place in places]
    fit = _racing(places, short)
    together = _short_of_tpus(fit, use, live)
    if together is not None:
        raise _crowded(name, fit, [together.text])
    found = [each for each in short if each is not None]
    if len(found) == len(short):
        texts = list(dict.fromkeys(each.text for each in found))
        more = ask_for_tpus(project, found[0].quota, found[0].wanted)
        of_machines = any(each.quota.api is Api.COMPUTE for each in found)
        other = "; quota of the Cloud TPU API does not count there" if of_machines else ""
        raise QuotaError(
            f"{name} needs more than the quota {'; and '.join(texts)}{other} "
            "(`tpuctl quota` shows who holds what)",
            hint=more,  # alone, or a terminal would break it into lines
            details={"shortages": texts},
        )


class _TpuShortage(Struct, frozen=True):
    """A TPU quota that has no room for a slice, and what it would have to be."""

    quota: TpuQuota
    wanted: int
    text: str


def _short_of_tpus(places: Sequence[SliceSpec], use: TpuUse, live: Sequence[Holding]) -> _TpuShortage | None:
    """The TPU quota that has no room for these together; None where none is known to be too small."""
    catalog, needs, unit_of = load_accelerators(), dict[TpuQuota, int](), dict[TpuQuota, str]()
    for spec in places:
        offer = catalog.of(spec.accelerator_type, spec.topology)
        units = quota_units(offer, spec.api)
        for quota in find_tpu_quotas(use.quotas, spec.zone, offer.generation, spec.tier, units, spec.api):
            needs[quota] = needs.get(quota, 0) + units * spec.slices
            unit_of[quota] = quota_unit(offer, spec.api)
    for quota, need in needs.items():
        used = use.used(quota, live)
        if used is not None and used + need > quota.limit:
            free = f"{max(0, quota.limit - used)} free ({used} of {quota.limit} in use)"
            words = f"of {quota.pool}: {need} {unit_of[quota]} needed, {free}"
            return _TpuShortage(quota, used + need, words)
    return None


def _shortages_of(
    place: Sequence[SliceSpec], quotas: Iterable[ComputeQuota], project: str
) -> tuple[Shortage, ...]:
    there = [quota for quota in quotas if quota.region in ("", *(region_of(spec.zone) for spec in place))]
    # The TPU service alone makes health checks.
    hosts, nodes = sum(spec.hosts for spec in place), sum(spec.slices for spec in place if spec.api is Api.TPU)
    ips = any(spec.external_ips for spec in place)
    return find_shortages(there, project, hosts=hosts, nodes=nodes, external_ips=ips)


def _refusal(name: str, certain: Sequence[Shortage]) -> QuotaError:
    texts = list(dict.fromkeys(each.text for each in certain))
    return QuotaError(
        f"{name} needs more than the quota {'; and '.join(texts)}",
        hint="; ".join(certain[0].ways_out),
        details={"shortages": texts},
    )


class TpuRow(Struct, frozen=True):
    """One TPU quota with its use, in `unit`s; `used` is None where something of unknown size draws on it."""

    quota: TpuQuota
    unit: str
    used: int | None

    @property
    def free(self) -> int | None:
        return None if self.used is None else max(0, self.quota.limit - self.used)


class HoldingRow(Struct, frozen=True):
    """Something that is held, its price per hour in USD (None: not known), and how to get rid of a dead one."""

    holding: Holding
    price: float | None
    collect: str | None


class GrantRow(Struct, frozen=True):
    """A grant and the chips that live nodes draw from it; None when not everything was read."""

    grant: Grant
    live: int | None


class QuotaReport(Struct, frozen=True):
    """Everything about quotas that could be read; `unread` names the rest."""

    tpu: tuple[TpuRow, ...]
    side: tuple[ComputeQuota, ...]
    holders: tuple[HoldingRow, ...]
    grants: tuple[GrantRow, ...]
    prices_note: str
    unread: tuple[Unread, ...]

    @property
    def rooms(self) -> tuple[Headroom, ...]:
        found = (room_of(quota) for quota in self.side)
        return tuple(room for room in found if room is not None)

    @property
    def cost(self) -> float:
        """USD per hour of what has a known price."""
        return sum(row.price or 0.0 for row in self.holders)

    @property
    def unpriced(self) -> int:
        """How many live holdings have no known price."""
        return sum(1 for row in self.holders if _costs(row.holding) and row.price is None)


def quota_report(
    services: Services, catalog: Catalog, zones: Sequence[str], on_done: Callable[[str], None] = lambda _: None
) -> QuotaReport:
    """Limits, use, holders, grants and cost, for `zones` and wherever something is held or granted; for all
    zones when that is nowhere."""
    grants = list_grants(services)
    project = services.project_api
    looks = {**_looks(services, tuple(Api)), "quotas of the project": lambda: project.project_info().quotas}
    readings = read_all(looks, on_done=on_done)
    use = _use(catalog, readings)
    held_in = (each.resource.location for each in use.holdings)
    asked = sorted({*zones, *(grant.zone for grant in grants), *held_in}) or list(catalog.zones())
    regions = read_all(
        {
            f"quotas of region {region}": partial(project.region_quotas, region)
            for region in sorted({region_of(zone) for zone in asked})
        },
        on_done=on_done,
    )
    of_side = {"quotas of the project": readings["quotas of the project"], **regions}
    unread = [Unread.of(what, each.error) for what, each in of_side.items() if each.error is not None]
    side = [quota for reading in of_side.values() for quota in reading.value or ()]
    counted = Api.TPU not in use.unknown  # grants are quota of that API alone
    return QuotaReport(
        tpu=_tpu_rows(catalog, use, asked),
        side=tuple(quota for quota in side if room_of(quota) is not None),
        holders=_holder_rows(services, catalog, use.holdings),
        grants=tuple(GrantRow(grant, _live(grant, use.holdings) if counted else None) for grant in grants),
        prices_note=catalog.prices_note,
        unread=(*use.unread, *unread),
    )


def read_holdings(services: Services, catalog: Catalog, api: Api) -> tuple[Holding, ...]:
    """Who holds what of the pool of an API in the whole project. Raises where not everything was read."""
    use = _use(catalog, read_all(_looks_at_holders(services, [api])))
    for each in use.unread:
        raise each.error or TransientError(f"{each.what} were not all read: {each.why}")
    return use.holdings


def _tpu_rows(catalog: Catalog, use: TpuUse, zones: Sequence[str]) -> tuple[TpuRow, ...]:
    """Only quotas of the places asked about: the API lists dozens that nobody uses."""
    types, places = catalog.types.values(), {*zones, *map(region_of, zones)}
    kinds = {each.generation: each for each in types}
    offered = {
        (each.generation, api, place)
        for each in types
        for api in each.apis
        for zone in each.zones
        for place in (zone, region_of(zone))
    }
    return tuple(
        TpuRow(quota, quota_unit(kinds[quota.generation], quota.api), use.used(quota, use.holdings))
        for quota in sorted(use.quotas, key=lambda each: (each.location, each.quota_id))
        if quota.location in places and (quota.generation, quota.api, quota.location) in offered
    )


def _costs(holding: Holding) -> bool:
    """TPUs are billed while they are READY; a request without nodes is not."""
    return holding.hosts > 0 and not holding.dead


def _holder_rows(services: Services, catalog: Catalog, holdings: Sequence[Holding]) -> tuple[HoldingRow, ...]:
    ours = frozenset(SLICES.names(services))
    return tuple(
        HoldingRow(each, _price(catalog, each), collect_command(each, ours, services.project))
        for each in holdings
    )


def _price(catalog: Catalog, holding: Holding) -> float | None:
    offer = catalog.find(holding.resource.type)
    if offer is None or not _costs(holding):
        return None
    return price_per_hour(catalog, offer, holding.resource.location, holding.tier)


def _live(grant: Grant, holdings: Iterable[Holding]) -> int | None:
    matching = [
        each.chips
        for each in holdings
        if _costs(each)
        and each.resource.api is Api.TPU
        and each.resource.location == grant.zone
        and each.generation in (grant.generation, "")
        and same_pool(each.tier, grant.tier)
    ]
    known: list[Any] = [chips for chips in matching if chips is not None]
    return sum(known) if len(known) == len(matching) else None
