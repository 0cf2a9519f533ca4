"""What a cluster lacks for a run is told before anything is made there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube.jobs import a_job
from tests.kube.lab import Lab
from tests.support.kube_objects import cluster_queue, flavor, local_queue, node
from tpuctl.engine.events import Warn
from tpuctl.errors import NotFoundError
from tpuctl.kube.capacity import lack_of_flavors, lack_of_nodes, wanted_by
from tpuctl.kube.jobset import ClusterCapacity, SecretKey, jobset
from tpuctl.kube.submit import check_cluster
from tpuctl.model.hosts import Tier

SECRETS = {"TOKEN": SecretKey("keys", "TOKEN")}


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (None, "there is no Secret keys", "kubectl --context tpu create secret generic keys --namespace"),
        ({"OTHER": "eA=="}, "there is no key TOKEN in Secret keys", "delete secret keys; kubectl"),
    ],
)
def test_a_secret_that_is_not_there_is_told_before_anything_is_applied(
    lab: Lab, data: dict[str, str] | None, message: str, hint: str
) -> None:
    if data is not None:
        lab.api.put("secrets", "keys", {"data": data})
    with pytest.raises(NotFoundError, match=message) as refused:
        check_cluster(lab.services, lab.cluster, a_job(secrets=SECRETS))
    assert hint in str(refused.value.hint)
    lab.api.put("secrets", "keys", {"data": {"TOKEN": "eA=="}})
    check_cluster(lab.services, lab.cluster, a_job(secrets=SECRETS))
    lab.api.remove("secrets", "keys")
    lab.api.denied["secrets"] = "secrets is forbidden"
    check_cluster(
        lab.services, lab.cluster, a_job(secrets=SECRETS)
    )  # who may not see it learns from the kubelet


SHAPE = {"accelerator": "tpu-v6e-slice", "topology": "4x4"}
WANTED = wanted_by(jobset(a_job("v6e-16", slices=2)))


NOT_READY = {**node(**SHAPE)["status"], "conditions": [{"type": "Ready", "status": "Unknown"}]}


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node(**SHAPE)], ""),
        ([], "(none with TPUs is up)"),
        ([node(**SHAPE, chips=8)], "tpu-v6e-slice 4x4, 8 chips a node"),
        ([node(accelerator="tpu-v6e-slice", topology="2x4")], "2x4"),
        ([node(**SHAPE), node(accelerator="tpu-v5p-slice", topology="4x4")], ""),
        ([{**node(**SHAPE), "spec": {"unschedulable": True}}], "(none with TPUs is up)"),
        (
            [{**node(**SHAPE), "status": NOT_READY}],
            "none with TPUs",
        ),
    ],
)
def test_a_node_takes_a_pod_by_all_labels_and_its_chips(nodes: list[Any], why: str) -> None:
    said = lack_of_nodes(WANTED, nodes)
    assert (why in said) if why else said == ""


def test_what_capacity_is_wanted_is_a_label_too() -> None:
    spot = wanted_by(jobset(a_job("v6e-16", provisioning=ClusterCapacity(Tier.SPOT))))
    assert "no node is tpu-v6e-slice 4x4 with 4 chips a node gke-spot=true" in lack_of_nodes(
        spot, [node(**SHAPE)]
    )
    assert lack_of_nodes(spot, [node(**SHAPE, **{"gke-spot": "true"})]) == ""


OTHER = flavor(accelerator="tpu-v6e-slice", topology="2x4")
FLAVORS = {"own": flavor(**SHAPE), "any": flavor(), "other": OTHER}


@pytest.mark.parametrize(
    ("quota", "spec", "why"),
    [
        ({"own": 32}, {}, ""),
        ({"other": 64, "any": 32}, {}, ""),
        ({"other": 64}, {}, "other is for gke-tpu-topology=2x4"),
        ({"own": 16}, {}, "own has 16 chips in all, not 32"),
        ({"own": 16}, {"cohortName": "all"}, ""),
        ({"own": 16}, {"cohort": "all"}, ""),
        ({"unseen": 0}, {}, ""),
        ({}, {}, "none of its flavors has TPUs"),
    ],
)
def test_a_queue_admits_by_the_labels_of_its_flavors_and_their_quota(
    quota: dict[str, int], spec: dict[str, str], why: str
) -> None:
    queue = cluster_queue("cq", quota)
    assert lack_of_flavors(WANTED, {**queue, "spec": {**queue["spec"], **spec}}, FLAVORS) == why


def test_a_queue_that_never_admits_it_is_refused_and_a_node_that_is_not_up_is_told(lab: Lab) -> None:
    lab.api.put("clusterqueues", "cq", cluster_queue("cq", {"other": 64}), namespace="")
    lab.api.put("resourceflavors", "other", OTHER, namespace="")
    lab.api.put("localqueues", "tpu", local_queue("tpu", "cq"))
    with pytest.raises(NotFoundError, match="queue tpu of gke:tpu/default never admits tpu-v6e-slice 4x4"):
        check_cluster(lab.services, lab.cluster, a_job(queue="tpu"))
    lab.api.put("resourceflavors", "other", flavor(**SHAPE), namespace="")
    check_cluster(lab.services, lab.cluster, a_job(queue="tpu"))
    [told] = [each.text for each in lab.services.events if isinstance(each, Warn)]
    assert "none with TPUs is up): its pods wait until a pool grows" in told
    for kind in ("nodes", "clusterqueues"):
        lab.api.denied[kind] = f"{kind} is forbidden"
    lab.api.put("resourceflavors", "other", OTHER, namespace="")
    check_cluster(lab.services, lab.cluster, a_job(queue="tpu"))
    assert (len([each for each in lab.services.events if isinstance(each, Warn)]), lab.api.changes) == (1, [])
