"""Reads what `doctor.cluster` judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tpuctl.doctor.cluster import ACCELERATOR, ClusterFacts
from tpuctl.engine.services import Services
from tpuctl.kube.client import Cluster
from tpuctl.lib.parallel import read_all
from tpuctl.model.timeouts import KUBE_CALL_S


def read_cluster(services: Services, cluster: Cluster, buckets: Sequence[str]) -> ClusterFacts:
    """Everything, within the time of two requests. The first says which kinds there are."""
    kinds = ("JobSet", "Workload")
    versions = read_all({"kinds": lambda: {kind: cluster.path(kind) for kind in kinds}}, timeout_s=KUBE_CALL_S)
    looks: dict[str, Callable[[], Any]] = {
        "namespace": partial(cluster.get, "Namespace", cluster.namespace),
        "nodes": partial(cluster.list, "Node", ACCELERATOR),
        "queues": partial(cluster.list, "LocalQueue"),
        "account": partial(cluster.get, "ServiceAccount", "default"),
        **{f"bucket {name}": partial(services.project_api.bucket_members, name) for name in buckets},
    }
    seen = read_all(looks, timeout_s=KUBE_CALL_S)
    members = {name: seen.pop(f"bucket {name}") for name in buckets}
    return ClusterFacts(
        place=cluster.place,
        project=project_of(cluster.place.context) or services.project,
        versions=versions["kinds"],
        members=members,
        **seen,
    )


def project_of(context: str) -> str:
    """The project in the name that gcloud gives a context, `gke_PROJECT_LOCATION_CLUSTER`; empty for others."""
    parts = context.split("_")
    return parts[1] if len(parts) == 4 and parts[0] == "gke" else ""
