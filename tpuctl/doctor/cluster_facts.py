"""Reads what `doctor.cluster` judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tpuctl.doctor.cluster import ClusterFacts
from tpuctl.engine.services import Services
from tpuctl.errors import UsageError
from tpuctl.kube.capacity import ACCELERATOR, TOPOLOGY, PodDemand
from tpuctl.kube.client import Cluster
from tpuctl.kube.quota import why_never
from tpuctl.kube.shape import resolve_shape
from tpuctl.lib.parallel import read_all
from tpuctl.model.shipped_files import load_accelerators, load_gke_table
from tpuctl.model.timeouts import KUBE_CALL_S


def read_cluster(
    services: Services, cluster: Cluster, buckets: Sequence[str], accelerator: str | None = None
) -> ClusterFacts:
    """Everything, within the time of a few requests. The first says which kinds there are."""
    wanted = _wanted(accelerator) if accelerator else None
    kinds = ("JobSet", "Workload")
    versions = read_all({"kinds": lambda: {kind: cluster.path(kind) for kind in kinds}}, timeout_s=KUBE_CALL_S)
    looks: dict[str, Callable[[], Any]] = {
        "namespace": partial(cluster.get, "Namespace", cluster.namespace),
        "nodes": partial(cluster.list, "Node", ACCELERATOR),
        "queues": partial(cluster.list, "LocalQueue"),
        "refusing": partial(_refusing, cluster, wanted),
        "account": partial(cluster.get, "ServiceAccount", "default"),
        **{f"bucket {name}": partial(services.project_api.bucket_members, name) for name in buckets},
    }
    seen = read_all(looks, timeout_s=KUBE_CALL_S)
    members = {name: seen.pop(f"bucket {name}") for name in buckets}
    return ClusterFacts(
        place=cluster.place,
        project=cluster.place.of_gcloud[0] or services.project,
        versions=versions["kinds"],
        members=members,
        wanted=wanted,
        **seen,
    )


def _wanted(accelerator: str) -> PodDemand | None:
    """By a run of that type; None for one that is for slices alone."""
    try:
        shape = resolve_shape(load_gke_table(), load_accelerators(), accelerator)
    except UsageError:
        return None
    labels = {ACCELERATOR: shape.accelerator, TOPOLOGY: shape.topology}
    return PodDemand(labels, shape.chips_per_host, shape.chips)


def _refusing(cluster: Cluster, wanted: PodDemand | None) -> dict[str, str]:
    """The LocalQueues of the namespace that never admit what is wanted, and why."""
    queues = cluster.list("LocalQueue") if wanted is not None else []
    said = {str(each["metadata"]["name"]): why_never(cluster, each, wanted) for each in queues if wanted}
    return {name: why for name, why in said.items() if why}
