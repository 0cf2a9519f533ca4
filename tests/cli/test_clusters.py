"""Runs on clusters through the real command line, against an API server in memory and a simulated project."""

from __future__ import annotations

from collections.abc import Iterator
from subprocess import CompletedProcess
from typing import Any

import pytest
import requests

from tests.support.kube_api import KubeApi, serve_kube
from tests.support.kube_objects import cluster_queue, exited, local_queue, pod, waiting, workload
from tests.support.session import Session, open_session

pytestmark = pytest.mark.slow


WHERE = (
    "--on",
    "gke:tpu",
    "--up",
    "v6e-16",
    "--container",
    "img",
    "--no-checkpoint",
    "--code-prefix",
    "gs://sim-bucket/x",
)
NAMES = [f"train-slice-0-{index}" for index in range(4)]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session("--instant") as session:
        (session.work / "train.py").write_text("print('trained')\n")
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


def run(session: Session, name: str, *words: str, status: int = 0) -> CompletedProcess[str]:
    return session.type("run", *WHERE, "--name", name, "-d", *words, "train.py", status=status)


def begin(api: KubeApi, name: str, *states: dict[str, Any], restart: int = 0) -> None:
    """Its pods, as kubelets report them; without a state they run."""
    for number, each in enumerate(NAMES):
        state = states[number] if number < len(states) else None
        api.put("pods", each, pod(each, job=0, index=number, owner=name, state=state, restart=restart))


def end(api: KubeApi, name: str, kind: str) -> None:
    api.put(
        "jobsets", name, {"status": {"conditions": [{"type": kind, "status": "True", "message": "by JobSet"}]}}
    )


def uploaded(session: Session) -> set[str]:
    listed = requests.get(f"{session.storage()}/storage/v1/b/sim-bucket/o", timeout=30).json()
    return {each["name"] for each in listed["items"]}


def test_a_run_is_followed_from_its_queue_to_its_manifest_and_back(session: Session, api: KubeApi) -> None:
    api.put("localqueues", "tpu", local_queue("tpu", "tpu-cq"))
    done = run(session, "train", "--local-queue", "tpu")
    assert "run train on gke:tpu/default" in done.stderr
    made = api.get("jobsets", "train")
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "tpu"
    there = uploaded(session)
    run(session, "train", "--local-queue", "tpu")
    assert uploaded(session) == there
    assert api.changes == ["create jobsets/train"], "the same command again means the same run"
    uid, why = made["metadata"]["uid"], "insufficient unused quota for google.com/tpu"
    api.put("jobsets", "train", {"spec": {"suspend": True}})
    api.put("workloads", "w", workload("train", queue="tpu", chips=16, why=why, owner_uid=uid))
    facts = session.json("status", "train")
    assert (facts["state"], facts["reason"]) == ("waiting", f"place 1 in queue tpu: {why}")
    api.put("workloads", "w", workload("train", queue="tpu", chips=16, admitted=True, owner_uid=uid))
    api.put("jobsets", "train", {"spec": {"suspend": False}})
    begin(api, "train")
    api.logs[NAMES[2], "program"] = b"2026-11-26T12:00:01Z step 1\n"
    assert "step 1" in session.type("logs", "train").stdout
    facts = session.json("status", "train")
    assert (facts["state"], facts["slice"], len(facts["workers"])) == ("running", "gke:tpu/default", 4)
    assert facts["workers"][2]["last_line"] == "step 1"
    assert "stacks" not in " ".join(facts["next"])
    begin(api, "train", *[exited(0)] * 4)
    end(api, "train", "Completed")
    session.type("attach", "train")
    [row] = [row for row in session.json("runs") if row["id"] == "train"]
    assert (row["state"], row["slice"], row["attempts"]) == ("succeeded", "gke:tpu/default", 1)
    assert "apply" in [each["action"] for each in session.json("why", "train")]
    session.type("manifest", "verify", "train")
    manifest = session.json("manifest", "show", "train")
    assert (manifest["slice"]["accelerator_type"], manifest["slice"]["chips"]) == ("v6e-16", 16)
    session.type("report", "train", "-o", "train.html")
    assert "step 1" in (session.work / "train.html").read_text()
    assert session.json("rerun", "train", "--on", "v6e-16", "--dry-run", "--zone", "us-east5-b")["possible"]


def test_a_run_that_waits_or_runs_is_stopped_and_leaves_nothing(session: Session, api: KubeApi) -> None:
    run(session, "short")
    begin(api, "short")
    assert "would stop" in session.type("stop", "short", "--dry-run").stdout
    session.type("stop", "short", "--yes")
    assert (api.names("jobsets"), api.names("pods")) == ([], [])
    assert session.json("status", "short")["state"] == "stopped"


def test_what_looks_and_cleans_up_in_the_project_leaves_clusters_alone(session: Session, api: KubeApi) -> None:
    run(session, "kept")
    begin(api, "kept")
    session.type("watch", "once")
    assert session.json("status", "kept")["state"] == "running"
    session.type("reap", "--yes")
    session.type("bill")
    session.type("ls")
    assert api.changes == ["create jobsets/kept"]
    for command in ("stacks", "trace", "collect", "top"):
        assert "run kept is on a cluster" in session.type(command, "kept", status=2).stderr
    session.type("stop", "kept", "--yes")


def test_an_image_that_cannot_be_pulled_ends_the_run_and_leaves_nothing(session: Session, api: KubeApi) -> None:
    run(session, "pull")
    begin(api, "pull", *[waiting("ImagePullBackOff", "img: not found")] * 4)
    done = session.type("attach", "pull", status=1)
    assert "image img cannot be pulled" in done.stderr
    assert api.names("jobsets") == []


BAD_RUNS = [
    ({}, ("--on", "gke:nowhere"), 5, "kubectl has no context called nowhere"),
    ({}, ("--on", "gke:tpu/nowhere"), 5, "cluster tpu has no namespace nowhere"),
    ({}, ("--local-queue", "nope"), 5, "has no queue nope (known: none)"),
    ({}, ("--keep",), 2, "--keep is for runs on slices"),
    ({}, ("--secret", "TOKEN=env:HOME"), 2, "whose name nobody can know yet"),
    ({}, ("--secret", "TOKEN=env:HOME", "--name", "s"), 5, "there is no Secret s in gke:tpu/default"),
    ({}, ("--label", "tpuctl/run=other"), 2, "--label tpuctl/run=other"),
    ({}, ("--up", "v6e-17"), 2, "v6e-17"),
    ({"groups": {}}, (), 5, "cluster tpu has no JobSet"),
    ({"token": "new"}, (), 4, "refuses the credentials: they are expired or wrong"),
    ({"refused": {"jobsets": "denied the request: no"}}, (), 4, "denied the request: no"),
]


@pytest.mark.parametrize(("change", "words", "status", "said"), BAD_RUNS)
def test_a_run_that_cannot_be_there_is_refused_and_leaves_nothing(
    session: Session, api: KubeApi, change: dict[str, Any], words: tuple[str, ...], status: int, said: str
) -> None:
    for name, value in change.items():
        setattr(api, name, value)
    before = session.json("runs")
    done = session.type("run", *WHERE, *words, "-d", "train.py", status=status)
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said in error
    assert (api.changes, session.json("runs")) == ([], before)


def test_flags_of_clusters_want_a_cluster(session: Session) -> None:
    done = session.type("run", "--local-queue", "tpu", "--no-checkpoint", "train.py", status=2)
    assert "flags about clusters go with --on gke:CONTEXT" in done.stderr
