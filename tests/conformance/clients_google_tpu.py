"""Google's client of the TPU API, constructed with nothing but what the environment says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.conformance.client import Check, Client
from tests.conformance.clients_storage import run_script
from tests.conformance.harness import https_of


def _tpu(env: Mapping[str, str], work: Path) -> list[Check]:
    return run_script("google_tpu_checks.py", https_of(env), work)


CLIENTS = [Client("google-cloud-tpu", ("google-cloud-tpu==1.28.0",), _tpu)]
