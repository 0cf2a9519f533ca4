"""Kubernetes' own server of custom resources, with those of JobSet and Kueue, and JobSet's webhook.

It is the code that checks their objects in any cluster: schemas, defaults, CEL rules, strict decoding,
server-side apply. It has no core kinds, controllers or users; `cluster.py` has these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from tests.support.kube.api import KubeApi, install_crds, write_kubeconfig
from tests.support.kube.build import CRD_SERVER, require_kube
from tests.support.kube.processes import free_port, processes, start_etcd

NAME = "gke_test_us-central2_crds"
"""As `gcloud container clusters get-credentials` names contexts."""


@contextmanager
def crd_server(folder: Path) -> Iterator[KubeApi]:
    """Skips where it is not built."""
    built = require_kube("crds")
    with processes(folder) as programs:
        etcd = start_etcd(programs, built / "etcd")
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.crt")
        serving = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
        serving.write_to_path(folder / "server.pem")
        nowhere = write_kubeconfig(folder / "nowhere", "http://127.0.0.1:1", "nowhere", token="x")
        port = free_port()
        words = {
            "etcd-servers": etcd,
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "tls-cert-file": "server.pem",
            "tls-private-key-file": "server.pem",
            "kubeconfig": nowhere,  # of the core API
        }
        programs.start("api", (built / CRD_SERVER, *(f"--{key}={value}" for key, value in words.items())))
        url = f"https://127.0.0.1:{port}"
        kubeconfig = write_kubeconfig(folder / "kubeconfig", url, NAME, "x", folder / "ca.crt")
        api = KubeApi(url, kubeconfig, NAME, "x", folder / "ca.crt")
        # /readyz never says so: it waits for the core API.
        programs.wait("api", lambda: api.request("GET", "/livez").ok)
        install_crds(api, sorted((built / "modules").glob("*/crds")))
        yield api
