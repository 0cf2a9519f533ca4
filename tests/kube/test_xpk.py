"""A JobSet beside the one that xpk makes for the same workload: each field that differs, and why.

What xpk 1.16.0 made of `workload create --tpu-type=v6e-16 --num-slices 2 --max-restarts 3
--restart-on-exit-codes 75 --dry-run`, as fields and values; its command is in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kube.jobs import a_job
from tpuctl.kube.jobset import jobset

POD = "spec.replicatedJobs.0.template.spec.template"
JOB = "spec.replicatedJobs.0.template.spec"
BOX = f"{POD}.spec.containers.0"
XPK: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata.name": "train",
    "metadata.labels.kueue.x-k8s.io/queue-name": "multislice-queue",
    "metadata.labels.xpk.google.com/workload": "train",
    "metadata.annotations.alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool",
    "spec.ttlSecondsAfterFinished": 43200,
    "spec.failurePolicy.rules.0.action": "FailJobSet",
    "spec.failurePolicy.rules.0.onJobFailureReasons.0": "PodFailurePolicy",
    "spec.failurePolicy.maxRestarts": 3,
    "spec.replicatedJobs.0.name": "slice-job",
    "spec.replicatedJobs.0.replicas": 2,
    f"{JOB}.parallelism": 4,
    f"{JOB}.completions": 4,
    f"{JOB}.backoffLimit": 0,
    f"{JOB}.podFailurePolicy.rules.0.action": "FailJob",
    f"{JOB}.podFailurePolicy.rules.0.onExitCodes.containerName": "jax-tpu",
    f"{JOB}.podFailurePolicy.rules.0.onExitCodes.operator": "NotIn",
    f"{JOB}.podFailurePolicy.rules.0.onExitCodes.values": "42, 75 and 127 to 255",
    f"{POD}.metadata.labels.xpk.google.com/workload": "train",
    f"{POD}.spec.schedulerName": "default-scheduler",
    f"{POD}.spec.imagePullSecrets.0.name": "None",
    f"{POD}.spec.restartPolicy": "Never",
    f"{POD}.spec.nodeSelector.cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
    f"{POD}.spec.nodeSelector.cloud.google.com/gke-tpu-topology": "4x4",
    f"{POD}.spec.priorityClassName": "medium",
    f"{POD}.spec.hostNetwork": True,
    f"{POD}.spec.dnsPolicy": "ClusterFirstWithHostNet",
    f"{POD}.spec.terminationGracePeriodSeconds": 30,
    f"{BOX}.name": "jax-tpu",
    f"{BOX}.image": "python:3.11",
    f"{BOX}.securityContext.privileged": True,
    f"{BOX}.command": "bash, which starts it and looks every 5 s whether it lives",
    f"{BOX}.resources.limits.google.com/tpu": 4,
    f"{BOX}.volumeMounts.0.mountPath": "/dev/shm",
    f"{BOX}.volumeMounts.0.name": "dshm-2",
    f"{POD}.spec.tolerations.0.operator": "Exists",
    f"{POD}.spec.tolerations.0.key": "google.com/tpu",
    f"{POD}.spec.volumes.0.emptyDir.medium": "Memory",
    f"{POD}.spec.volumes.0.name": "dshm-2",
}
WHY = {
    "metadata.namespace": "the file says it; xpk leaves it to the context of kubectl",
    "metadata.labels.kueue.x-k8s.io/queue-name": "a queue is named by whoever has one",
    "metadata.labels.xpk.google.com/": "each has a label of its own",
    "metadata.labels.app.kubernetes.io/": "each has a label of its own",
    "metadata.labels.tpuctl/": "each has a label of its own",
    f"{POD}.metadata.labels": "each has a label of its own",
    "spec.ttlSecondsAfterFinished": "a week in which its pods can be looked at, not 12 hours",
    "spec.network": "the defaults of the webhook, written out",
    "spec.coordinator": "pods learn the address of the first one by its label; xpk's know what GKE sets",
    "spec.failurePolicy.restartStrategy": "chips are held until all pods of the attempt before are gone",
    "spec.failurePolicy.rules": "a disruption is not counted, in xpk's it is; rules have names",
    "spec.replicatedJobs.0.name": "shorter, as it is part of the names of pods",
    f"{JOB}.completionMode": "the default of the webhook, written out",
    f"{JOB}.podFailurePolicy": "xpk names what is tried again; here what is final is named",
    f"{POD}.spec.schedulerName": "the default",
    f"{POD}.spec.imagePullSecrets": "that of the service account; 'None' is no secret",
    f"{POD}.spec.priorityClassName": "a class that xpk makes in its clusters",
    f"{POD}.spec.hostNetwork": "with --host-network alone: without it pods are their own service account",
    f"{POD}.spec.dnsPolicy": "goes with hostNetwork",
    f"{POD}.spec.initContainers": "brings the code; xpk builds an image with it",
    f"{POD}.spec.tolerations.0.effect": "the effect of GKE's taint, said",
    f"{POD}.spec.volumes": "the code, and shared memory as in xpk's",
    f"{BOX}.name": "a name without a framework",
    # As in Google's own manifests: docs.cloud.google.com/kubernetes-engine/docs/tutorials/ray-kueue-dws
    f"{BOX}.securityContext": "the device plugin of GKE gives the chips to the container",
    f"{BOX}.command": "the program itself gets SIGTERM, without a shell that looks every 5 s",
    f"{BOX}.env": "what a program knows on a slice, too",
    f"{BOX}.ports": "of libtpu, of several slices, and of the coordinator",
    f"{BOX}.resources.limits": "as text, which is how it is stored",
    f"{BOX}.resources.requests": "as the limits, which is the default",
    f"{BOX}.volumeMounts": "the code, and shared memory as in xpk's",
}


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each field with its value."""
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def test_each_difference_has_a_reason_and_each_reason_a_difference():
    ours = dict(flat(jobset(a_job(slices=2, image="python:3.11"))))
    different = {path for path in ours.keys() | XPK.keys() if ours.get(path) != XPK.get(path)}
    unexplained = {path for path in different if not any(path.startswith(prefix) for prefix in WHY)}
    assert unexplained == set()
    assert {prefix for prefix in WHY if not any(path.startswith(prefix) for path in different)} == set()


def test_what_decides_where_pods_run_is_the_same():
    ours = dict(flat(jobset(a_job(slices=2))))
    same = (
        "replicas",
        "parallelism",
        "completions",
        "nodeSelector",
        "exclusive-topology",
        "maxRestarts",
    )
    checked = {path: value for path, value in XPK.items() if any(word in path for word in same)}
    assert len(checked) == 7
    assert {path: ours[path] for path in checked} == checked
