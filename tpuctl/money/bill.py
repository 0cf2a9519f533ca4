"""The bill of a project: everything in it that can cost money, who pays for it, and how much about.

What cannot be priced is never left out: it stands there without a price. What may turn billable without anybody
doing anything (a queued request, a node that starts) counts as if it were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.lib.text import counted
from tpuctl.model.accelerators import Catalog
from tpuctl.model.cloud import (
    Api,
    CloudResource,
    Listing,
    NodeInfo,
    NodeState,
    QueuedInfo,
    QueuedState,
    ResourceKind,
    Tier,
)
from tpuctl.model.prices import HOURS_PER_MONTH, OtherPrices, price_per_hour
from tpuctl.money.cluster_costs import ClusterCost
from tpuctl.money.grants import Grant, check_coverage, same_pool

CENT = 0.01
"""A bucket that costs less per month than this, such as that of a small store, is no bill to be paid."""


class Payer(StrEnum):
    """Who pays for a line."""

    GRANT = "grant"
    YOU = "you"
    NOBODY = "nobody"


class BillLine(Struct, frozen=True):
    """What one resource costs. `per_hour` is USD, None where no price is known; 0 for what costs nothing as it
    stands."""

    resource: CloudResource
    detail: str
    payer: Payer
    per_hour: float | None
    note: str


class UnreadCost(Struct, frozen=True):
    """What could not be read, so that nothing is known about it."""

    what: str
    why: str
    hint: str | None = None


class Census(Struct, frozen=True):
    """All that was read of a project in one go."""

    nodes: Listing[NodeInfo]
    queued: Listing[QueuedInfo]
    assets: tuple[CloudResource, ...]
    unread: tuple[UnreadCost, ...] = ()


class Bill(Struct, frozen=True):
    """The lines and what they come to. `per_hour` sums up the known prices; `unpriced` counts the others."""

    lines: tuple[BillLine, ...]
    unread: tuple[UnreadCost, ...]
    on_clusters: tuple[ClusterCost, ...] = ()
    """Runs that use nodes of clusters: nothing that is billed by itself."""

    def of(self, payer: Payer) -> tuple[BillLine, ...]:
        return tuple(line for line in self.lines if line.payer is payer)

    @property
    def per_hour(self) -> float:
        return sum(line.per_hour or 0.0 for line in self.of(Payer.YOU))

    @property
    def unpriced(self) -> int:
        return sum(line.per_hour is None for line in self.of(Payer.YOU))

    @property
    def zero(self) -> bool:
        """Nothing is to be paid, and nothing was overlooked for want of an answer."""
        return not self.of(Payer.YOU) and not self.unread


_DEAD_REQUESTS = frozenset({QueuedState.FAILED, QueuedState.SUSPENDED})


def make_bill(
    census: Census, grants: Sequence[Grant], catalog: Catalog, prices: OtherPrices, now: float
) -> Bill:
    """The bill of what `census` found. `now` is in seconds since the epoch."""
    lines = tpu_lines(census.nodes.items, census.queued.items, grants, catalog, now)
    members = {(node.zone, host) for node in census.nodes.items if node.hosts for host in node.hosts.there}
    lines += [
        BillLine(asset, _asset_detail(asset), *_asset_cost(asset, prices))
        for asset in census.assets
        if asset.kind is not ResourceKind.INSTANCE or (asset.location, asset.name) not in members
    ]
    dark = sorted(census.nodes.unreachable | census.queued.unreachable)
    unread = [UnreadCost(f"TPUs in {zone}", "the zone could not be read") for zone in dark]
    return Bill(tuple(lines), (*unread, *census.unread))


def with_notes(bill: Bill, notes: Mapping[tuple[str, str], str]) -> Bill:
    """The bill with what is to be said of some TPUs, by location and name."""
    noted = (
        replace(line, note=f"{line.note}; {notes[place]}") if (place := _place(line)) in notes else line
        for line in bill.lines
    )
    return replace(bill, lines=tuple(noted))


def _place(line: BillLine) -> tuple[str, str]:
    return line.resource.location, line.resource.name


def tpu_lines(
    nodes: Sequence[NodeInfo],
    requests: Sequence[QueuedInfo],
    grants: Sequence[Grant],
    catalog: Catalog,
    now: float,
) -> list[BillLine]:
    """What nodes, and requests that have none yet, cost and who pays. Grants go to the oldest first, so that
    all of a zone must be given. `now` is in seconds since the epoch."""
    meter = _Meter(grants, catalog, now)
    lines = [meter.node(node) for node in sorted(nodes, key=lambda node: (node.create_time, node.name))]
    with_node = {(node.zone, node.name) for node in nodes}
    for request in sorted(requests, key=lambda each: (each.create_time, each.name)):
        if not any((request.zone, node) in with_node for node in request.node_ids or (request.name,)):
            lines.append(meter.request(request))
    return lines


class _Meter:
    """Counts the chips of each grant while TPUs are put on the bill, oldest first."""

    def __init__(self, grants: Sequence[Grant], catalog: Catalog, now: float) -> None:
        self._grants = grants
        self._catalog = catalog
        self._now = now
        self._used: list[tuple[str, str, Tier, int]] = []

    def node(self, node: NodeInfo) -> BillLine:
        detail = f"{node.accelerator_type} {node.tier} {node.state}"
        if node.is_dead:
            return BillLine(node.resource, detail, Payer.NOBODY, 0.0, "dead: costs nothing, holds its name")
        if node.state is NodeState.HALF_MADE:
            return BillLine(node.resource, detail, Payer.NOBODY, 0.0, "half made: no host of it is there")
        payer, price, note = self._charge(node.accelerator_type, node.zone, node.tier, node.api)
        if node.hosts is not None and node.runs_in_part:
            running, wanted = len(node.hosts.running), node.hosts.wanted
            part = None if price is None else price * running / max(running, wanted)
            return BillLine(
                node.resource, detail, payer, part, f"{running} of {counted(wanted, 'host')} run; {note}"
            )
        if node.hosts is not None and not node.hosts.there:
            return BillLine(node.resource, detail, payer, price, f"{note}; from the moment that it has hosts")
        if node.state is NodeState.STOPPED:
            # Chips are not billed while a node is stopped, its disk is (cloud.google.com/tpu/pricing).
            return BillLine(node.resource, detail, Payer.YOU, None, "stopped: its boot disk is billed")
        return BillLine(node.resource, detail, payer, price, note)

    def request(self, request: QueuedInfo) -> BillLine:
        detail = f"{request.accelerator_type} {request.tier} {request.state}"
        if request.state in _DEAD_REQUESTS:
            return BillLine(request.resource, detail, Payer.NOBODY, 0.0, "dead: costs nothing, holds quota")
        payer, price, note = self._charge(request.accelerator_type, request.zone, request.tier)
        when = "from the moment that capacity is found"
        return BillLine(request.resource, detail, payer, price, f"{note}; {when}")

    def _charge(
        self, accelerator_type: str, zone: str, tier: Tier, api: Api = Api.TPU
    ) -> tuple[Payer, float | None, str]:
        found = self._catalog.find(accelerator_type)
        if found is None:
            return Payer.YOU, None, "an accelerator type that no table has"
        used = sum(
            chips
            for where, generation, how, chips in self._used
            if (where, generation) == (zone, found.generation) and same_pool(how, tier)
        )
        coverage = check_coverage(self._grants, found, zone, tier, used, self._now, api)
        price = price_per_hour(self._catalog, found, zone, tier)
        if not coverage.covered:
            return Payer.YOU, price, coverage.reason
        self._used.append((zone, found.generation, tier, found.chips))
        until = f" until {coverage.until}" if coverage.until else ""
        return Payer.GRANT, price, f"{coverage.reason}{until}"


def _asset_cost(asset: CloudResource, prices: OtherPrices) -> tuple[Payer, float | None, str]:
    if asset.kind is ResourceKind.BUCKET and asset.state == "empty":
        return Payer.NOBODY, 0.0, "empty, old versions included"
    price = prices.per_hour(asset)
    if asset.kind is ResourceKind.BUCKET and price is not None and price * HOURS_PER_MONTH < CENT:
        return Payer.NOBODY, price, "less than a cent per month"
    if asset.kind is ResourceKind.ADDRESS and asset.type == "INTERNAL":
        return Payer.NOBODY, 0.0, "internal addresses cost nothing"
    if asset.kind is ResourceKind.INSTANCE:
        return Payer.YOU, None, "billed while it runs; its disks and addresses always"
    if asset.kind is ResourceKind.DISK:
        use = f"used by {counted(len(asset.used_by), 'machine')}" if asset.used_by else "used by nobody"
        return Payer.YOU, price, f"billed by its size until it is deleted; {use}"
    return Payer.YOU, price, "billed until it is deleted"


def _asset_detail(asset: CloudResource) -> str:
    size = ""
    if asset.size_gib is not None:
        more = "over " if asset.at_least else ""
        size = f"{more}{asset.size_gib:.0f} GiB" if asset.size_gib >= 1 else f"{more}{asset.size_gib:.3f} GiB"
    return " ".join(part for part in (asset.type, size, asset.state) if part)


def count_kinds(lines: Iterable[BillLine]) -> dict[str, int]:
    """How many lines of each kind."""
    counts: dict[str, int] = {}
    for line in lines:
        kind = str(line.resource.kind)
        counts[kind] = counts.get(kind, 0) + 1
    return counts
