"""A whole Kubernetes on loopback: control plane, JobSet, Kueue, and nodes whose pods are processes."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path

import trustme
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.kube.api import KubeApi, Object, install_crds, write_kubeconfig
from tests.support.kube.build import require_kube
from tests.support.kube.kubelet import Kubelet, Node, running_kubelet
from tests.support.kube.pod_logs import serving_logs
from tests.support.kube.processes import Processes, free_port, processes, start_etcd

NAME = "gke_test_us-central2_cluster"
TOKEN = "the-administrator"
KINDS_OF_KUEUE = ("clusterqueues", "cohorts", "jobs", "jobsets", "localqueues", "resourceflavors", "workloads")
"""Whose webhooks are installed: those of Kueue's own kinds and of the frameworks in its configuration."""
JOBS_OF_KUEUE = ("batch/job", "jobset.x-k8s.io/jobset")
POD_SELECTOR = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}
"""JobSet's installation has this in a patch of the YAML that is generated from its code."""

WITH_ETC = (
    *("/usr/bin/unshare", "--mount", "/bin/sh", "-ec"),
    'mount -t overlay overlay -o "lowerdir=$0:/etc" /etc; exec "$@"',
)
"""Adds the files of a folder to what a program sees in /etc: Kueue has the certificate of its metrics there."""


@dataclass(frozen=True, kw_only=True)
class KubeCluster(KubeApi):
    """`kubelet` has the nodes: it takes them away, and has the folders of buckets."""

    kubelet: Kubelet
    programs: Processes


@contextmanager
def kube_cluster(
    folder: Path, nodes: Iterable[Node], images: Mapping[str, Mapping[str, str]]
) -> Iterator[KubeCluster]:
    """With these nodes, and images that they can pull, each with its variables. Skips where it is not built."""
    built = require_kube("cluster")
    with ExitStack() as stack:
        programs = stack.enter_context(processes(folder))
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.crt")
        serving = authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem
        serving.write_to_path(folder / "server.pem")
        api = _start_api_server(programs, built)
        for part in ("kube-controller-manager", "kube-scheduler"):
            programs.start(part, (built / "kubebox", part, *_manager_flags(part, api)))
        install_crds(api, sorted((built / "modules").glob("*/crds")))
        for name, port in (
            ("jobset", _start_jobset(programs, built)),
            ("kueue", _start_kueue(programs, built)),
        ):
            for webhooks in read_webhooks(built / "modules" / name / "webhooks.yaml", name, port, authority):
                _wait_until_served(programs, name, api, webhooks)
                api.create(f"/apis/admissionregistration.k8s.io/v1/{webhooks['kind'].lower()}s", webhooks)
        kubelet = Kubelet(api, folder, nodes, images)
        port = stack.enter_context(serving_logs(kubelet.find_log, folder / "server.pem"))
        stack.enter_context(running_kubelet(kubelet, port))
        yield KubeCluster(
            url=api.url,
            kubeconfig=api.kubeconfig,
            context=api.context,
            token=api.token,
            ca=api.ca,
            kubelet=kubelet,
            programs=programs,
        )


def _start_api_server(programs: Processes, built: Path) -> KubeApi:
    folder, port = programs.folder, free_port()
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (folder / "accounts.key").write_bytes(private)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    words = {
        "etcd-servers": start_etcd(programs, built / "etcd"),
        "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1",
        "secure-port": str(port),
        "tls-cert-file": "server.pem",
        "tls-private-key-file": "server.pem",
        "cert-dir": "certificates",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": "accounts.key",
        "service-account-signing-key-file": "accounts.key",
        "token-auth-file": "tokens.csv",
        "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.0.0.0/24",
        # Nobody mounts the tokens of accounts into pods here.
        "disable-admission-plugins": "ServiceAccount",
        "allow-privileged": "true",
        "endpoint-reconciler-type": "none",
        "enable-priority-and-fairness": "false",
        "profiling": "false",
    }
    programs.start(
        "api", (built / "kubebox", "kube-apiserver", *(f"--{key}={value}" for key, value in words.items()))
    )
    url = f"https://127.0.0.1:{port}"
    kubeconfig = write_kubeconfig(folder / "kubeconfig", url, NAME, TOKEN, folder / "ca.crt")
    api = KubeApi(url, kubeconfig, NAME, TOKEN, folder / "ca.crt")
    programs.wait("api", lambda: api.request("GET", "/readyz").ok)
    return api


def _manager_flags(part: str, api: KubeApi) -> list[str]:
    kubeconfig = str(api.kubeconfig)
    words = {"leader-elect": "false", "bind-address": "127.0.0.1", "secure-port": str(free_port())}
    words |= dict.fromkeys(("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), kubeconfig)
    if part == "kube-controller-manager":
        words["service-account-private-key-file"] = "accounts.key"
    return [f"--{key}={value}" for key, value in words.items()]


def _start_controller(programs: Processes, name: str, binary: Path, version: str, more: Object) -> int:
    """The port of its webhooks, once it serves them."""
    webhooks, health = free_port(), free_port()
    certificates = programs.folder / f"{name}-etc" / name / "metrics" / "certs"
    certificates.mkdir(parents=True)
    for file in ("tls.crt", "tls.key"):
        (certificates / file).write_bytes((programs.folder / "server.pem").read_bytes())
    configuration = {
        "apiVersion": version,
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(certificates)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        **more,
    }
    path = programs.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(configuration))
    words = (binary, "--config", path, "--kubeconfig", programs.folder / "kubeconfig")
    programs.start(name, (*WITH_ETC, programs.folder / f"{name}-etc", *words))
    probe = KubeApi(f"http://127.0.0.1:{health}", path, name)
    programs.wait(name, lambda: probe.request("GET", "/readyz").ok)
    return webhooks


def _wait_until_served(programs: Processes, name: str, api: KubeApi, webhooks: Object) -> None:
    """A controller says that it is ready before all of its webhooks answer."""

    def is_served(there: KubeApi) -> bool:
        return there.request("POST", "").status_code != HTTPStatus.NOT_FOUND

    for each in webhooks["webhooks"]:
        programs.wait(name, partial(is_served, replace(api, url=each["clientConfig"]["url"])))


def _start_jobset(programs: Processes, built: Path) -> int:
    return _start_controller(programs, "jobset", built / "jobset", "config.jobset.x-k8s.io/v1alpha1", {})


def _start_kueue(programs: Processes, built: Path) -> int:
    more = {
        "integrations": {"frameworks": list(JOBS_OF_KUEUE)},
        "featureGates": {"VisibilityOnDemand": False},  # an API of its own, at a fixed port
    }
    return _start_controller(programs, "kueue", built / "kueue", "config.kueue.x-k8s.io/v1beta2", more)


def read_webhooks(path: Path, name: str, port: int, authority: trustme.CA) -> list[Object]:
    """What a controller's module says of its webhooks, with their addresses on loopback."""
    authorities = base64.b64encode(authority.cert_pem.bytes()).decode()
    found = [each for each in yaml.safe_load_all(path.read_text()) if each]
    for document in found:
        document["metadata"]["name"] = f"{name}-{document['metadata']['name']}"
        document["webhooks"] = [each for each in document["webhooks"] if name == "jobset" or _is_served(each)]
        for each in document["webhooks"]:
            place = each["clientConfig"].pop("service")["path"]
            each["clientConfig"] = {"url": f"https://127.0.0.1:{port}{place}", "caBundle": authorities}
            if each["rules"][0]["resources"] == ["pods"]:
                each["objectSelector"] = POD_SELECTOR
    return found


def _is_served(webhook: Object) -> bool:
    return all(each.partition("/")[0] in KINDS_OF_KUEUE for each in webhook["rules"][0]["resources"])
