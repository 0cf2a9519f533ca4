"""Google's clients of the APIs, constructed with what the environment says alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.conformance.client import Check, Client
from tests.conformance.harness import https_of, run_script


def _behind_https(script: str) -> Callable[[Mapping[str, str], Path], list[Check]]:
    return lambda env, work: run_script(script, https_of(env), work)


CLIENTS = [
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
