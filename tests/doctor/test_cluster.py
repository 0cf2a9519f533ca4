"""The rules about clusters, one set of facts at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tpuctl.doctor.cluster import ClusterFacts, judge_cluster
from tpuctl.errors import DeniedError, NoAnswerError
from tpuctl.kube.capacity import PodDemand
from tpuctl.lib.parallel import Reading
from tpuctl.model.clusters import ClusterPlace

POOL = {
    "cloud.google.com/gke-nodepool": "v6e",
    "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
    "cloud.google.com/gke-tpu-topology": "4x4",
    "iam.gke.io/gke-metadata-server-enabled": "true",
}
SUBJECT = "locations/global/workloadIdentityPools/p-roject.svc.id.goog/subject/ns/default/sa/default"
DENIED: Reading[Any] = Reading(error=DeniedError("nodes is forbidden", hint="ask"))


def node(labels: Mapping[str, str] = POOL) -> dict[str, Any]:
    return {"metadata": {"labels": dict(labels)}, "status": {"allocatable": {"google.com/tpu": "4"}}}


def facts(**changes: Any) -> ClusterFacts:
    """Everything is well."""
    member = f"principal://iam.googleapis.com/projects/12/{SUBJECT}"
    values: dict[str, Any] = {
        "place": ClusterPlace("tpu", "default"),
        "project": "p-roject",
        "versions": Reading(
            {"JobSet": "/apis/jobset.x-k8s.io/v1alpha2", "Workload": "/apis/kueue.x-k8s.io/v1beta2"}
        ),
        "namespace": Reading({"metadata": {}}),
        "nodes": Reading([node(), node()]),
        "queues": Reading([{"metadata": {"name": "tpu"}}]),
        "refusing": Reading({}),
        "account": Reading({"metadata": {}}),
        "members": {"ckpt": Reading({"roles/storage.objectUser": (member,)})},
    }
    return ClusterFacts(**values | changes)


def test_all_is_well_where_all_is_there() -> None:
    found = judge_cluster(facts())
    assert {str(each.level) for each in found} == {"ok"}
    said = {each.check: each.what for each in found}
    assert said["tpu nodes"] == "v6e (tpu-v6e-slice 4x4, 4 chips a node): 2 nodes"
    assert said["jobset"] == "JobSet is there, as jobset.x-k8s.io/v1alpha2"
    assert said["bucket ckpt"] == "pods may write there, by roles/storage.objectUser"


PLAIN = {key: value for key, value in POOL.items() if not key.startswith("iam")}
BAD = [
    (
        "versions",
        Reading(error=NoAnswerError("cluster tpu does not answer")),
        "context",
        "problem",
        "does not answer",
    ),
    ("versions", Reading({"JobSet": None, "Workload": "/apis/x/v1"}), "jobset", "problem", "runs need it"),
    ("versions", Reading({"JobSet": "/apis/x/v1", "Workload": None}), "kueue", "warning", "--local-queue"),
    ("namespace", Reading(None), "context", "problem", "has no namespace default"),
    ("queues", Reading([]), "kueue", "warning", "no LocalQueue"),
    ("refusing", Reading({"tpu": "v6e is for 2x4"}), "kueue", "warning", "queue tpu never admits"),
    ("refusing", DENIED, "kueue", "warning", "not checked: nodes is forbidden"),
    (
        "wanted",
        PodDemand({"cloud.google.com/gke-spot": "true"}, 4, 16),
        "tpu nodes",
        "warning",
        "waits until a pool",
    ),
    ("nodes", Reading([]), "tpu nodes", "warning", "no node with TPUs is up"),
    ("nodes", DENIED, "tpu nodes", "warning", "not checked: nodes is forbidden"),
    ("nodes", Reading([node(PLAIN)]), "identity", "problem", "lack Workload Identity"),
    ("members", {"ckpt": DENIED}, "bucket ckpt", "warning", "not checked"),
    (
        "members",
        {"ckpt": Reading({"roles/storage.objectViewer": ("allUsers",)})},
        "bucket ckpt",
        "warning",
        "does not name",
    ),
]


@pytest.mark.parametrize(("name", "value", "check", "level", "said"), BAD)
def test_what_is_missing_is_found_with_its_command(
    name: str, value: Any, check: str, level: str, said: str
) -> None:
    found = [each for each in judge_cluster(replace(facts(), **{name: value})) if each.check == check]
    assert any(str(each.level) == level and said in each.what for each in found), found


def test_pods_may_act_as_an_account_of_google() -> None:
    annotated = {
        "metadata": {"annotations": {"iam.gke.io/gcp-service-account": "train@p.iam.gserviceaccount.com"}}
    }
    members = {"ckpt": Reading({"roles/storage.admin": ("serviceAccount:train@p.iam.gserviceaccount.com",)})}
    found = judge_cluster(facts(account=Reading(annotated), members=members))
    assert {str(each.level) for each in found} == {"ok"}
