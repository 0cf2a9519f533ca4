"""Objects of JobSet, Kueue and Kubernetes as their controllers write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CREATED = "2026-11-26T12:00:00Z"


def cluster_queue(
    name: str, quota: Mapping[str, int], *, used: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """A ClusterQueue with so many chips of each flavour."""
    flavors = [
        {"name": flavor, "resources": [{"name": "google.com/tpu", "nominalQuota": str(chips)}]}
        for flavor, chips in quota.items()
    ]
    taken = [
        {"name": flavor, "resources": [{"name": "google.com/tpu", "total": str(chips), "borrowed": "0"}]}
        for flavor, chips in (used or {}).items()
    ]
    return {
        "metadata": {"name": name},
        "spec": {"resourceGroups": [{"coveredResources": ["google.com/tpu"], "flavors": flavors}]},
        "status": {"flavorsReservation": taken, "conditions": [{"type": "Active", "status": "True"}]},
    }


def local_queue(name: str, cluster: str, *, namespace: str = "default") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": cluster}}


def workload(
    owner: str,
    *,
    queue: str,
    chips: int,
    created: str = CREATED,
    priority: int = 0,
    admitted: bool = False,
    why: str = "",
    checks: Sequence[Mapping[str, str]] = (),
    active: bool = True,
    owner_uid: str = "",
) -> dict[str, Any]:
    """A Workload for the JobSet `owner`."""
    pod = {"containers": [{"resources": {"requests": {"google.com/tpu": chips}}}]}
    conditions = []
    if admitted or checks:
        conditions.append({"type": "QuotaReserved", "status": "True"})
    if admitted:
        conditions.append({"type": "Admitted", "status": "True"})
    if why:
        conditions.append({"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": why})
    owned = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": owner, "uid": owner_uid}
    return {
        "metadata": {
            "name": f"jobset-{owner}-1a2b3",
            "namespace": "default",
            "creationTimestamp": created,
            "ownerReferences": [owned],
        },
        "spec": {
            "queueName": queue,
            "priority": priority,
            "active": active,
            "podSets": [{"name": "slice", "count": 1, "template": {"spec": pod}}],
        },
        "status": {"conditions": conditions, "admissionChecks": list(checks)},
    }
