"""What Kubernetes' and JobSet's own code says of what tpuctl makes, with the pinned JobSet and Kueue.

Through tpuctl's client, to the server of custom resources that is part of each cluster.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes import client as models

from tests.kube.jobs import a_job
from tests.support.kube.api import KubeApi
from tests.support.kube.crds import crd_server
from tpuctl.errors import InvalidRequestError, TpuctlError, UsageError
from tpuctl.kube.client import Cluster, connect
from tpuctl.kube.jobset import BucketVolume, ClusterCapacity, DiskVolume, JobSetSpec, documents
from tpuctl.kube.rules import check_job
from tpuctl.model.clusters import ClusterPlace
from tpuctl.model.hosts import Tier

pytestmark = pytest.mark.slow

Object = dict[str, Any]
BUCKET = BucketVolume(
    "my-bucket", "/mnt/data", ("implicit-dirs",), {"fileCacheCapacity": "50Gi"}, read_only=True
)
DISK = DiskVolume("tokens", "/mnt/tokens", "projects/p/zones/us-east5-b/disks/tokens", 100)
ODD_NAMES = ("2nd-try", "Train", "a.b", "a-", "-a", "a_b", "try-2")
POD = "replicatedJobs.0.template.spec.template.spec"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    with crd_server(tmp_path_factory.mktemp("kube-crds")) as api:
        yield api


@pytest.fixture
def cluster(server: KubeApi, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(server.kubeconfig))
    return connect(ClusterPlace(server.context, "research"))


def a_jobset(accelerator: str = "v6e-16", **given: Any) -> Object:
    return documents(a_job(accelerator, **given))[-1]


def refusal(cluster: Cluster, document: Object) -> str:
    """What the server says against it; '' for nothing."""
    try:
        cluster.create(document, dry_run=True)
    except TpuctlError as error:
        return str(error)
    return ""


def changed(path: str, value: Any) -> Callable[[Object], None]:
    """Sets spec.PATH; a number is the index in a list."""

    def change(jobset: Object) -> None:
        *above, last = (int(word) if word.isdigit() else word for word in path.split("."))
        place = jobset["spec"]
        for word in above:
            place = place[word]
        place[last] = value

    return change


def _start_in_two_ways(jobset: Object) -> None:
    (first,) = jobset["spec"]["replicatedJobs"]
    second = {**copy.deepcopy(first), "name": "second", "dependsOn": [{"name": "slice", "status": "Ready"}]}
    jobset["spec"] |= {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": [first, second]}


WRONG = [
    (changed("failurePolicy.maxRestartz", 3), 'unknown field "spec.failurePolicy.maxRestartz"'),
    (changed(f"{POD}.nodeSelectr", {}), 'spec.replicatedJobs[0].template.spec.template.spec.nodeSelectr"'),
    (changed("failurePolicy.restartStrategy", "Blocking"), 'Unsupported value: "Blocking"'),
    (changed("failurePolicy.rules.0.action", "Restart"), 'Unsupported value: "Restart"'),
    (_start_in_two_ways, "StartupPolicy and DependsOn APIs are mutually exclusive"),
    # These only the webhook knows.
    (changed("replicatedJobs.0.replicas", "2"), "cannot unmarshal string into Go struct field"),
    (changed("failurePolicy.rules.0.name", "hosts-lost"), "invalid failure policy rule name 'hosts-lost'"),
    (
        changed("failurePolicy.rules.0.targetReplicatedJobs", ["other"]),
        "invalid replicatedJob name 'other'",
    ),
    (
        changed("failurePolicy.rules.0.onJobFailureReasons", ["Bad"]),
        "invalid job failure reason 'Bad'",
    ),
    (changed("coordinator.podIndex", 9), "coordinator pod index 9 is invalid"),
]
"""A change of a JobSet, and what a cluster says against it."""


def _given(stored: Any, given: Any) -> Any:
    """What is stored, without keys that were not given."""
    if isinstance(given, dict):
        return {key: _given(stored[key], value) for key, value in given.items()}
    if isinstance(given, list):
        return [_given(*each) for each in zip(stored, given, strict=True)]
    return stored


@pytest.mark.parametrize("accelerator", ["v4-16", "v5litepod-16", "v5p-16", "v6e-8", "v6e-16", "tpu7x-16"])
@pytest.mark.parametrize("slices", [1, 2])
def test_what_is_made_of_a_run_is_taken_word_for_word(cluster: Cluster, accelerator: str, slices: int) -> None:
    spot = ClusterCapacity(Tier.SPOT, zones=("us-east5-b",))
    made = a_jobset(
        accelerator, slices=slices, provisioning=spot, queue="team", buckets=(BUCKET,), disks=(DISK,)
    )
    stored = cluster.create(made, dry_run=True)
    assert stored is not None
    assert _given(stored["spec"], made["spec"]) == made["spec"]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_what_is_wrong_is_refused_with_its_place(
    cluster: Cluster, change: Callable[[Object], None], words: str
) -> None:
    made = a_jobset()
    change(made)
    assert words in refusal(cluster, made)


def test_what_is_taken_though_it_is_wrong(cluster: Cluster) -> None:
    """The controller logs that it is no pattern, and never matches it: tpuctl has patterns of its own alone."""
    made = a_jobset()
    changed("failurePolicy.rules.0.onJobFailureMessagePatterns", ["("])(made)
    assert refusal(cluster, made) == ""


def test_what_is_there_stays_as_it_is(cluster: Cluster) -> None:
    """To apply it again is no change; a changed policy is deleted and made again."""
    made = a_jobset(name="stays", slices=2, disks=(DISK,), buckets=(BUCKET,))
    first = cluster.apply(made)
    assert cluster.create(made) is None
    assert cluster.apply(made) == first
    changed("failurePolicy.maxRestarts", 9)(made)
    with pytest.raises(InvalidRequestError, match=r"spec\.failurePolicy: Invalid value: .*Value is immutable"):
        cluster.apply(made)
    assert cluster.get("JobSet", "stays") == first
    assert cluster.delete("JobSet", "stays", first["metadata"]["uid"])
    going = cluster.get("JobSet", "stays")
    assert going is not None
    assert going["metadata"]["finalizers"] == ["foregroundDeletion"], "until a cluster has removed its pods"


def test_kinds_of_kueue_are_found(cluster: Cluster) -> None:
    for kind in ("Workload", "LocalQueue", "ClusterQueue"):
        assert (cluster.path(kind), cluster.list(kind)) == ("/apis/kueue.x-k8s.io/v1beta2", [])


@pytest.mark.parametrize("slices", [1, 2, 11])
@pytest.mark.parametrize("accelerator", ["v6e-8", "v6e-16", "v5litepod-256"])
def test_names_are_refused_here_when_the_webhook_would(cluster: Cluster, accelerator: str, slices: int) -> None:
    names = [*("x" * length for length in (1, *range(24, 32), *range(40, 52), 63)), *ODD_NAMES]
    jobs = [a_job(accelerator, name=name, slices=slices) for name in names]
    for job in jobs:
        (made,) = documents(job)
        assert _is_let_through(job) == (refusal(cluster, made) == ""), job.name
    assert 4 < sum(map(_is_let_through, jobs)) < 20


def _is_let_through(job: JobSetSpec) -> bool:
    try:
        check_job(job)
    except UsageError:
        return False
    return True


def test_volumes_of_a_run_have_the_fields_that_there_are() -> None:
    """The server has no core kinds; of these the library of Kubernetes knows the fields."""
    volume, claim, _ = documents(a_job(disks=(DISK,)))
    assert unknown_fields(volume, models.V1PersistentVolume) == []
    assert unknown_fields(claim, models.V1PersistentVolumeClaim) == []
    volume["spec"]["csi"]["volumeHandel"] = volume["spec"]["csi"].pop("volumeHandle")
    assert unknown_fields(volume, models.V1PersistentVolume) == ["spec.csi.volumeHandel"]


def unknown_fields(document: Object, model: Any, path: str = "") -> list[str]:
    """The paths of those that the model of the library does not have."""
    names = {told: name for name, told in model.attribute_map.items()}
    found = []
    for key, value in document.items():
        if key not in names:
            found.append(path + key)
        elif isinstance(value, dict) and (below := getattr(models, model.openapi_types[names[key]], None)):
            found += unknown_fields(value, below, f"{path}{key}.")
    return found
