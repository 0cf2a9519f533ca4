"""Whether a cluster can have the pods of a run: by its nodes, and by the flavors of its queue. Pure.

A queue whose flavors are all for other nodes never admits a run, which is certain. That no node has the labels
says less: pools that grow from zero have no nodes before a pod wants them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.kube.queues import CHIPS, condition, pod_chips, quantity, quotas
from tpuctl.lib.names import region_of
from tpuctl.lib.text import counted
from tpuctl.model.clusters import ClusterPlace

Object = Mapping[str, Any]
ACCELERATOR, TOPOLOGY = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
REGION = "topology.kubernetes.io/region"
NODE_POOL = "cloud.google.com/gke-nodepool"


class PodDemand(Struct, frozen=True):
    """What the pods of a run ask of nodes: labels with their values, `chips` on each, and `total` of all."""

    labels: Mapping[str, str]
    chips: int
    total: int

    def __str__(self) -> str:
        accelerator, topology = (self.labels.get(key, "") for key in (ACCELERATOR, TOPOLOGY))
        more = sorted(
            f"{key.rpartition('/')[2]}={value}"
            for key, value in self.labels.items()
            if key not in (ACCELERATOR, TOPOLOGY)
        )
        return " ".join((accelerator, topology, f"with {counted(self.chips, 'chip')} a node", *more))


def wanted_by(jobset: Object) -> PodDemand:
    """What a JobSet of ours asks of nodes."""
    [group] = jobset["spec"]["replicatedJobs"]
    job = group["template"]["spec"]
    pod = job["template"]["spec"]
    chips = pod_chips(pod)
    return PodDemand(pod["nodeSelector"], chips, chips * job["parallelism"] * group["replicas"])


def pools_of(nodes: Iterable[Object]) -> list[str]:
    """The nodes by pool and kind, for people."""
    pools: Counter[str] = Counter()
    for node in nodes:
        labels = _labels(node)
        kind = f"{labels.get(ACCELERATOR)} {labels.get(TOPOLOGY)}, {counted(_chips(node), 'chip')} a node"
        pools[f"{labels.get(NODE_POOL, 'a pool')} ({kind})"] += 1
    return [f"{name}: {counted(count, 'node')}" for name, count in sorted(pools.items())]


def lack_of_nodes(wanted: PodDemand, nodes: Sequence[Object]) -> str:
    """Why no node that is up takes a pod; empty where one does."""
    if any(
        _chips(each) == wanted.chips and _matches(wanted.labels, _labels(each)) and _takes_pods(each)
        for each in nodes
    ):
        return ""
    there = "; ".join(pools_of(filter(_takes_pods, nodes))) or "none with TPUs is up"
    return f"no node is {wanted} ({there})"


def lack_of_flavors(wanted: PodDemand, queue: Object, flavors: Mapping[str, Object]) -> str:
    """Why a ClusterQueue never admits the run; empty where it may. Of a flavor that is not among `flavors`
    nothing is known. Kueue looks at the labels that a flavor has, and at no others (flavorassigner.go of
    kubernetes-sigs/kueue v0.19.0), and a cohort may lend what the quota lacks."""
    spec, whys = queue.get("spec") or {}, list[str]()
    cohort = spec.get("cohortName") or spec.get("cohort")
    for name, quota in quotas(spec).items():
        if name not in flavors:
            return ""
        labels = (flavors[name].get("spec") or {}).get("nodeLabels") or {}
        other = [
            f"{key.rpartition('/')[2]}={value}"
            for key, value in labels.items()
            if wanted.labels.get(key, value) != value
        ]
        if other:
            whys.append(f"{name} is for {', '.join(other)}")
        elif quota < wanted.total and not cohort:
            whys.append(f"{name} has {counted(quota, 'chip')} in all, not {wanted.total}")
        else:
            return ""
    return "; ".join(whys) or "none of its flavors has TPUs"


def region_of_cluster(place: ClusterPlace, zones: Iterable[str], nodes: Iterable[Object]) -> str:
    """By the zones that were asked for, the name of the context, or the label of a node; empty where none
    tells. A cluster is in one region."""
    told = (*zones, place.of_gcloud[1], *(_labels(node).get(REGION, "") for node in nodes))
    where = next(filter(None, told), "")
    return region_of(where) if where.count("-") > 1 else where


def _matches(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())


def _takes_pods(node: Object) -> bool:
    """Whether it is not cordoned, and its kubelet has not said that it is not ready."""
    cordoned = (node.get("spec") or {}).get("unschedulable")
    return not cordoned and condition(node, "Ready").get("status", "True") == "True"


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _chips(node: Object) -> int:
    return quantity(((node.get("status") or {}).get("allocatable") or {}).get(CHIPS, 0))
