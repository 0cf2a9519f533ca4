"""`types`: what accelerators there are. Reads tables only; needs no project and no credentials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from tpuctl.cli.console import Column, Console
from tpuctl.lib.options import Option, argument

COLUMNS = (
    Column("name", "TYPE"),
    Column("chips", "CHIPS", right=True),
    Column("hosts", "HOSTS", right=True),
    Column("topology", "TOPOLOGY"),
    Column("spot", "SPOT $/H", right=True),
    Column("zones", "ZONES", give=1, most=1),
)
IN_A_ZONE = (*COLUMNS[:-1], Column("on_demand", "ON DEMAND $/H", right=True))
OF_A_TYPE = (
    Column("chips", "CHIPS", right=True),
    Column("hosts", "HOSTS", right=True),
    Column("devices", "DEVICES", right=True),
    Column("hbm_gib", "HBM GIB", right=True),
    Column("topology", "TOPOLOGY"),
    Column("api", "API"),
    Column("machine_type", "MACHINE TYPE"),
)
BY_ZONE = (Column("name", "TYPE"), Column("zone", "ZONE"), *IN_A_ZONE[-2:])
GENERATIONS = (
    Column("generation", "GENERATION"),
    Column("types", "TYPES"),
    Column("api", "API"),
    Column("spot", "SPOT $/CHIP/H", right=True),
    Column("zones", "ZONES", give=1),
)


def types(
    console: Console,
    generation: Annotated[
        str | None,
        argument("[GENERATION]", "Only this generation, such as v4 or v5e, or this type, such as v4-8."),
    ] = None,
    zone: Annotated[str | None, Option("Only types offered in this zone.", metavar="ZONE")] = None,
) -> None:
    """List accelerator types: chips, hosts, zones, prices.

    One line per generation; name a generation or a zone to see its types, or a type to see its price in each
    zone.

    Prices are by the list, in USD for the whole slice in the region of the zone, else in the
    cheapest region that lists it.
    """
    from tpuctl.errors import UsageError
    from tpuctl.lib.names import check_zone_name
    from tpuctl.model.shipped_files import load_accelerators

    catalog = load_accelerators()
    known = list(catalog.generations)
    wanted = next((n for n, g in catalog.generations.items() if generation in (n, *g.aliases)), None)
    if zone is not None:
        check_zone_name(zone)
    if generation is not None and wanted is None:
        one = catalog.find(generation)
        if one is None:
            raise UsageError(f"no generation or type called {generation}", hint=f"one of: {', '.join(known)}")
        _show_zones(console, catalog, one, zone)
        return
    rows = [
        _row(catalog, found, zone)
        for found in catalog.types.values()
        if wanted in (None, found.generation) and (zone is None or zone in found.zones)
    ]
    if generation is None and zone is None and not console.json_mode:
        console.table([_summary(catalog, name, rows) for name in known if _of(name, rows)], GENERATIONS)
        console.say("`tpuctl types v4` lists the types of one generation, `tpuctl types --zone ZONE` of a zone")
        return
    shown = rows if console.json_mode else [_shown(catalog, row, zone) for row in rows]
    columns = COLUMNS if zone is None else IN_A_ZONE
    of = f" of {wanted}" if wanted else ""
    console.table(shown, columns, empty=f"no accelerator type{of} is known in {zone}")
    if zone is None and rows:
        console.say(f"`tpuctl types {rows[0]['name']}` lists its zones with their prices")
    if shown and not console.json_mode:
        console.say(f"prices: {catalog.prices_note}")


def _show_zones(console: Console, catalog: Any, found: Any, zone: str | None) -> None:
    """One type: what it has, and what it costs in each of its zones."""
    if not console.json_mode:
        console.table([_row(catalog, found, None)], OF_A_TYPE)
    zones = [each for each in found.zones if zone in (None, each)]
    rows = [{**_row(catalog, found, each), "zone": each, "zones": [each]} for each in zones]
    shown = rows if console.json_mode else [_shown(catalog, row, row["zone"]) for row in rows]
    console.table(shown, BY_ZONE, empty=f"{found.name} is not offered in {zone}")
    if shown and not console.json_mode:
        console.say(f"prices: {catalog.prices_note}")


def _row(catalog: Any, found: Any, zone: str | None) -> dict[str, Any]:
    zones, generation = found.zones if zone is None else [zone], catalog.generations[found.generation]
    return {
        "name": found.name,
        "generation": found.generation,
        "chips": found.chips,
        "hosts": found.hosts,
        "devices": found.chips * generation.devices_per_chip,
        "hbm_gib": found.chips * generation.hbm_gib,
        "api": ", ".join(found.apis),
        "machine_type": found.compute.machine_type if found.compute is not None else "",
        "topology": found.topology,
        "zones": list(found.zones),
        "runtime_version": found.of_api(found.apis[0]).runtime_version,
        **{tier: _price(catalog, found, zones, tier) for tier in ("spot", "on_demand")},
    }


def _shown(catalog: Any, row: dict[str, Any], zone: str | None) -> dict[str, Any]:
    """A row for people: a price that is that of the cheapest of several regions says so."""
    every = _prices(catalog, row["generation"], row["zones"] if zone is None else [zone], "spot")
    least = "from " if len(set(every)) > 1 else ""
    return {**row, "spot": f"{least}{_dollars(row['spot'])}", "on_demand": _dollars(row["on_demand"])}


def _prices(catalog: Any, generation: str, zones: Sequence[str], tier: str) -> list[float]:
    """Of one chip, in all regions of these zones that have a price."""
    from tpuctl.lib.names import region_of

    known = catalog.generations[generation].prices
    rows = [known[region] for region in set(map(region_of, zones)) if region in known]
    return [row[tier] for row in rows if row.get(tier) is not None]


def _of(generation: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["generation"] == generation]


def _summary(catalog: Any, generation: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One generation in a line."""
    own = sorted(_of(generation, rows), key=lambda row: row["chips"])
    zones = sorted({zone for row in own for zone in row["zones"]})
    spot = _prices(catalog, generation, zones, "spot")
    least = "from " if len(set(spot)) > 1 else ""
    return {
        "generation": generation,
        "types": f"{len(own)}: {own[0]['name']} to {own[-1]['name']}",
        "api": max((row["api"] for row in own), key=len),
        "spot": f"{least}{_dollars(min(spot) if spot else None)}",
        "zones": zones,
    }


def _dollars(price: float | None) -> str:
    return "-" if price is None else f"{price:.2f}"


def _price(catalog: Any, found: Any, zones: Sequence[str], tier: str) -> float | None:
    """The whole slice per hour in the cheapest region that has a price."""
    known = _prices(catalog, found.generation, zones, tier)
    return round(min(known) * found.chips, 2) if known else None
