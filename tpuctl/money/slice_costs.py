"""What slices cost and who pays for them, for `ls` and `status`: the lines of `bill`, by slice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tpuctl.engine.services import Services, list_queued
from tpuctl.errors import TransientError
from tpuctl.lib.names import node_names
from tpuctl.model.cloud import NodeInfo, QueuedInfo
from tpuctl.model.prices import price_per_hour
from tpuctl.model.records import SliceRecord
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.money.bill import BillLine, Payer, tpu_lines
from tpuctl.money.coverage import list_grants

UNKNOWN = {"payer": "", "usd_per_hour": None, "paid": ""}
"""The cost of what the cloud does not show."""


class Costs:
    """Costs of TPUs by zone and name. Grants go to the oldest, so that all `nodes` and `requests` of a zone
    must be given."""

    def __init__(self, services: Services, nodes: Sequence[NodeInfo], requests: Sequence[QueuedInfo]) -> None:
        lines = tpu_lines(nodes, requests, list_grants(services), load_accelerators(), services.store.now())
        self._lines = {(line.resource.location, line.resource.name): line for line in lines}

    def of(self, zone: str, names: Iterable[str]) -> dict[str, Any]:
        """Who pays for the TPUs of these names, in total for them USD per hour by the list (None where a price
        is not known), and why."""
        found = [self._lines[zone, name] for name in dict.fromkeys(names) if (zone, name) in self._lines]
        if not found:
            return dict(UNKNOWN)
        first = min(found, key=_burden)
        prices = [line.per_hour for line in found]
        known = [price for price in prices if price is not None]
        total = round(sum(known), 6) if len(known) == len(prices) else None
        return {"payer": str(first.payer), "usd_per_hour": total, "paid": first.note}


def list_price(spec: SliceSpec) -> float | None:
    """USD per hour of a slice by the list, whoever pays; None where the tables have none."""
    catalog = load_accelerators()
    found = catalog.find(spec.accelerator_type)
    price = None if found is None else price_per_hour(catalog, found, spec.zone, spec.tier)
    return None if price is None else price * spec.slices


def names_shown(record: SliceRecord) -> list[str]:
    """Names under which the cloud may show a slice: its node, the nodes of a multislice, its request."""
    life = record.incarnation
    if life is None:
        return []
    return [life.cloud_name, *node_names(life.cloud_name, record.spec.slices), life.queued_name]


def slice_cost(services: Services, record: SliceRecord) -> dict[str, Any]:
    """What one slice costs, beside all else that draws on grants of its zone; unknown while that cannot be
    read."""
    zone = record.spec.zone
    try:
        nodes = services.tpus(record.spec.api).list_nodes(zone)
        requests = list_queued(services, record.spec.api, zone)
    except TransientError:
        return dict(UNKNOWN)
    return Costs(services, nodes.items, requests.items).of(zone, names_shown(record))


def _burden(line: BillLine) -> int:
    """Sorts what you pay for first, then what is covered, then what is free."""
    return list(Payer).index(line.payer) if line.payer is not Payer.YOU else -1
