"""All TPUs of a project: what both APIs list, read at the same time.

Objects of one API are invisible to the other. Where Compute Engine refuses, as in projects that do not use it,
the rest is read all the same, and whoever asked says what is missing: absence proves nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.lib.parallel import read_all
from tpuctl.model import timeouts
from tpuctl.model.cloud import Api, Listing, NodeInfo, QueuedInfo
from tpuctl.model.records import SliceRecord

NODES, QUEUED, INSTANCES = "nodes", "queued resources", "TPUs of Compute Engine"


class TpuLists(Struct, frozen=True):
    """The TPUs of both APIs; `refused` is why those of Compute Engine are not among them."""

    nodes: Listing[NodeInfo]
    queued: Listing[QueuedInfo]
    refused: TpuctlError | None = None

    @property
    def unreachable(self) -> frozenset[str]:
        return self.nodes.unreachable | self.queued.unreachable

    def is_dark(self, zone: str, api: Api) -> bool:
        """Whether absence there proves nothing."""
        return zone in self.unreachable or (api is Api.COMPUTE and self.refused is not None)


def apis_in_use(records: Iterable[SliceRecord]) -> tuple[Api, ...]:
    """The APIs that a pass reads: that of TPUs, and Compute Engine where a slice is or was made of it."""
    used = {place.spec.api for record in records for place in record.places}
    return tuple(api for api in Api if api is Api.TPU or api in used)


def list_tpus(services: Services, zone: str = "-") -> TpuLists:
    """What both APIs list now. Raises for the TPU API; that Compute Engine refuses is a warning."""
    looks: dict[str, Callable[[], Listing[Any]]] = {
        NODES: lambda: services.cloud.list_nodes(zone),
        QUEUED: lambda: services.cloud.list_queued(zone),
        INSTANCES: lambda: services.tpus(Api.COMPUTE).list_nodes(zone),
    }
    found = read_all(looks, timeout_s=timeouts.LISTS_S)
    nodes, queued, instances = found[NODES], found[QUEUED], found[INSTANCES]
    for reading in (nodes, queued):
        if reading.error is not None:
            raise reading.error
    listed: Listing[NodeInfo] = nodes.value or Listing(())
    if instances.value is not None:
        both = (*listed.items, *instances.value.items)
        listed = Listing(both, listed.unreachable | instances.value.unreachable)
    if instances.error is not None:
        why = f"{INSTANCES} could not be listed: {instances.error.message}; what is there is unknown"
        services.emit(Warn("", why))
    return TpuLists(listed, queued.value or Listing(()), instances.error)
