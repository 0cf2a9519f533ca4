"""A cluster through the library `kubernetes`: what it answers, and one clear line for each way in which it does
not."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kube_api import TOKEN, KubeApi, serve_kube
from tpuctl.errors import (
    BadConfigError,
    ConflictError,
    DeniedError,
    InvalidRequestError,
    NoAnswerError,
    NotFoundError,
    TpuctlError,
)
from tpuctl.kube.client import Cluster, connect
from tpuctl.model.clusters import ClusterPlace, parse_cluster

JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train", "labels": {"owner": "me"}},
    "spec": {"failurePolicy": {"maxRestarts": 3}},
}


@pytest.fixture
def api() -> Iterator[KubeApi]:
    with serve_kube() as server:
        yield server


def use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubeconfig of this test: the library reads its place once."""
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))


@pytest.fixture
def cluster(api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    use(api.write_kubeconfig(tmp_path / "config"), monkeypatch)
    return connect(ClusterPlace("tpu"))


def test_what_is_applied_twice_is_there_once_and_goes_by_its_uid(api: KubeApi, cluster: Cluster) -> None:
    made = cluster.apply(JOBSET)
    assert cluster.apply(JOBSET)["metadata"]["uid"] == made["metadata"]["uid"]
    assert [each["metadata"]["name"] for each in cluster.list("JobSet", "owner=me")] == ["train"]
    assert cluster.list("JobSet", "owner=you") == []
    assert not cluster.delete("JobSet", "train", "another-uid")
    assert cluster.get("JobSet", "train") is not None
    assert cluster.delete("JobSet", "train", made["metadata"]["uid"])
    assert not cluster.delete("JobSet", "train", made["metadata"]["uid"])
    assert cluster.get("JobSet", "train") is None


def test_a_dry_run_changes_nothing(api: KubeApi, cluster: Cluster) -> None:
    cluster.apply(JOBSET, dry_run=True)
    assert cluster.create(JOBSET, dry_run=True) is not None
    assert (api.names("jobsets"), api.changes) == ([], [])


def test_what_is_made_is_never_that_of_another(api: KubeApi, cluster: Cluster) -> None:
    assert cluster.create(JOBSET) is not None
    assert cluster.create(JOBSET) is None
    assert api.changes == ["create jobsets/train"]


def test_a_log_is_read_from_a_second_on_and_is_none_while_there_is_none(api: KubeApi, cluster: Cluster) -> None:
    assert cluster.log("train-0", "main", "", 100) is None
    api.logs["train-0", "main"] = b"2026-11-26T12:00:00.5Z a\n2026-11-26T12:00:02.1Z b\n"
    assert cluster.log("train-0", "main", "", 100) == api.logs["train-0", "main"]
    assert cluster.log("train-0", "main", "2026-11-26T12:00:02Z", 100) == b"2026-11-26T12:00:02.1Z b\n"
    with pytest.raises(InvalidRequestError, match="parsing time"):
        cluster.log("train-0", "main", "step 3Z", 100)


def test_the_namespace_is_what_was_said_or_that_of_the_context(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(api.write_kubeconfig(tmp_path / "config"), monkeypatch)
    said = {text: connect(parse_cluster(text)).place for text in ("gke:tpu", "gke:gone", "gke:gone/other")}
    assert [each.namespace for each in said.values()] == ["default", "team", "other"]
    assert str(said["gke:gone"]) == "gke:gone/team"


def plugin(script: str) -> dict[str, Any]:
    """A user whose credentials a program gives, as GKE's plugin does."""
    program = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "sh", "args": ["-c", script]}
    return {"exec": {**program, "interactiveMode": "Never"}}


def test_a_login_program_gives_the_token(api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential"}
    said = json.dumps({**answer, "status": {"token": TOKEN}})
    use(api.write_kubeconfig(tmp_path / "config", user=plugin(f"echo '{said}'")), monkeypatch)
    assert connect(ClusterPlace("tpu")).list("JobSet") == []


@pytest.mark.parametrize(
    ("user", "told"),
    [
        (plugin("echo token expired >&2; exit 3"), "process returned 3. token expired"),
        ({"exec": {"apiVersion": "v1", "command": "no-such-plugin"}}, "no-such-plugin"),
        ({"token": "old"}, "refuses the credentials: they are expired or wrong"),
    ],
)
def test_credentials_that_are_none_are_told(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: dict[str, Any], told: str
) -> None:
    use(api.write_kubeconfig(tmp_path / "config", user=user), monkeypatch)
    with pytest.raises(DeniedError) as caught:
        connect(ClusterPlace("tpu")).list("JobSet")
    assert told in caught.value.message
    assert caught.value.hint.startswith("gcloud auth login")


BAD_PLACES = [
    ("gke:", "names no cluster"),
    ("gke:/team", "names no cluster"),
    ("gke:tpu/", "cannot be the name of a namespace"),
    ("gke:tpu/Team", "cannot be the name of a namespace"),
    ("gke:tpu/a/b", "cannot be the name of a namespace"),
]


@pytest.mark.parametrize(("text", "told"), BAD_PLACES)
def test_what_names_no_cluster_is_refused(text: str, told: str) -> None:
    with pytest.raises(TpuctlError, match=told):
        parse_cluster(text)


BAD_CONFIGS = [
    (None, NotFoundError, "there is no kubeconfig to read"),
    ("]", BadConfigError, "the kubeconfig cannot be"),
    ("[]", TpuctlError, "kubeconfig"),
    ("{}", TpuctlError, "kubeconfig"),
]


@pytest.mark.parametrize(("content", "kind", "told"), BAD_CONFIGS)
def test_a_kubeconfig_that_is_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, kind: type[TpuctlError], told: str
) -> None:
    if content is not None:
        (tmp_path / "config").write_text(content)
    use(tmp_path / "config", monkeypatch)
    with pytest.raises(kind) as caught:
        connect(ClusterPlace("tpu"))
    assert told in caught.value.message


def test_a_context_that_is_not_there_names_the_nearest(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(api.write_kubeconfig(tmp_path / "config"), monkeypatch)
    with pytest.raises(NotFoundError, match="no context called tpv") as caught:
        connect(ClusterPlace("tpv"))
    assert caught.value.hint == "--on gke:tpu"


def test_a_cluster_that_does_not_answer_is_told(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(api.write_kubeconfig(tmp_path / "config"), monkeypatch)
    with pytest.raises(NoAnswerError, match=r"cluster gone does not answer at http://127.0.0.1:9"):
        connect(ClusterPlace("gone")).list("JobSet")


def test_a_certificate_that_is_not_trusted_is_told(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = api.write_kubeconfig(tmp_path / "config")
    data = yaml.safe_load(path.read_text())
    wrong = base64.b64encode(b"no certificate").decode()
    data["clusters"][0]["cluster"] = {
        "server": api.url.replace("http:", "https:"),
        "certificate-authority-data": wrong,
    }
    path.write_text(yaml.safe_dump(data))
    use(path, monkeypatch)
    with pytest.raises(DeniedError, match="the certificate of cluster tpu"):
        connect(ClusterPlace("tpu")).list("JobSet")


def test_each_refusal_of_the_server_is_an_error_of_its_own(api: KubeApi, cluster: Cluster) -> None:
    with pytest.raises(NotFoundError, match='namespaces "nowhere" not found'):
        connect(ClusterPlace("tpu", "nowhere")).apply(JOBSET)
    cluster.apply(JOBSET)
    with pytest.raises(InvalidRequestError, match="Value is immutable"):
        cluster.apply({**JOBSET, "spec": {"failurePolicy": {"maxRestarts": 4}}})
    api.denied["jobsets"] = 'jobsets is forbidden: User "me" cannot list resource'
    with pytest.raises(DeniedError, match="cannot list resource") as caught:
        cluster.list("JobSet")
    assert "auth can-i" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "group", "told"), [("JobSet", "jobset", "JobSet"), ("Workload", "kueue", "Kueue")]
)
def test_a_cluster_without_jobset_or_kueue_says_so(
    api: KubeApi, cluster: Cluster, kind: str, group: str, told: str
) -> None:
    api.groups = {name: kinds for name, kinds in api.groups.items() if not name.startswith(group)}
    with pytest.raises(NotFoundError, match=f"cluster tpu has no {told}") as caught:
        cluster.list(kind)
    assert caught.value.hint.startswith("kubectl --context tpu apply --server-side -f https://")
    assert cluster.path(kind) is None


def test_the_older_version_of_kueue_is_used_where_it_is_all_there_is(api: KubeApi, cluster: Cluster) -> None:
    api.groups["kueue.x-k8s.io/v1beta1"] = api.groups.pop("kueue.x-k8s.io/v1beta2")
    assert cluster.path("Workload") == "/apis/kueue.x-k8s.io/v1beta1"
    assert cluster.list("Workload", everywhere=True) == []


def test_a_conflict_is_told(cluster: Cluster) -> None:
    from tpuctl.kube.client import Response, refusal

    answer = Response(409, b'{"kind": "Status", "message": "another manager owns it"}')
    found = refusal(cluster.place, answer, "JobSet train")
    assert isinstance(found, ConflictError)
    assert found.message == "cluster tpu: JobSet train: another manager owns it"
