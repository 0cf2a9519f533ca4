"""Who pays for a slice: the grants in the store, what is used of them, and the price otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import NotCoveredError, TransientError
from tpuctl.lib.text import counted
from tpuctl.model.accelerators import Catalog
from tpuctl.model.cloud import STORE_LABEL, Api, NodeState
from tpuctl.model.prices import price_per_hour
from tpuctl.model.records import Desired, SliceRecord
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.money.grants import Coverage, Grant, check_coverage, ended_on, same_pool
from tpuctl.state.repository import Repository, readable_slices

GRANTS = Repository(Grant, "grants")

_GIVEN_BACK = frozenset({NodeState.DELETING, NodeState.PREEMPTED, NodeState.TERMINATED, NodeState.STOPPED})
"""States in which a node holds no chips."""


class Quote(Struct, frozen=True):
    """What a slice costs and whether a grant covers it; `line` says it in words before the first create."""

    line: str
    coverage: Coverage
    cost: str
    elsewhere: str = ""
    """How the same would be covered by another grant, as flags."""

    def check(self, *, pay: bool) -> None:
        """Raises NotCoveredError unless a grant covers the slice or the user agreed to pay."""
        if not (self.coverage.covered or pay):
            granted = f"{self.elsewhere}, where a grant covers it; or " if self.elsewhere else ""
            other = "" if self.elsewhere or not self.coverage.grantable else ", or tpuctl grant import LETTER"
            raise NotCoveredError(
                f"{self.line}; not covered: {self.coverage.reason}",
                hint=f"{granted}add --pay to pay for it{other}",
            )


def list_grants(services: Services) -> list[Grant]:
    """Every grant in the store that can be read; a damaged one covers nothing."""
    return GRANTS.readable(services)[0]


def keep_grant(services: Services, grant: Grant) -> None:
    """Writes a grant over the one for the same zone, tier and generation."""
    GRANTS.overwrite(services, grant.name, grant)


def quote(
    services: Services,
    catalog: Catalog,
    name: str,
    spec: SliceSpec,
    beside: Mapping[str, SliceSpec] | None = None,
    *,
    without: str = "",
) -> Quote:
    """The quote for slice `name`; what other wanted slices use of the same grant counts against it.

    `beside` are slices that are about to be wanted, by name; `without` is the node that the slice is about to
    be, which uses nothing beside it.
    """
    found = catalog.of(spec.accelerator_type, spec.topology, spec.slices)
    grants = list_grants(services)
    records, damaged = readable_slices(services)
    used, now = chips_in_use(records, catalog, name, spec, beside), services.store.now()
    coverage = check_coverage(grants, found, spec.zone, spec.tier, used, now, spec.api)
    if coverage.covered and damaged:
        coverage = Coverage(False, None, f"{damaged[0].message}, so what it uses of grants is not known")
    if coverage.covered:
        used += _chips_of_others(services, catalog, found.generation, spec, without)
        coverage = check_coverage(grants, found, spec.zone, spec.tier, used, now)
    price = price_per_hour(catalog, found, spec.zone, spec.tier)
    cost = "price unknown" if price is None else f"about ${price:.2f} per hour"
    hosts = counted(found.hosts, "host")
    paid = f"covered until {coverage.until or 'further notice'}" if coverage.covered else cost
    kind = found.name if spec.slices == 1 else f"{spec.slices} x {found.name}"
    what = f"{name}:" if kind == name else f"{name}: {kind},"
    line = f"{what} {hosts}, {counted(found.chips, 'chip')}, {spec.zone}, {spec.tier}, {paid}"
    if coverage.covered or spec.api is Api.COMPUTE:
        return Quote(line, coverage, cost)

    def covers(grant: Grant) -> bool:
        there = replace(spec, zone=grant.zone, tier=grant.tier)
        chips = chips_in_use(records, catalog, name, there, beside)
        return check_coverage(grants, found, there.zone, there.tier, chips, now).covered

    return Quote(line, coverage, cost, _where_granted(filter(covers, grants), found.zones, spec))


def _where_granted(covering: Iterable[Grant], zones: Sequence[str], spec: SliceSpec) -> str:
    """The flags with which the first of the grants that cover a slice elsewhere does; of its tier if there is
    one."""
    there = [each for each in covering if each.zone in zones]
    for grant in sorted(there, key=lambda each: not same_pool(each.tier, spec.tier)):
        tier = "" if same_pool(grant.tier, spec.tier) else f"--{grant.tier} "
        return f"{tier}--zone {grant.zone}"
    return ""


def chips_in_use(
    records: Iterable[SliceRecord],
    catalog: Catalog,
    name: str,
    spec: SliceSpec,
    beside: Mapping[str, SliceSpec] | None = None,
) -> int:
    """Chips of those `records`, other than `name`, that are wanted and draw on the same grant as `spec`."""
    generation = catalog.of(spec.accelerator_type, spec.topology).generation
    beside = beside or {}
    wanted = [
        (each.name, place.spec)
        for each in records
        if each.desired is Desired.UP and each.name not in beside
        for place in each.places
    ]
    return sum(
        other.chips
        for other_name, other in [*wanted, *beside.items()]
        if other_name != name
        and (other.zone, other.api) == (spec.zone, spec.api)
        and same_pool(other.tier, spec.tier)
        and catalog.of(other.accelerator_type, other.topology).generation == generation
    )


def _chips_of_others(
    services: Services, catalog: Catalog, generation: str, spec: SliceSpec, without: str
) -> int:
    """Chips of live nodes on the same grant that this store did not make: a grant is the whole project's.

    A zone that cannot be read counts as empty; the API refuses what is too much.
    """
    try:
        nodes = services.cloud.list_nodes(spec.zone).items
    except TransientError:
        return 0
    store = services.store.identity()
    others = [
        node
        for node in nodes
        if node.labels.get(STORE_LABEL) != store and node.state not in _GIVEN_BACK and node.name != without
    ]
    found = [catalog.find(node.accelerator_type) for node in others if same_pool(node.tier, spec.tier)]
    return sum(kind.chips for kind in found if kind is not None and kind.generation == generation)


def ended_grant(services: Services, record: SliceRecord) -> str:
    """Says that the grant of a slice ended; empty otherwise, and for what is paid for."""
    if record.pay or record.spec.api is Api.COMPUTE:
        return ""
    found = load_accelerators().of(record.spec.accelerator_type, record.spec.topology)
    last_day = ended_on(
        list_grants(services), found.generation, record.spec.zone, record.spec.tier, services.store.now()
    )
    if last_day is None:
        return ""
    return f"the grant for {record.spec.tier} {found.generation} in {record.spec.zone} ended on {last_day}"
