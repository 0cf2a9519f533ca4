"""A JobSet beside the one that gcluster makes for the same workload: each field that differs, and why.

What pkg/orchestrator/gke of GoogleCloudPlatform/cluster-toolkit at 1047080 (June 2026; Google LLC, Apache
License 2.0) makes for `gcluster job submit --dry-run-out`, of v6e-16 with 2 slices, 3 restarts and exit code 75
to be tried again, as fields and values. Its generator was run, without what asks a cluster for machine types.
"""

from __future__ import annotations

from typing import Any

from tests.kube.jobs import a_job
from tests.kube.test_xpk import BOX, JOB, POD, flat
from tpuctl.kube.jobset import jobset

LABEL = "metadata.labels.gcluster.google.com/workload"
AFFINITY = f"{POD}.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
GCLUSTER: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata.name": "train",
    LABEL: "train",
    "metadata.labels.kueue.x-k8s.io/queue-name": "multislice-queue",
    "metadata.annotations.alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool",
    "spec.ttlSecondsAfterFinished": 3600,
    "spec.failurePolicy.maxRestarts": 3,
    "spec.failurePolicy.rules.0.action": "FailJobSet",
    "spec.failurePolicy.rules.0.onJobFailureReasons.0": "PodFailurePolicy",
    "spec.replicatedJobs.0.name": "main-job",
    "spec.replicatedJobs.0.replicas": 2,
    f"{JOB}.parallelism": 4,
    f"{JOB}.completions": 4,
    f"{JOB}.backoffLimit": 0,
    f"{JOB}.podFailurePolicy.rules.0.action": "FailJob",
    f"{JOB}.podFailurePolicy.rules.0.onExitCodes.operator": "NotIn",
    f"{JOB}.podFailurePolicy.rules.0.onExitCodes.values.0": 75,
    f"{POD}.{LABEL}": "train",
    f"{POD}.metadata.annotations.cloud.google.com/gke-tpu-slice-topology": "4x4",
    f"{POD}.spec.hostNetwork": True,
    f"{POD}.spec.dnsPolicy": "ClusterFirstWithHostNet",
    f"{POD}.spec.terminationGracePeriodSeconds": 30,
    f"{POD}.spec.restartPolicy": "Never",
    f"{BOX}.name": "workload-container",
    f"{BOX}.image": "python:3.11",
    f"{BOX}.command.0": "/bin/bash",
    f"{BOX}.command.1": "-c",
    f"{BOX}.command.2": "python3 train.py",
    f"{BOX}.resources.limits.google.com/tpu": "4",
    f"{BOX}.env": None,
    f"{POD}.spec.nodeSelector.cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
    f"{POD}.spec.nodeSelector.cloud.google.com/gke-tpu-topology": "4x4",
    f"{AFFINITY}.0.matchExpressions.0.key": "cloud.google.com/gke-nodepool",
    f"{AFFINITY}.0.matchExpressions.0.operator": "NotIn",
    f"{AFFINITY}.0.matchExpressions.0.values.0": "default-pool",
    f"{POD}.spec.tolerations.0.effect": "NoSchedule",
    f"{POD}.spec.tolerations.0.key": "google.com/tpu",
    f"{POD}.spec.tolerations.0.operator": "Exists",
}
WHY = {
    "metadata.namespace": "the file says it; gcluster leaves it to the context of kubectl",
    "metadata.labels": "each has a label of its own, and a queue is named by whoever has one",
    f"{POD}.metadata.labels": "each has a label of its own",
    f"{POD}.metadata.annotations": "asks for a part of a larger pool, which tpuctl does not",
    "spec.ttlSecondsAfterFinished": "a week in which its pods can be looked at, not an hour",
    "spec.network": "the defaults of the webhook, written out",
    "spec.coordinator": "pods learn the address of the first one by its label",
    "spec.failurePolicy.restartStrategy": "chips are held until all pods of the attempt before are gone",
    "spec.failurePolicy.rules": "a disruption is not counted; rules have names, which the schema wants",
    "spec.replicatedJobs.0.name": "shorter, as it is part of the names of pods",
    f"{JOB}.completionMode": "the default of the webhook, written out",
    f"{JOB}.podFailurePolicy": "gcluster names what is tried again; here what is final is named",
    f"{POD}.spec.hostNetwork": "with --host-network alone: without it pods are their own service account",
    f"{POD}.spec.dnsPolicy": "goes with hostNetwork",
    f"{POD}.spec.initContainers": "brings the code; gcluster builds an image with it",
    f"{POD}.spec.affinity": "the selectors of accelerator and topology keep pods off the default pool",
    f"{POD}.spec.volumes": "the code, and shared memory",
    f"{BOX}.name": "a shorter name",
    f"{BOX}.command": "the program itself gets SIGTERM, not a shell",
    f"{BOX}.env": "what a program knows on a slice, too",
    f"{BOX}.ports": "of libtpu, of several slices, and of the coordinator",
    f"{BOX}.resources.requests": "as the limits, which is the default",
    f"{BOX}.volumeMounts": "the code, and shared memory",
}


def test_each_difference_has_a_reason_and_each_reason_a_difference() -> None:
    ours = dict(flat(jobset(a_job(slices=2, image="python:3.11"))))
    different = {path for path in ours.keys() | GCLUSTER.keys() if ours.get(path) != GCLUSTER.get(path)}
    assert {path for path in different if not any(path.startswith(prefix) for prefix in WHY)} == set()
    assert {prefix for prefix in WHY if not any(path.startswith(prefix) for path in different)} == set()


def test_what_decides_where_pods_run_is_the_same() -> None:
    words = ("replicas", "parallelism", "completions", "nodeSelector.", "exclusive", "maxRestarts", "limits")
    ours = dict(flat(jobset(a_job(slices=2))))
    checked = {path: value for path, value in GCLUSTER.items() if any(word in path for word in words)}
    assert len(checked) == 8
    assert {path: ours[path] for path in checked} == checked
