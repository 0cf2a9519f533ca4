"""Accelerator types and zones that tpuctl's tables do not have: the API is asked, and then it is tried.

Tables grow old, and the API's own list names too much and too little, so that neither is a reason to refuse.
Only a size that nobody knows, and a zone that the API itself does not know, are taken for slips of the hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.errors import (
    DeniedError,
    InvalidRequestError,
    NotFoundError,
    TpuctlError,
    UsageError,
    with_field,
)
from tpuctl.lib.names import check_zone_name
from tpuctl.lib.text import suggest
from tpuctl.model.accelerators import Catalog, Generation
from tpuctl.model.hosts import Api
from tpuctl.money.grants import Grant
from tpuctl.slices.zones import AUTO


class Named(Struct, frozen=True):
    """What is requested: a size by its name, or a generation by its topology."""

    accelerator: str
    topology: str | None = None
    flex: bool = False
    api: Api | None = None


def beyond_tables(
    services: Services, catalog: Catalog, named: Named, zones: Sequence[str], grants: Sequence[Grant]
) -> tuple[Catalog, list[str]]:
    """The catalog with what is requested, in or out of the tables; and in words what is doubtful about that.

    `zones` are those that were named; without any, those of grants count. Raises UsageError for a zone that the
    API does not know.
    """
    whole = catalog.find_generation(named.accelerator)
    generation = whole or catalog.find_generation(named.accelerator.strip().lower().rpartition("-")[0])
    if generation is None:
        return catalog, []
    doubts = []
    wanted = zones or [grant.zone for grant in grants if grant.generation == generation.name]
    for zone in dict.fromkeys(wanted):
        if zone != AUTO:
            with_field("zone", partial(check_zone_name, zone))
            catalog, doubt = _look_up(services, catalog, generation, named, zone)
            doubts += [doubt] if doubt else []
    return catalog, doubts


def _look_up(
    services: Services, catalog: Catalog, generation: Generation, named: Named, zone: str
) -> tuple[Catalog, str]:
    by_shape = catalog.find_generation(named.accelerator) is not None
    name = catalog.canonical(named.accelerator)
    found = catalog.shaped(generation, named.topology or "") if by_shape else catalog.types.get(name)
    if found is None and by_shape:
        return catalog, ""  # no such shape, whatever the zone
    what = found.name if found else name
    if found is not None and zone in (*found.zones, *found.listed_zones):
        if not named.flex or not found.flex_start_zones or zone in found.flex_start_zones:
            return catalog, ""
        return catalog.in_zone(
            generation.name, zone
        ), f"no table has flex-start of {what} in {zone}; asking anyway"
    try:
        api = named.api or (found.apis if found else generation.apis)[0]
        form = found.compute if found is not None and api is Api.COMPUTE else None
        offers = {offer.name: offer for offer in services.tpus(api).list_offers(zone)}
        what_there = form.machine_type if form is not None else what
        known = f" (known: {', '.join(found.zones)})" if found and found.zones else ""
        listed = (
            "; the API lists it"
            if what_there in offers
            else f", nor does the API list it{known}; asking anyway"
        )
    except TpuctlError as error:
        if _unknown_place(catalog, zone, error):
            # Any zone that has the type helps more than none.
            near = suggest(zone, found.zones if found else catalog.zones(), cutoff=0.0)
            hint = f"--zone {near}" if near else "tpuctl types"
            raise UsageError.of("zone", f"the API knows no zone {zone!r}: {error.message}", hint) from error
        offers, listed = {}, f"; the API could not be asked about it ({error.message})"
    if found is None:
        more = catalog.unlisted(name, offers[name].topology) if name in offers else None
        if more is None:
            return catalog, ""  # whoever checks the name says which ones are near
        catalog = catalog.having(more)
    return catalog.in_zone(generation.name, zone), f"no table has {what} in {zone}{listed}"


def _unknown_place(catalog: Catalog, zone: str, error: TpuctlError) -> bool:
    """Whether a refusal to list is about the zone itself. Raises the error of refused credentials."""
    if error.details.get("status") == HTTPStatus.UNAUTHORIZED:
        raise error
    answered = error.details.get("status") is not None
    refusal = answered and isinstance(error, NotFoundError | InvalidRequestError | DeniedError)
    return refusal and zone not in catalog.zones() and "permission" not in error.details
