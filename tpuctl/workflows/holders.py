"""Who holds what of a quota, so that a refusal says whom to ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.core.grants import same_pool
from tpuctl.core.model import USER_LABEL, NodeInfo, QueuedInfo, Tier
from tpuctl.core.naming import region_of
from tpuctl.core.records import SliceSpec
from tpuctl.core.topology import Catalog
from tpuctl.errors import QuotaError, TpuctlError
from tpuctl.resources import load_accelerators
from tpuctl.workflows.services import Services

NAMED_MAX = 5
NOBODY = "somebody without tpuctl"


@dataclass(frozen=True)
class Holder:
    """One TPU, or one request for one, that counts against a quota; dead requests do until they are deleted."""

    user: str
    name: str
    zone: str
    accelerator_type: str
    chips: int
    state: str

    def __str__(self) -> str:
        return f"{self.user or NOBODY} holds {self.name} ({self.accelerator_type}, {self.zone}, {self.state})"


def holders(services: Services, generation: str, zone: str, tier: Tier) -> list[Holder]:
    """Everything of one generation and pool in the region of `zone`, the largest first.

    TPU quotas are per zone or per region (Cloud TPU documentation, "quotas"), so the whole region is shown.
    """
    catalog = load_accelerators()
    nodes = services.cloud.list_nodes().items
    standing = {(node.zone, node.queued_resource) for node in nodes}
    requests = services.cloud.list_queued().items
    all_of_them: list[NodeInfo | QueuedInfo] = [*nodes]
    all_of_them += [each for each in requests if (each.zone, each.name) not in standing]
    found = [
        _holder(catalog, each)
        for each in all_of_them
        if region_of(each.zone) == region_of(zone)
        and same_pool(each.tier, tier)
        and _generation(catalog, each.accelerator_type) == generation
    ]
    return sorted(found, key=lambda holder: (-holder.chips, holder.name))


def _generation(catalog: Catalog, accelerator_type: str) -> str:
    found = catalog.find(accelerator_type)
    return found.generation if found else ""


def _holder(catalog: Catalog, each: NodeInfo | QueuedInfo) -> Holder:
    found = catalog.find(each.accelerator_type)
    chips = found.chips if found else 0
    user = each.labels.get(USER_LABEL, "")
    return Holder(user, each.name, each.zone, each.accelerator_type, chips, str(each.state))


def name_holders(services: Services, spec: SliceSpec, error: QuotaError) -> QuotaError:
    """The same refusal with the holders of that quota in its words and details.

    It stays as it was if they cannot be read.
    """
    generation = _generation(load_accelerators(), spec.accelerator_type)
    try:
        found = holders(services, generation, spec.zone, spec.tier)
    except TpuctlError:
        return error  # the refusal is the news; who holds the rest is an extra
    if not found:
        return error
    rows = [{"user": h.user, "name": h.name, "zone": h.zone, "chips": h.chips, "state": h.state} for h in found]
    message = f"{error.message}; {_in_words(found)}"
    return QuotaError(message, hint=error.hint, details={**error.details, "holders": rows})


def _in_words(found: Sequence[Holder]) -> str:
    more = f", and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return ", ".join(str(holder) for holder in found[:NAMED_MAX]) + more
