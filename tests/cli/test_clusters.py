"""Runs on clusters through the real command line, against an API server in memory and a simulated project."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kube_api import KubeApi, serve_kube
from tests.support.kube_objects import cluster_queue, local_queue, workload
from tests.support.session import Session, open_session

pytest.importorskip("kubernetes", reason="kubernetes is not installed: pip install 'tpuctl[gke]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session("--instant") as session:
        yield session


@pytest.fixture
def api(session: Session) -> Iterator[KubeApi]:
    with serve_kube() as server:
        path = server.write_kubeconfig(session.root / "kubeconfig")
        session.environ["KUBECONFIG"] = str(path)
        yield server


def test_queues_show_chips_by_flavor_and_who_waits_why(session: Session, api: KubeApi) -> None:
    api.put(
        "clusterqueues", "tpu-cq", cluster_queue("tpu-cq", {"v6e-4x4": 32}, used={"v6e-4x4": 24}), namespace=""
    )
    api.put("localqueues", "tpu", local_queue("tpu", "tpu-cq"))
    why = "couldn't assign flavors to pod set slice: insufficient unused quota for google.com/tpu"
    api.put("workloads", "jobset-big-1a2b3", workload("big", queue="tpu", chips=16, why=why))
    found = session.json("quota", "--on", "gke:tpu")
    assert [(row["flavor"], row["quota"], row["used"], row["free"]) for row in found["queues"]] == [
        ("v6e-4x4", 32, 24, 8)
    ]
    assert [(row["name"], row["position"], row["chips"], row["reason"]) for row in found["waiting"]] == [
        ("big", 1, 16, why)
    ]
    lines = session.type("quota", "--on", "gke:tpu").stdout.splitlines()
    assert any("tpu-cq" in line and "default/tpu" in line for line in lines)
    api.denied["clusterqueues"] = "clusterqueues is forbidden"
    assert [row["what"] for row in session.json("quota", "--on", "gke:tpu")["unread"]] == ["quotas"]


def test_the_doctor_looks_at_a_cluster(session: Session, api: KubeApi) -> None:
    api.groups.pop("jobset.x-k8s.io/v1alpha2")
    done = session.type("doctor", "--on", "gke:tpu", status=1)
    assert "JobSet is not installed: runs need it" in done.stdout
    assert "fix: kubectl --context tpu apply --server-side -f https://" in done.stdout


BAD = [
    (("quota", "--on", "gke:nowhere"), 5, "kubectl has no context called nowhere (known: gone, tpu)"),
    (("quota", "--on", "gke:gone"), 1, "cluster gone does not answer at http://127.0.0.1:9"),
    (("quota", "--on", "big"), 2, "'big' names no cluster"),
    (("quota", "--on", "gke:tpu", "--zone", "us-central2-b"), 2, "--zone is for quotas of the project"),
]


@pytest.mark.parametrize(("words", "status", "said"), BAD)
def test_what_cannot_be_is_one_clear_line(
    session: Session, api: KubeApi, words: tuple[str, ...], status: int, said: str
) -> None:
    done = session.type(*words, status=status)
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said in error
