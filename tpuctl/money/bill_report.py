"""Reads everything in a project that can cost money. A list that fails is named, it never reads as empty."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from tpuctl.engine.cloud_ports import Inventory
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.lib.codec import to_data
from tpuctl.lib.time import render_time
from tpuctl.model.accelerators import Catalog
from tpuctl.model.cloud import BESIDE_TPUS, OWNER_LABEL, Api, CloudResource, Listing, ResourceKind
from tpuctl.model.prices import OtherPrices
from tpuctl.money.bill import Bill, BillLine, Census, Payer, UnreadCost, count_kinds, make_bill
from tpuctl.money.cluster_costs import cluster_costs
from tpuctl.money.coverage import list_grants
from tpuctl.state.repository import readable_runs

T = TypeVar("T")


def take_census(services: Services, inventory: Inventory) -> Census:
    """All nodes, queued resources and other assets of the project, in all locations."""
    unread: list[UnreadCost] = []

    def attempt(what: str, read: Callable[[], Listing[T]]) -> Listing[T]:
        try:
            return read()
        except TpuctlError as error:
            unread.append(UnreadCost(what, error.message, error.hint))
            return Listing(())

    nodes = attempt("nodes", services.cloud.list_nodes)
    of_compute = attempt("TPUs of Compute Engine", services.tpus(Api.COMPUTE).list_nodes)
    nodes = Listing((*nodes.items, *of_compute.items), nodes.unreachable | of_compute.unreachable)
    queued = attempt("queued resources", services.cloud.list_queued)
    assets: list[CloudResource] = []
    for kind in BESIDE_TPUS:
        what = f"{kind}s" if kind is not ResourceKind.ADDRESS else "addresses"
        found = attempt(what, partial(inventory.list_assets, kind))
        assets.extend(found.items)
        unread += [
            UnreadCost(f"{kind} list in {where}", "the location could not be read")
            for where in sorted(found.unreachable)
        ]
    return Census(nodes, queued, tuple(assets), tuple(unread))


def bill_of(services: Services, inventory: Inventory, catalog: Catalog, prices: OtherPrices) -> Bill:
    """The bill of the project as it stands now."""
    census = take_census(services, inventory)
    bill = make_bill(census, list_grants(services), catalog, prices, services.clock.now())
    runs, damaged = readable_runs(services)
    unread = [UnreadCost("the record of a run", each.message, each.hint) for each in damaged]
    return replace(bill, unread=(*bill.unread, *unread), on_clusters=cluster_costs(catalog, runs))


def bill_data(
    services: Services, bill: Bill, project: str, catalog: Catalog, prices: OtherPrices
) -> dict[str, Any]:
    """The bill as plain data: what `--json` prints and a receipt holds."""
    kinds = [str(kind) for kind in ResourceKind]
    found = count_kinds(bill.lines)
    return {
        "project": project,
        "read_at": render_time(services.clock.now()),
        "read_by": f"{services.user} on {services.machine}",
        "zero": bill.zero,
        "found": {kind: found.get(kind, 0) for kind in kinds},
        "not_read": [to_data(each) for each in bill.unread],
        "usd_per_hour": round(bill.per_hour, 6),
        "without_price": bill.unpriced,
        "prices": {"tpu": catalog.prices_note, "other": prices.note},
        "paid": [_line(line) for line in bill.of(Payer.YOU)],
        "covered": [_line(line) for line in bill.of(Payer.GRANT)],
        "free": [_line(line) for line in bill.of(Payer.NOBODY)],
        "on_clusters": [to_data(each) for each in bill.on_clusters],
    }


def _line(line: BillLine) -> dict[str, Any]:
    found = line.resource
    return {
        "kind": str(found.kind),
        "name": found.name,
        "location": found.location,
        "detail": line.detail,
        "payer": str(line.payer),
        "per_hour": line.per_hour,
        "note": line.note,
        "user": found.user,
        "managed": OWNER_LABEL in found.labels,
        "created": found.created,
    }
