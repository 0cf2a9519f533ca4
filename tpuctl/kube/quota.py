"""Chips of a cluster's queues and who waits for them, read from Kueue's objects."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tpuctl.errors import DeniedError
from tpuctl.kube.capacity import PodDemand, lack_of_flavors
from tpuctl.kube.client import Cluster, Object
from tpuctl.kube.queues import FlavorRow, WaitingRow, flavor_rows, waiting_rows


class UnreadQuota(Struct, frozen=True):
    """What a person may not see, and why."""

    what: str
    why: str


class QueueReport(Struct, frozen=True):
    """The queues of a cluster."""

    flavors: tuple[FlavorRow, ...]
    waiting: tuple[WaitingRow, ...]
    unread: tuple[UnreadQuota, ...] = ()


def queue_report(cluster: Cluster) -> QueueReport:
    """What Kueue of `cluster` says. Who may see one namespace alone gets that. Raises NotFoundError without
    Kueue."""
    unread: list[UnreadQuota] = []

    def readable(what: str, look: Callable[[], list[Object]]) -> list[Object] | None:
        try:
            return look()
        except DeniedError as error:
            if error.details.get("status") != 403:
                raise
            unread.append(UnreadQuota(what, error.message))
            return None

    def everywhere(kind: str) -> list[Object]:
        found = readable(f"{kind}s of other namespaces", lambda: cluster.list(kind, everywhere=True))
        return cluster.list(kind) if found is None else found

    local, workloads = everywhere("LocalQueue"), everywhere("Workload")
    queues = readable("quotas", lambda: cluster.list("ClusterQueue")) or []
    flavors, waiting = flavor_rows(queues, local), waiting_rows(workloads, local)
    return QueueReport(tuple(flavors), tuple(waiting), tuple(unread))


def why_never(cluster: Cluster, local_queue: Object, wanted: PodDemand) -> str:
    """Why a LocalQueue never admits what is wanted; empty where it may, or where that cannot be seen."""
    name = str((local_queue.get("spec") or {}).get("clusterQueue") or "")
    if not name:
        return ""
    try:
        queue = cluster.get("ClusterQueue", name)
        flavors = {str(each["metadata"]["name"]): each for each in cluster.list("ResourceFlavor")}
    except DeniedError:
        return ""
    return lack_of_flavors(wanted, queue, flavors) if queue is not None else ""
