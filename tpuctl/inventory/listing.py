"""All TPUs of a project: what both APIs list, read at the same time.

Objects of one API are invisible to the other. Where one of them refuses, as in projects that do not use it, the
rest is read all the same, and whoever asked says what is missing: absence proves nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.errors import DeniedError, TpuctlError
from tpuctl.lib.parallel import read_all
from tpuctl.model import timeouts
from tpuctl.model.cloud import Api, Listing, NodeInfo, QueuedInfo
from tpuctl.model.records import SliceRecord

NODES, QUEUED, INSTANCES = "nodes", "queued resources", "TPUs of Compute Engine"
TPUS_OF: Mapping[Api, str] = {Api.TPU: "TPUs of the Cloud TPU API", Api.COMPUTE: INSTANCES}


class TpuLists(Struct, frozen=True):
    """The TPUs of both APIs; `refused` is why those of one of them are not here."""

    nodes: Listing[NodeInfo]
    queued: Listing[QueuedInfo]
    refused: Mapping[Api, TpuctlError] = {}

    @property
    def unreachable(self) -> frozenset[str]:
        return self.nodes.unreachable | self.queued.unreachable

    def is_dark(self, zone: str, api: Api) -> bool:
        """Whether absence there proves nothing."""
        return zone in self.unreachable or api in self.refused

    @property
    def not_read(self) -> Sequence[str]:
        """The zones and the kinds of which absence proves nothing."""
        return (*sorted(self.unreachable), *(TPUS_OF[api] for api in self.refused))


def apis_in_use(records: Iterable[SliceRecord]) -> frozenset[Api]:
    """The APIs by which slices are or were made."""
    return frozenset(place.spec.api for record in records for place in record.places)


def list_tpus(services: Services, zone: str = "-") -> TpuLists:
    """What both APIs list now. What one of them refuses is a warning, as is any trouble with Compute Engine.
    Raises for other trouble with the TPU API, and where nothing is left to show."""
    looks: dict[str, Callable[[], Listing[Any]]] = {
        NODES: lambda: services.cloud.list_nodes(zone),
        QUEUED: lambda: services.cloud.list_queued(zone),
        INSTANCES: lambda: services.tpus(Api.COMPUTE).list_nodes(zone),
    }
    found = read_all(looks, timeout_s=timeouts.LISTS_S)
    nodes, queued, instances = found[NODES], found[QUEUED], found[INSTANCES]
    errors = {Api.TPU: nodes.error or queued.error, Api.COMPUTE: instances.error}
    refused = {api: error for api, error in errors.items() if error is not None}
    trouble = refused.get(Api.TPU)
    if trouble is not None and (len(refused) == len(errors) or not isinstance(trouble, DeniedError)):
        raise trouble
    lists = [each.value for each in (nodes, instances) if each.value is not None]
    listed = Listing(
        tuple(node for each in lists for node in each.items),
        frozenset(dark for each in lists for dark in each.unreachable),
    )
    for api, error in refused.items():
        why = f"{TPUS_OF[api]} could not be listed: {error.message}; what is there is unknown"
        services.emit(Warn("", why))
    return TpuLists(listed, queued.value or Listing(()), refused)
