"""Runs on a whole Kubernetes, through the command line: JobSet, Kueue, and pods that are processes.

Two slices v4-16: two pools of two machines with four chips each. Kueue gives them to one run at a time.
"""

from __future__ import annotations

import fcntl
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.kube.jobs import a_job
from tests.kube.test_schemas import BUCKET, DISK, WRONG, a_jobset, refusal
from tests.support.jax_python import VARIABLES, jax_python
from tests.support.kube.cluster import KubeCluster, kube_cluster
from tests.support.kube.kubelet import Node
from tests.support.require import require_isolated_hosts
from tests.support.session import ROOT, Session, open_session
from tpuctl.kube.client import Cluster, connect
from tpuctl.kube.jobset import documents
from tpuctl.model.clusters import ClusterPlace

pytestmark = pytest.mark.soak

Object = dict[str, Any]
ACCELERATOR = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice",
    "cloud.google.com/gke-tpu-topology": "2x2x2",
}
IMAGE = "test/jax"
COUNTED = {"resourceVersion": "", "managedFields": []}
"""What changes of an object while the cluster's own controllers note what they did."""
QUEUES: list[Object] = [
    {"kind": "ResourceFlavor", "metadata": {"name": "v4"}, "spec": {"nodeLabels": ACCELERATOR}},
    {
        "kind": "ClusterQueue",
        "metadata": {"name": "tpus"},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["google.com/tpu"],
                    "flavors": [
                        {"name": "v4", "resources": [{"name": "google.com/tpu", "nominalQuota": "16"}]}
                    ],
                }
            ],
        },
    },
    {
        "kind": "LocalQueue",
        "metadata": {"name": "tpu", "namespace": "default"},
        "spec": {"clusterQueue": "tpus"},
    },
]


@pytest.fixture
def alone() -> Iterator[None]:
    """Pods have this machine's loopback and JAX's usual port, and so have those of other clusters on it."""
    with Path(tempfile.gettempdir(), "tpuctl-kube.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with jax_python() as found:
        yield found


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session("--instant") as found:
        (found.work / "train.py").write_text((ROOT / "templates" / "demo_train.py").read_text())
        (found.work / "fail.py").write_text("raise ValueError('bad shape')\n")
        yield found


@pytest.fixture(scope="module")
def cluster(session: Session, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    require_isolated_hosts()
    nodes = [
        Node(f"pool-{pool}-{number}", 4, {**ACCELERATOR, "cloud.google.com/gke-nodepool": f"pool-{pool}"})
        for pool in range(2)
        for number in range(2)
    ]
    image = {"PATH": f"{python.parent}:/usr/bin:/bin", "STORAGE_EMULATOR_HOST": session.storage()}
    with kube_cluster(tmp_path_factory.mktemp("kube"), nodes, {IMAGE: image}) as found:
        for each in QUEUES:
            below = "/namespaces/default" if "namespace" in each["metadata"] else ""
            found.create(
                f"/apis/kueue.x-k8s.io/v1beta2{below}/{each['kind'].lower()}s",
                {"apiVersion": "kueue.x-k8s.io/v1beta2", **each},
            )
        session.environ["KUBECONFIG"] = str(found.kubeconfig)
        yield found


def run(
    session: Session, cluster: KubeCluster, name: str, *words: str, status: int = 0, program: str = "train.py"
) -> str:
    """What `tpuctl run` on both slices wrote to standard error."""
    where = ("--on", f"gke:{cluster.context}", "--up", "v4-16", "--slices", "2", "--local-queue", "tpu")
    place = ("--container", IMAGE, "--checkpoint-dir", f"gs://sim-bucket/{name}", "--name", name)
    return session.type(
        "run", *where, *place, *VARIABLES, *words, program, status=status, within_s=600.0
    ).stderr


def final(session: Session, name: str) -> Object:
    """What the program wrote of its end: loss and digest of the parameters."""
    place = f"{session.storage()}/storage/v1/b/sim-bucket/o/{name}%2Fmetrics.json?alt=media"
    return dict(requests.get(place, timeout=30).json())


def pods(cluster: KubeCluster, name: str) -> list[Object]:
    selector = f"jobset.sigs.k8s.io/jobset-name={name}"
    return list(cluster.get("/api/v1/namespaces/default/pods", labelSelector=selector)["items"])


def logs(session: Session, name: str) -> str:
    """Of its newest attempt so far; nothing while there is none."""
    return session.type("logs", name, status=None).stdout


def status(session: Session, cluster: KubeCluster, name: str, is_it: Callable[[Object], bool]) -> Object:
    """`tpuctl status` as soon as it says so."""

    def read() -> Object | None:
        found = session.json("status", name)
        return found if is_it(found) else None

    return cluster.wait(f"status of {name}", read, 300.0)


@pytest.fixture
def client(cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))
    return connect(ClusterPlace(cluster.context, "default"))


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_a_cluster_says_what_its_server_of_custom_resources_says(
    client: Cluster, change: Callable[[Object], None], words: str
) -> None:
    made = a_jobset(namespace="default")
    change(made)
    assert words in refusal(client, made)


def test_volumes_and_claims_find_each_other_and_stay_as_they_are(client: Cluster, cluster: KubeCluster) -> None:
    volume, claim, jobset = documents(a_job(namespace="default", disks=(DISK,), buckets=(BUCKET,)))
    assert refusal(client, jobset) == ""
    for each in (volume, claim):
        client.apply(each)

    def bound() -> Object | None:
        found = [dict(client.get(each["kind"], each["metadata"]["name"]) or {}) for each in (volume, claim)]
        return {"items": found} if all(each["status"].get("phase") == "Bound" for each in found) else None

    before = cluster.wait("both are bound", bound)["items"]
    after = [dict(client.apply(each)) for each in (volume, claim)]
    for old, new in zip(before, after, strict=True):
        assert new["spec"] == old["spec"]
        assert {**new["metadata"], **COUNTED} == {**old["metadata"], **COUNTED}


@pytest.mark.usefixtures("alone")
def test_a_run_that_loses_a_host_ends_as_one_that_did_not(session: Session, cluster: KubeCluster) -> None:
    words = ("--var", "STEPS=40", "--var", "CHECKPOINT_EVERY=10", "--var", "STEP_SECONDS=0")
    run(session, cluster, "whole", *words)
    run(session, cluster, "cut", "-d", *words, "--var", "HOLD_AT=15", "--max-failures", "0", "--grace", "5")
    status(session, cluster, "cut", lambda found: found["state"] == "running")
    cluster.wait("it holds", lambda: {} if "saved step 10" in logs(session, "cut") else None, 300.0)
    first = pods(cluster, "cut")
    assert sorted(each["spec"]["nodeName"] for each in first) == [
        "pool-0-0",
        "pool-0-1",
        "pool-1-0",
        "pool-1-1",
    ]
    cluster.kubelet.shut_down("pool-0-1")
    session.type("attach", "cut", within_s=600.0)
    facts = session.json("status", "cut")
    assert (facts["state"], facts["attempt"]["number"], facts["failures"], facts["preemptions"]) == (
        "succeeded",
        2,
        0,
        1,
    )
    assert not {each["metadata"]["uid"] for each in first} & {
        each["metadata"]["uid"] for each in pods(cluster, "cut")
    }
    assert "resumed from step 10 (attempt 2)" in logs(session, "cut")
    assert final(session, "cut") == final(session, "whole")


def test_what_fails_three_times_fails_for_good(session: Session, cluster: KubeCluster) -> None:
    run(session, cluster, "failing", "--max-failures", "2", program="fail.py", status=1)
    facts = session.json("status", "failing")
    assert (facts["state"], facts["attempt"]["number"], facts["failures"]) == ("failed", 3, 3)
    *_, last = session.json("manifest", "failing")["attempts"]
    assert last["failure"]["evidence"] == "ValueError: bad shape"


@pytest.mark.usefixtures("alone")
def test_a_run_waits_in_its_queue_until_another_one_ends(session: Session, cluster: KubeCluster) -> None:
    words = ("--var", "STEPS=20", "--var", "STEP_SECONDS=0")
    run(session, cluster, "early", "-d", *words, "--var", "HOLD_AT=10")
    status(session, cluster, "early", lambda found: found["state"] == "running")
    run(session, cluster, "late", "-d", *words)
    facts = status(session, cluster, "late", lambda found: "place" in found["reason"])
    assert facts["state"] == "waiting"
    assert re.match(r"place 1 in queue tpu: .*insufficient unused quota for google.com/tpu", facts["reason"])
    [row] = session.json("quota", "--on", f"gke:{cluster.context}")["waiting"]
    assert (row["name"], row["position"], row["chips"]) == ("late", 1, 16)
    session.type("stop", "early", "--yes", within_s=120.0)
    session.type("attach", "late", within_s=600.0)
    assert session.json("status", "late")["state"] == "succeeded"
    assert pods(cluster, "early") == []
