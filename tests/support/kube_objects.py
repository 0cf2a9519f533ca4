"""Objects of JobSet, Kueue and Kubernetes as their controllers write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.model.clusters import ClusterPlace, ClusterRun

CREATED = "2026-11-26T12:00:00Z"
AT = {"lastTransitionTime": CREATED}


def condition(kind: str, status: str = "True", reason: str = "ByTheTest", said: str = "") -> dict[str, str]:
    """A condition of a status."""
    return {"type": kind, "status": status, "reason": reason, "message": said, **AT}


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
        "status": {"flavorsReservation": taken, "conditions": [condition("Active")]},
    }


def flavor(**labels: str) -> dict[str, Any]:
    """A ResourceFlavor for nodes with these labels of GKE's TPUs; without any for all."""
    found = {f"cloud.google.com/gke-tpu-{key}": value for key, value in labels.items()}
    return {"metadata": {}, "spec": {"nodeLabels": found}}


def node(*, accelerator: str, topology: str, chips: int = 4, **labels: str) -> dict[str, Any]:
    """A node of a pool with TPUs, and further labels of GKE."""
    named = {"gke-nodepool": "pool", "gke-tpu-accelerator": accelerator, "gke-tpu-topology": topology, **labels}
    found = {f"cloud.google.com/{key}": value for key, value in named.items()}
    return {"metadata": {"labels": found}, "status": {"allocatable": {"google.com/tpu": str(chips)}}}


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
    pod = {"containers": [{"name": "program", "resources": {"requests": {"google.com/tpu": chips}}}]}
    conditions = []
    if admitted or checks:
        conditions.append(condition("QuotaReserved"))
    if admitted:
        conditions.append(condition("Admitted"))
    if why:
        conditions.append(condition("QuotaReserved", "False", "Pending", why))
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
        "status": {
            "conditions": conditions,
            "admissionChecks": [{"lastTransitionTime": CREATED, **each} for each in checks],
        },
    }


def a_cluster_run(**changes: Any) -> ClusterRun:
    """A run of two slices of two hosts, whose JobSet was applied."""
    values: dict[str, Any] = {
        "place": ClusterPlace("tpu", "default"),
        "name": "train",
        "documents": "0" * 64,
        "record": "mark-1",
        "hosts": 2,
        "slices": 2,
        "chips": 16,
        "generation": "v6e",
        "uid": "uid-7",
    }
    return ClusterRun(**{**values, **changes})


def jobset(name: str = "train", *, run: str = "r1", uid: str = "uid-7", **changes: Any) -> dict[str, Any]:
    """A JobSet with the status of `changes`: restarts, counted, ended, said, suspended, leaving."""
    ended, conditions = changes.get("ended"), []
    if ended:
        conditions.append({"type": ended, "status": "True", "message": changes.get("said", "")})
    metadata: dict[str, Any] = {"name": name, "uid": uid, "labels": {"tpuctl/run": run}}
    if changes.get("leaving"):
        metadata["deletionTimestamp"] = CREATED
    status = {
        "restarts": changes.get("restarts", 0),
        "restartsCountTowardsMax": changes.get("counted", 0),
        "conditions": conditions,
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {"suspend": bool(changes.get("suspended"))},
        "status": status,
    }


def pod(
    name: str,
    *,
    job: int,
    index: int,
    state: Mapping[str, Any] | None = None,
    owner: str = "train",
    restart: int = 0,
    created: str = CREATED,
    init: Mapping[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """A pod whose container `program` is in this state, by default running."""
    state = {"running": {"startedAt": CREATED}} if state is None else state
    ended = state.get("terminated")
    phase = ("Failed" if ended["exitCode"] else "Succeeded") if ended else "Running"
    found: dict[str, Any] = {
        "phase": phase if "waiting" not in state else "Pending",
        "containerStatuses": [{"name": "program", "image": "img", "state": dict(state)}],
    }
    if init is not None:
        found["initContainerStatuses"] = [{"name": "prepare", "image": "img", "state": dict(init)}]
    labels = {
        "jobset.sigs.k8s.io/jobset-name": owner,
        "jobset.sigs.k8s.io/job-index": str(job),
        "jobset.sigs.k8s.io/restart-attempt": str(restart),
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": created},
        "spec": {"nodeName": f"node-{job}-{index}"},
        "status": {**found, **status},
    }


def exited(code: int, *, at: str = CREATED) -> dict[str, Any]:
    """The state of a container that ended."""
    return {"terminated": {"exitCode": code, "startedAt": CREATED, "finishedAt": at}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """The state of a container that does not begin."""
    return {"waiting": {"reason": reason, "message": message}}
