"""Google's clients of the APIs, constructed with what the environment says alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.conformance.client import Check, Client
from tests.conformance.harness import https_of, run_script


def _behind_https(script: str) -> Callable[[Mapping[str, str], Path], list[Check]]:
    return lambda env, work: run_script(script, https_of(env), work)


def _plain(script: str) -> Callable[[Mapping[str, str], Path], list[Check]]:
    """For what is told where the simulator is, and heeds no proxy."""
    return lambda env, work: run_script(script, env, work)


CLIENTS = [
    Client(
        "Node's @google-cloud/compute",
        ("npm:@google-cloud/compute@6.15.0", "bin:node"),
        _plain("node_compute_checks.cjs"),
    ),
    Client(
        "Secret Manager, Resource Manager, Cloud Quotas, Service Usage",
        (
            *("google-cloud-secret-manager==2.32.0", "google-cloud-resource-manager==1.19.0"),
            *("google-cloud-quotas==0.6.3", "google-cloud-service-usage==1.18.0"),
        ),
        _behind_https("google_project_checks.py"),
    ),
    Client(
        "google-cloud-compute", ("google-cloud-compute==1.57.0",), _behind_https("google_compute_checks.py")
    ),
    Client(
        "google-cloud-storage by gRPC",
        ("google-cloud-storage[grpc]==3.17.1",),
        _behind_https("google_storage_grpc_checks.py"),
    ),
    Client("google-cloud-tpu", ("google-cloud-tpu==1.28.0",), _behind_https("google_tpu_checks.py")),
]
